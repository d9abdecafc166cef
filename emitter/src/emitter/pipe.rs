//! Pipes: routes for events from one emitter to another, beside the tree (E12).

use std::fmt;
use std::sync::{Arc, Weak};

use crate::Emitter;
use crate::emitter::Node;
use crate::emitter::scope::drop_in_run_of;
use crate::panic::discard;
use crate::registry::listener::next_id;

/// A route from one emitter to another.
pub(crate) struct Pipe {
    /// Unique in the process. A later pipe has a greater id.
    pub(crate) id: u64,
    /// `Some` until the pipe is dropped.
    target: Option<Emitter>,
    /// The emitter from which events are piped.
    home: Weak<Node>,
}

impl Pipe {
    pub(crate) fn new(home: &Emitter, target: &Emitter) -> Self {
        Self { id: next_id(), target: Some(target.clone()), home: home.downgrade() }
    }

    pub(crate) const fn target(&self) -> Option<&Emitter> {
        self.target.as_ref()
    }
}

/// Dropping the last handle to the target drops its listeners, which may panic. The target is dropped inside the scope
/// of the run that the pipe belongs to (R14).
impl Drop for Pipe {
    fn drop(&mut self) {
        let Self { target, home, .. } = self;
        drop_in_run_of(home, || discard("the target of a pipe", target.take()));
    }
}

/// A handle to a pipe. [`unpipe`](Self::unpipe) removes the pipe; dropping the handle leaves it in place.
#[derive(Clone)]
pub struct PipeHandle {
    from: Weak<Node>,
    pipe: Weak<Pipe>,
}

impl PipeHandle {
    pub(crate) fn new(from: &Emitter, pipe: &Arc<Pipe>) -> Self {
        Self { from: from.downgrade(), pipe: Arc::downgrade(pipe) }
    }

    /// Removes the pipe. Returns `true` if this call removed the pipe.
    #[expect(clippy::must_use_candidate, reason = "callers may ignore the result")]
    pub fn unpipe(&self) -> bool {
        let (Some(from), Some(pipe)) = (self.from.upgrade(), self.pipe.upgrade()) else { return false };
        Emitter::from(from).registry().is_some_and(|registry| registry.remove_pipe(&pipe))
    }
}

impl fmt::Debug for PipeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipeHandle").field("piped", &(self.pipe.strong_count() > 0)).finish()
    }
}
