//! How deep runs are nested, and how deep their lines are shown.

use emitree_runtime::RunContext;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::address::Address;

/// How deep the run of a line is nested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Level {
    /// The number of runs between the bound run and this one that are shown, and one more; 0 for the bound run. Lines are indented by it.
    pub relative: usize,
    /// The number of runs that the run is nested in, those above the bound run and those that are filtered out included:
    /// [`RunContext::depth`].
    pub absolute: usize,
}

/// Where a run stands, fixed when it starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Of the run; one that is not shown has the level of what it is in.
    relative: usize,
    /// Of the run, shown or not.
    absolute: usize,
    pub(super) is_shown: bool,
    pub(super) is_outermost: bool,
}

impl Place {
    pub(super) const fn outermost(absolute: usize, is_shown: bool) -> Self {
        Self { relative: 0, absolute, is_shown, is_outermost: true }
    }

    /// The place of a run that was started in the one that stands here.
    pub(super) const fn below(self, is_shown: bool) -> Self {
        Self { relative: self.relative + is_shown as usize, absolute: self.absolute + 1, is_shown, is_outermost: false }
    }

    /// So many levels below the run that stands here, all of them shown.
    pub(super) const fn so_far_below(self, levels: usize) -> Self {
        Self {
            relative: self.relative + levels,
            absolute: self.absolute + levels,
            is_outermost: self.is_outermost && levels == 0,
            ..self
        }
    }

    /// The same place, at that absolute level.
    pub(super) const fn at_depth(self, absolute: usize) -> Self {
        Self { absolute, ..self }
    }

    pub(super) const fn level(self) -> Level {
        Level { relative: self.relative, absolute: self.absolute }
    }
}

/// The places of the runs that are under way.
#[derive(Debug, Default)]
pub(super) struct Places(FxHashMap<Address, Place>);

impl Places {
    pub(super) fn enter(&mut self, run: &RunContext, place: Place) {
        self.0.insert(Address::of(run), place);
    }

    pub(super) fn find(&self, run: &RunContext) -> Option<Place> {
        self.0.get(&Address::of(run)).copied()
    }

    pub(super) fn leave(&mut self, run: &RunContext) -> Option<Place> {
        self.0.remove(&Address::of(run))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
