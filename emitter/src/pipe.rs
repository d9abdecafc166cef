//! Pipes: ways for events beside the tree (E12).

use std::fmt;
use std::sync::{Arc, Weak};

use crate::emitter::Inner;
use crate::listener::Sighting;
use crate::panic::discard;
use crate::{Emitter, Matcher};

/// A way from one emitter to another.
pub(crate) struct Pipe {
    pub(crate) matcher: Matcher,
    pub(crate) target: Emitter,
}

impl Pipe {
    /// Whether it sends an event on. A function that panics sends nothing.
    pub(crate) fn takes(&self, sighting: &Sighting<'_>) -> bool {
        (self.matcher.nested_by_default() || !sighting.nested)
            && self.matcher.takes(sighting)
            && self.matcher.says_calmly(sighting.meta)
    }
}

/// A function that matches is the user's, and may panic as it is dropped.
impl Drop for Pipe {
    fn drop(&mut self) {
        discard("what a matcher captured", std::mem::replace(&mut self.matcher, Matcher::own()));
    }
}

/// A pipe that was made; [`unpipe`](Self::unpipe) removes it. Dropping the handle leaves the pipe in place.
#[derive(Clone)]
pub struct PipeHandle {
    from: Weak<Inner>,
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
