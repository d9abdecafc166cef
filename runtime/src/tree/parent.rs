//! The run in which a run was started, and its place below it.
//!
//! 1. A run takes its place while it is made, and then looks whether the one above takes more; that closes, and then
//!    looks who is below: either sees the other.
//! 2. It is ended with the one above, or gives its place up: when it has ended, or where it could not be made.
//! 3. Who waits for it to be made is told of either.

use crate::RunContext;
use crate::context::WeakRun;
use crate::sync::{AtomicBool, Ordering, fence};
use crate::tree::children::ChildKey;

pub(crate) struct Parent {
    run: RunContext,
    place: ChildKey,
    /// The place has been given up.
    has_left: AtomicBool,
}

impl Parent {
    /// Gives the run above back if that takes no more.
    pub(crate) fn of(run: WeakRun, above: RunContext) -> Result<Self, RunContext> {
        if above.node().state.is_closed() {
            return Err(above);
        }
        let place = above.node().below.add(run);
        let above = Self { run: above, place, has_left: AtomicBool::new(false) };
        // Either this sees that the run above has closed, or that sees the place.
        if above.run.node().state.is_closed() { Err(above.run.clone()) } else { Ok(above) }
    }

    pub(crate) const fn run(&self) -> &RunContext {
        &self.run
    }

    /// The run that has the place is there: if the work of the one above is over, that may wait for it.
    pub(crate) fn arrive(&self) {
        fence(Ordering::SeqCst);
        if self.run.node().state.is_settled() {
            self.run.node().below.tell();
        }
    }

    pub(crate) fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
        self.run.node().below.remove(self.place);
    }
}

/// A run that could not be made gives its place up here.
impl Drop for Parent {
    fn drop(&mut self) {
        if !self.has_left.load(Ordering::Relaxed) {
            self.leave();
            self.run.node().below.tell();
        }
    }
}
