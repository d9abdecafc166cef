//! The run in which a run was started, and its place below it (R13).

use std::sync::atomic::{AtomicBool, Ordering, fence};

use crate::RunContext;
use crate::below::Place;
use crate::context::WeakRun;

pub(crate) struct Above {
    run: RunContext,
    place: Place,
    /// The place has been given up.
    has_left: AtomicBool,
}

impl Above {
    /// None if the run above takes no more.
    pub(crate) fn of(run: WeakRun, above: RunContext) -> Option<Self> {
        if above.node().is_closed() {
            return None;
        }
        let place = above.node().below().add(run);
        let above = Self { run: above, place, has_left: AtomicBool::new(false) };
        // Either this sees that the run above has closed, or that sees the place.
        let is_closed = above.run.node().is_closed();
        (!is_closed).then_some(above)
    }

    pub(crate) const fn run(&self) -> &RunContext {
        &self.run
    }

    /// The run that has the place is there: if the work of the one above is over, that may wait for it.
    pub(crate) fn arrive(&self) {
        fence(Ordering::SeqCst);
        if self.run.node().fate().is_settled() {
            self.run.node().below().tell();
        }
    }

    pub(crate) fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
        self.run.node().below().remove(self.place);
    }
}

/// A run that could not be made gives its place up here.
impl Drop for Above {
    fn drop(&mut self) {
        if !*self.has_left.get_mut() {
            self.leave();
            self.run.node().below().tell();
        }
    }
}
