//! What the runs of a service are runs of.

use std::sync::Arc;

use emitree_emitter::{Creator, Emitter};

use crate::Middleware;

#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) emitter: Emitter,
    pub(crate) middlewares: Vec<Arc<dyn Middleware>>,
}

impl Identity {
    /// Below the root, and without a namespace.
    pub(crate) fn new(name: String) -> Self {
        let emitter = Emitter::root().child_with(Creator::new("Run", name.clone()));
        Self { name, emitter, middlewares: Vec::new() }
    }
}
