//! The depth of runs in the tree, and the indentation of their lines.

use serde::{Deserialize, Serialize};

/// The depth of a line's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Level {
    /// The depth of the run in the printed tree, not counting hidden runs; 0 for the run that the trajectory is bound
    /// to. This number sets the indentation of the run's lines.
    pub relative: usize,
    /// The number of runs that this run is nested in, including runs above the bound run and hidden runs:
    /// [`RunContext::depth`](emitree_runtime::RunContext::depth).
    pub absolute: usize,
}

/// The position of a run in the printed tree, fixed when the run starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct TreePosition {
    /// A hidden run has the relative level of the run above it.
    pub(super) level: Level,
    pub(super) is_outermost: bool,
    pub(super) is_shown: bool,
}

impl TreePosition {
    /// Creates the position of a run below another run, or of the outermost run.
    pub(super) fn new(above: Option<Self>, absolute: usize, is_shown: bool) -> Self {
        // A hidden run adds no level, so that the runs below it move up.
        let relative = above.map_or(0, |above| above.level.relative + usize::from(is_shown));
        Self { level: Level { relative, absolute }, is_outermost: above.is_none(), is_shown }
    }
}
