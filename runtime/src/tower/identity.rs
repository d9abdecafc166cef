//! The instance that the runs of a service belong to.

use std::sync::Arc;

use emitree_emitter::{Creator, Emitter};

use crate::Middleware;

/// The name, the emitter and the middlewares of a service.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) emitter: Emitter,
    pub(crate) middlewares: Vec<Arc<dyn Middleware>>,
}

impl Identity {
    /// Creates an identity whose emitter is a child of the root and has no namespace.
    pub(crate) fn new(name: String) -> Self {
        let emitter = Emitter::root().child_with(Creator::new("Run", name.clone()));
        Self { name, emitter, middlewares: Vec::new() }
    }
}
