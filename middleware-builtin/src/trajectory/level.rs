//! How deep a run stands.

use emitree_emitter::Trace;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

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

    pub(super) const fn level(self) -> Level {
        Level { relative: self.relative, absolute: self.base + self.relative }
    }
}

/// The places of the runs that are under way.
#[derive(Debug, Default)]
pub(super) struct Places(FxHashMap<Uuid, Place>);

impl Places {
    pub(super) fn enter(&mut self, run_id: Uuid, place: Place) -> Place {
        self.0.insert(run_id, place);
        place
    }

    pub(super) fn find(&self, run_id: Uuid) -> Option<Place> {
        self.0.get(&run_id).copied()
    }

    pub(super) fn leave(&mut self, run_id: Uuid) -> Option<Place> {
        self.0.remove(&run_id)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The place of the run that a run was started in.
    pub(super) fn above(&self, trace: &Trace) -> Option<Place> {
        self.find(trace.parent_run_id?)
    }
}
