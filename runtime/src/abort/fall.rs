//! Stops a run and all runs below it, in one step (R7).
//!
//! 1. A process-wide lock is held while a stop is written to a run and to all runs below it. If code sees that a run is
//!    stopped and drops a run below it, the drop waits for the lock. When it gets the lock, the run below already has
//!    the reason for the stop, and does not become `Dropped`.
//! 2. A stop skips a run that is already stopped or settled, and goes no further down from there: that run has already
//!    stopped the runs below it, or stops them when it ends.
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

/// The lock that is held while a stop is written to a run and to all runs below it.
pub(crate) struct Stops(Mutex<()>);

impl Stops {
    pub(crate) const fn new(lock: Mutex<()>) -> Self {
        Self(lock)
    }

    /// Calls `first` to stop a run or an abort handle. `first` returns the followers, or `None` if it stopped nothing.
    /// Then stops the followers, level by level, with the reason `fallen`.
    ///
    /// Returns `None` if `first` returned `None`. Otherwise returns all followers, for the caller to wake and drop.
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
