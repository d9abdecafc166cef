//! A stop falls to everything below, as one step (R7).
//!
//! 1. Stops are written one at a time: each is there for all that it falls to, or for none of it. A run that is dropped
//!    because somebody saw the stop of a run above therefore has that reason before it can write `Dropped`.
//! 2. A run that was stopped, or settled, before keeps what it has, and hands nothing on: it has done so already, or its own end
//!    will stop what is left below it.
//! 3. Nobody is woken, and no handle is dropped, under the lock: both may run user code.

use crate::run::state::RunState;
use crate::sync::Mutex;

/// Something that can be stopped, and what is stopped with it.
pub(crate) trait Stoppable: Sized {
    type Stop: Clone;

    fn state(&self) -> &RunState<Self::Stop>;

    /// What is directly below.
    fn followers(&self) -> Vec<Self>;
}

/// The order in which stops are written.
pub(crate) struct Stops(Mutex<()>);

impl Stops {
    pub(crate) const fn new(lock: Mutex<()>) -> Self {
        Self(lock)
    }

    /// Writes the first stop, and then another one for all that follows: `first` returns what does, or nothing if it was not open any
    /// more. Returns what may have been stopped, for the caller to wake and to drop.
    pub(crate) fn stop<N: Stoppable>(
        &self,
        fallen: &N::Stop,
        first: impl FnOnce() -> Option<Vec<N>>,
    ) -> Option<Vec<N>> {
        let one_at_a_time = self.0.lock();
        let mut reached = first()?;
        // Level by level and not by recursion: runs may be nested deep.
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
