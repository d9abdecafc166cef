//! Pipes: ways for events beside the tree (E12).

use std::fmt;
use std::mem::replace;
use std::sync::{Arc, Weak};

use crate::emitter::Node;
use crate::emitter::scope::drop_at;
use crate::panic::drop_catching;
use crate::registry::listener::EventView;
use crate::{Emitter, Matcher};

/// A way from one emitter to another.
pub(crate) struct Pipe {
    matcher: Matcher,
    /// Until it is dropped.
    target: Option<Emitter>,
    /// The emitter that it leads away from.
    home: Weak<Node>,
}

impl Pipe {
    pub(crate) fn new(home: &Emitter, matcher: Matcher, target: &Emitter) -> Self {
        Self { matcher, target: Some(target.clone()), home: home.downgrade() }
    }

    /// Where it sends an event, if it takes it. A function that panics sends nothing.
    pub(crate) fn target_for(&self, view: &EventView<'_>) -> Option<Emitter> {
        let takes = (self.matcher.nested_by_default() || !view.nested)
            && self.matcher.takes(view)
            && self.matcher.accepts_or_logs(view.meta);
        if takes { self.target.clone() } else { None }
    }
}

/// A function that matches is the user's, and may panic as it is dropped; so are the listeners of the target, if nobody else has
/// that. Those of a run's pipe are dropped inside of the run, whoever does it.
impl Drop for Pipe {
    fn drop(&mut self) {
        let Self { matcher, target, home } = self;
        drop_at(home, || {
            drop_catching("what a matcher captured", replace(matcher, Matcher::own()));
            drop_catching("what a pipe leads to", target.take());
        });
    }
}

/// A pipe that was made; [`unpipe`](Self::unpipe) removes it. Dropping the handle leaves the pipe in place.
#[derive(Clone)]
pub struct PipeHandle {
    from: Weak<Node>,
    pipe: Weak<Pipe>,
}

impl PipeHandle {
    pub(crate) fn new(from: &Emitter, pipe: &Arc<Pipe>) -> Self {
        Self { from: from.downgrade(), pipe: Arc::downgrade(pipe) }
    }

    /// Removes the pipe; tells whether it was still there.
    #[expect(clippy::must_use_candidate, reason = "called for its effect")]
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
