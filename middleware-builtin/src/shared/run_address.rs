//! Which run it is: what runs that are under way are found by, without working out their ids.

use std::hash::{Hash, Hasher};

use emitree_runtime::RunContext;
use rustc_hash::FxHasher;

/// Which run it is, as long as there is it: who keeps one forgets it with the run's `finish`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RunAddress(u64);

impl RunAddress {
    #[inline]
    pub(crate) fn of(run: &RunContext) -> Self {
        // Of one word, which this is, no two have the same hash.
        let mut hasher = FxHasher::default();
        run.hash(&mut hasher);
        Self(hasher.finish())
    }
}
