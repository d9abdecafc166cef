//! The link of a run to its parent: the run in which it was started.
//!
//! 1. A run registers with its parent while it is being made, and then checks whether the parent has closed; the parent
//!    closes, and then looks for children. So either the run sees that the parent has closed, or the parent sees the
//!    run.
//! 2. A run deregisters when it has ended, or if it could not be made. A parent ends the runs that are still
//!    registered.
//! 3. A parent may wait for the run to be made. It is woken when the run has been made, or has deregistered because it
//!    could not be made.

use crate::RunContext;
use crate::context::WeakRun;
use crate::sync::{AtomicBool, Ordering, fence};
use crate::tree::children::ChildKey;

pub(crate) struct Parent {
    run: RunContext,
    place: ChildKey,
    /// Set when the run has deregistered.
    has_left: AtomicBool,
}

impl Parent {
    /// Registers a run with its parent. Returns `Err(above)` if the parent has closed.
    pub(crate) fn of(run: WeakRun, above: RunContext) -> Result<Self, RunContext> {
        if above.node().state.is_closed() {
            return Err(above);
        }
        let place = above.node().below.add(run);
        let above = Self { run: above, place, has_left: AtomicBool::new(false) };
        // Check again: either this check sees that the parent has closed, or the parent sees the child (invariant 1).
        if above.run.node().state.is_closed() { Err(above.run.clone()) } else { Ok(above) }
    }

    pub(crate) const fn run(&self) -> &RunContext {
        &self.run
    }

    /// Reports that the run is made. If the parent's work is over, the parent may be waiting for the report.
    pub(crate) fn arrive(&self) {
        // The parent settles before it waits: either this call sees the parent settled, or the parent sees that the run
        // is made.
        fence(Ordering::SeqCst);
        if self.run.node().state.is_settled() {
            self.run.node().below.wake();
        }
    }

    pub(crate) fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
        self.run.node().below.remove(self.place);
    }
}

/// A run that could not be made deregisters here.
impl Drop for Parent {
    fn drop(&mut self) {
        if !self.has_left.load(Ordering::Relaxed) {
            self.leave();
            self.run.node().below.wake();
        }
    }
}
