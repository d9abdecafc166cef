//! How deep a run is nested, and how deep its lines are indented.

use serde::{Deserialize, Serialize};

/// How deep the run of a line is nested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Level {
    /// The number of shown runs between the bound run and this run, plus one; 0 for the bound run. Lines are indented by
    /// it.
    pub relative: usize,
    /// The number of runs that this run is nested in, including runs above the bound run and hidden runs:
    /// [`RunContext::depth`](emitree_runtime::RunContext::depth).
    pub absolute: usize,
}

/// The place of a run in the printed tree, fixed when the run starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct TreePosition {
    /// A hidden run has the relative level of the run above it.
    pub(super) level: Level,
    pub(super) is_outermost: bool,
    pub(super) is_shown: bool,
}

impl TreePosition {
    /// The place of a run below another run, or of the outermost run.
    pub(super) fn new(above: Option<Self>, absolute: usize, is_shown: bool) -> Self {
        let relative = above.map_or(0, |above| above.level.relative + usize::from(is_shown));
        Self { level: Level { relative, absolute }, is_outermost: above.is_none(), is_shown }
    }
}
