//! The identity of a run that is under way, without the cost of a run id.

use std::hash::{Hash, Hasher};

use emitree_runtime::RunContext;
use rustc_hash::FxHasher;

/// The identity of a run while the run exists. Forget the identity at `finish`: a later run may have the same identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RunAddress(u64);

impl RunAddress {
    #[inline]
    pub(crate) fn of(run: &RunContext) -> Self {
        // `RunContext` hashes a single word. `FxHasher` maps different words to different hashes, so equal hashes mean
        // the same run.
        let mut hasher = FxHasher::default();
        run.hash(&mut hasher);
        Self(hasher.finish())
    }
}
