//! Passes a stop on to all runs below, as one step (R7).
//!
//! 1. Stops are written one at a time, under a process-wide lock, so that no stop is written while another is half done. If
//!    code observes that a run is stopped, and then drops a run below it, the drop waits for the lock. When the drop has the
//!    lock, the run below already has the first reason, and does not become `Dropped`.
//! 2. A run that is already stopped or settled keeps its state and passes nothing on: it has already stopped the runs below it,
//!    or stops them when it ends.
//! 3. No task is woken, and no handle is dropped, under the lock: both may run user code.

use crate::run::state::RunState;
use crate::sync::Mutex;

/// A run that can be stopped, and the runs that are stopped with it.
pub(crate) trait Stoppable: Sized {
    type Stop: Clone;

    fn state(&self) -> &RunState<Self::Stop>;

    /// Returns the runs directly below this run, and the runs that follow its signal.
    fn followers(&self) -> Vec<Self>;
}

/// A lock under which stops are written, one at a time.
pub(crate) struct Stops(Mutex<()>);

impl Stops {
    pub(crate) const fn new(lock: Mutex<()>) -> Self {
        Self(lock)
    }

    /// Calls `first`, which stops one run or handle and returns its followers, and then writes `fallen` to them and, level by
    /// level, to their followers. `first` returns `None` if it stopped nothing; in that case `stop` returns `None` too.
    /// Otherwise `stop` returns the runs that may have been stopped, which the caller wakes and drops.
    pub(crate) fn stop<N: Stoppable>(
        &self,
        fallen: &N::Stop,
        first: impl FnOnce() -> Option<Vec<N>>,
    ) -> Option<Vec<N>> {
        let one_at_a_time = self.0.lock();
        let mut reached = first()?;
        // Proceed level by level instead of recursing, because runs may be nested deeply.
        let mut next = 0;
        while let Some(node) = reached.get(next) {
            next += 1;
            if node.state().stop(fallen.clone()) {
                let below = node.followers();
                reached.extend(below);
            }
        }
        drop(one_at_a_time);
        Some(reached)
    }
}
