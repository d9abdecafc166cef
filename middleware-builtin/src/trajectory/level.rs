//! How deep a run stands.

use std::hash::{Hash, Hasher};

use emitree_emitter::{Emitter, EventMeta};
use rustc_hash::{FxHashMap, FxHasher};
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

/// Which emitter it is, as long as there is it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address(u64);

impl Address {
    #[inline]
    pub(super) fn of(emitter: &Emitter) -> Self {
        // Of one word, which this is, no two have the same hash.
        let mut hasher = FxHasher::default();
        emitter.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// The places of the runs that are under way.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// A few, found by what their emitters are, without working out ids.
    near: [Option<Near>; 8],
    /// Others, by run.
    far: FxHashMap<Uuid, Place>,
}

#[derive(Clone, Copy, Debug)]
struct Near {
    emitter: Address,
    /// Where somebody may ask for it.
    run_id: Option<Uuid>,
    place: Place,
}

impl Places {
    /// Adds one of the few; tells whether there was room.
    pub(super) fn enter_near(&mut self, emitter: Address, run_id: Option<Uuid>, place: Place) -> bool {
        // A run that was dropped has left its own behind, perhaps for one of the same address.
        let same = self.near.iter().position(|near| near.is_some_and(|near| near.emitter == emitter));
        let at = same.or_else(|| self.near.iter().position(Option::is_none));
        let slot = at.and_then(|at| self.near.get_mut(at));
        slot.map(|slot| *slot = Some(Near { emitter, run_id, place })).is_some()
    }

    pub(super) fn enter_far(&mut self, run_id: Uuid, place: Place) {
        self.far.insert(run_id, place);
    }

    /// The place of the run that has that emitter, if it is one of the few.
    #[inline]
    pub(super) fn at(&self, emitter: Address) -> Option<Place> {
        self.near.iter().flatten().find(|near| near.emitter == emitter).map(|near| near.place)
    }

    #[inline]
    pub(super) fn leave_at(&mut self, emitter: Address) -> Option<Place> {
        let place = self.near.iter_mut().find(|near| near.is_some_and(|near| near.emitter == emitter))?;
        place.take().map(|near| near.place)
    }

    pub(super) fn find(&self, run_id: Uuid) -> Option<Place> {
        let near = self.near.iter().flatten().find(|near| near.run_id == Some(run_id));
        near.map(|near| near.place).or_else(|| self.far.get(&run_id).copied())
    }

    pub(super) fn leave(&mut self, run_id: Uuid) -> Option<Place> {
        self.far.remove(&run_id)
    }

    /// The place of the run that the run of an event was started in.
    pub(super) fn above_of(&self, meta: &EventMeta<'_>) -> Option<Place> {
        let near = meta.source().run_parent().and_then(|parent| self.at(Address::of(parent)));
        near.or_else(|| if self.far.is_empty() { None } else { self.far.get(&meta.trace()?.parent_run_id?).copied() })
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.near.iter().flatten().count() + self.far.len()
    }
}
