//! What was bound to a run goes when the run has ended (R14): its listeners, layers and middlewares, its subscribers, and what its
//! errors and its context pass.
//!
//! 1. Each of them is dropped once, under no lock, with the run as the current one; runs that are started meanwhile are
//!    those of the next run above that takes some (R1).
//! 2. Whoever binds says so after it has added; the run says that it lets go before it looks. Both say it in one word
//!    ([`RunState`](crate::run::state::Fate)), so one of them sees the other: what comes too late goes at once.
//! 3. One that panics as it is dropped keeps no other from being dropped.

use crate::RunContext;
use crate::context::current::enter;

impl RunContext {
    /// Something was bound to the run, which goes with it: at once, if the run has let go already.
    pub(crate) fn bound(&self) {
        if !self.node().state().bind() {
            enter(self, || self.drop_bound());
        }
    }

    /// Lets go of what was bound. Called inside of the run, when all has been told.
    #[inline]
    pub(crate) fn release(&self) {
        if self.node().state().release() {
            self.drop_bound();
        }
    }

    fn drop_bound(&self) {
        let here = self.here();
        here.lazy_emitter().end_emitter();
        here.bindings().release();
        here.subscribers().release();
        here.inherited().release();
    }
}
