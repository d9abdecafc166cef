//! How deep a run stands.

use emitree_runtime::RunContext;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::address::Address;

/// How deep a line stands. What is filtered out takes its level with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Level {
    /// Below the bound run, which is at 0.
    pub relative: usize,
    /// Below the outermost run that the bound run is nested in.
    pub absolute: usize,
}

/// Where a run stands, fixed when it starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Of the run; one that is not shown has the level of what it is in.
    relative: usize,
    /// The absolute level of the outermost run.
    base: usize,
    pub(super) is_shown: bool,
    pub(super) is_outermost: bool,
}

impl Place {
    pub(super) const fn outermost(base: usize, is_shown: bool) -> Self {
        Self { relative: 0, base, is_shown, is_outermost: true }
    }

    /// The place of a run that was started in the one that stands here.
    pub(super) const fn below(self, is_shown: bool) -> Self {
        Self { relative: self.relative + is_shown as usize, is_shown, is_outermost: false, ..self }
    }

    /// So many levels below the run that stands here, all of them shown.
    pub(super) const fn so_far_below(self, levels: usize) -> Self {
        Self { relative: self.relative + levels, is_outermost: self.is_outermost && levels == 0, ..self }
    }

    pub(super) const fn level(self) -> Level {
        Level { relative: self.relative, absolute: self.base + self.relative }
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
