//! Where an event goes, and in which order (E5, E6).
//!
//! order(e) = e, then order(tree parent), then order(run parent), then order of each pipe; what occurs in a later
//! part is left out of the earlier ones. Without pipes that is a walk up the tree and up the runs, which keeps the
//! last of each emitter it meets twice. With pipes it is a depth-first search that visits the parts backwards and
//! is read backwards: what a later part has visited is not visited again.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::emitter::Inner;
use crate::listener::{Listener, Role, Sighting};
use crate::snapshot::{Hits, Snapshot, Takers};
use crate::sync::Guard;
use crate::{Emitter, EventMeta};

/// Emitters with listeners that a walk takes before it gives up in favour of the search, which visits each once.
const STEPS: usize = 256;

/// The listeners that hear one event, emitter by emitter, fixed when it is emitted (E10).
#[derive(Default)]
pub(crate) struct Route {
    stops: Stops,
    /// Whether somebody on it may observe: mostly nobody does, and it is gone through only once.
    pub(crate) is_observed: bool,
}

type Stops = SmallVec<[Stop; 4]>;

/// One emitter's part.
struct Stop {
    snapshot: Guard<Snapshot>,
    hits: Hits,
}

/// A place in a route, for one role: everything before it has been given out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    stop: usize,
    /// Among the takers of that stop.
    pub(crate) taker: usize,
}

impl Cursor {
    /// Moves on to the next stop.
    #[inline]
    pub(crate) fn pass(&mut self) {
        *self = Self { stop: self.stop + 1, taker: 0 };
    }
}

impl Route {
    /// Finds everybody who hears an event; stays empty if nobody does. Nobody hears it before it comes to `from`.
    #[inline(always)]
    pub(crate) fn find(&mut self, from: &Emitter, meta: &EventMeta<'_>) {
        if !self.along(from, meta) {
            self.stops = Self::search(from, meta);
            self.is_observed = true;
        }
    }

    /// Adds the stops along the tree and the runs. Gives up where there are pipes, or too much to walk.
    #[inline]
    fn along(&mut self, from: &Emitter, meta: &EventMeta<'_>) -> bool {
        for emitter in from.upwards() {
            if emitter.run_parent().is_some() {
                self.stops.clear();
                return self.along_runs(from, meta);
            }
            if emitter.is_loud(meta.name_ref().bit()) && !self.stop_at(emitter, meta) {
                return false;
            }
        }
        true
    }

    /// The same where there are several ways up.
    #[inline(never)]
    fn along_runs(&mut self, from: &Emitter, meta: &EventMeta<'_>) -> bool {
        let mut loud = SmallVec::<[&Emitter; 8]>::new();
        let over = from.walk(|emitter| {
            if emitter.is_loud(meta.name_ref().bit()) {
                loud.push(emitter);
            }
            true
        });
        // What occurs later is left out here (E5).
        let last = |i: usize| !loud[i + 1..].contains(&loud[i]);
        over && (0..loud.len()).all(|i| !last(i) || self.stop_at(loud[i], meta))
    }

    /// Adds the part of an emitter that is loud, if it has any. Gives up if it has pipes.
    #[inline]
    fn stop_at(&mut self, emitter: &Emitter, meta: &EventMeta<'_>) -> bool {
        let Some(registry) = emitter.registry() else { return true };
        self.stops.push(Stop::default());
        let Some(stop) = self.stops.last_mut() else { return true };
        stop.snapshot = registry.snapshot();
        let Some(snapshot) = stop.snapshot.as_ref() else { return true };
        if !snapshot.pipes.is_empty() {
            return false;
        }
        stop.hits = registry.hits(snapshot, &sighting(emitter, meta));
        self.is_observed |= snapshot.observes;
        if stop.hits.is_none() {
            self.stops.pop();
        }
        true
    }

    /// The route along everything, pipes too.
    #[cold]
    fn search(from: &Emitter, meta: &EventMeta<'_>) -> Stops {
        let mut stops = Stops::new();
        let mut visited = FxHashSet::default();
        let mut stack = vec![Step::Enter(from.clone())];
        while let Some(step) = stack.pop() {
            match step {
                Step::Enter(emitter) if visited.insert(emitter.address()) => {
                    let sighting = sighting(&emitter, meta);
                    let (stop, piped) = emitter.registry().map_or((None, Vec::new()), |registry| {
                        let snapshot = registry.snapshot();
                        let piped = targets(&snapshot, &sighting);
                        let hits = snapshot.as_ref().map_or(Hits::NONE, |snapshot| registry.hits(snapshot, &sighting));
                        ((!hits.is_none()).then_some(Stop { snapshot, hits }), piped)
                    });
                    stack.push(Step::Leave(stop));
                    // What is pushed last is visited first: the last pipe, and the tree parent at the end.
                    stack.extend(emitter.parent().cloned().map(Step::Enter));
                    stack.extend(emitter.run_parent().cloned().map(Step::Enter));
                    stack.extend(piped.into_iter().map(Step::Enter));
                }
                Step::Enter(_) => {}
                Step::Leave(stop) => stops.extend(stop),
            }
        }
        stops.reverse();
        stops
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// The takers of a role at the stop where the cursor is; none behind the last stop.
    #[inline]
    pub(crate) fn takers(&self, role: Role, cursor: Cursor) -> Option<Takers<'_>> {
        let stop = self.stops.get(cursor.stop)?;
        Some(stop.snapshot.as_ref()?.takers(&stop.hits, role))
    }

    /// The next listener of a role; the cursor moves behind it.
    pub(crate) fn next(&self, role: Role, cursor: &mut Cursor) -> Option<&Arc<Listener>> {
        loop {
            match self.takers(role, *cursor)?.next(cursor.taker) {
                Some((after, listener)) => {
                    cursor.taker = after;
                    return Some(listener);
                }
                None => cursor.pass(),
            }
        }
    }

    /// The first listener that hears the event and has to be awaited, if any.
    pub(crate) fn first_async(&self, meta: &EventMeta<'_>) -> Option<&Arc<Listener>> {
        [Role::Change, Role::Observe].into_iter().find_map(|role| {
            let mut cursor = Cursor::default();
            std::iter::from_fn(|| self.next(role, &mut cursor)).find(|listener| {
                listener.call.would_wait() && !listener.claims.is_spent() && listener.matcher.says_calmly(meta)
            })
        })
    }
}

/// Filled where it stands: what a guard is made of fits registers, a whole stop does not.
impl Default for Stop {
    #[inline]
    fn default() -> Self {
        Self { snapshot: Guard::from_inner(None), hits: Hits::NONE }
    }
}

enum Step {
    Enter(Emitter),
    Leave(Option<Stop>),
}

fn targets(snapshot: &Guard<Snapshot>, sighting: &Sighting<'_>) -> Vec<Emitter> {
    let pipes = snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.pipes);
    pipes.iter().filter(|pipe| pipe.takes(sighting)).map(|pipe| pipe.target.clone()).collect()
}

/// How an emitter sees an event (E4).
#[inline]
fn sighting<'a>(listening: &Emitter, meta: &'a EventMeta<'a>) -> Sighting<'a> {
    let source = meta.source();
    let here = source == listening || source.is_run_of(listening);
    let nested = !here && listening.run().is_some_and(|run| source.run() != Some(run));
    Sighting { meta, here, nested }
}

impl Emitter {
    /// Visits this emitter and what is above it, along the tree and then the runs, the last one first, as long as the
    /// visitor says so; tells whether it came to the end. Gives up after a bounded number of steps, for many ways may
    /// lead to the same emitter.
    #[inline]
    fn walk<'e>(&'e self, mut visit: impl FnMut(&'e Self) -> bool) -> bool {
        let mut run_parents = SmallVec::<[&Self; 8]>::new();
        let mut at = self;
        for _ in 0..STEPS {
            if !visit(at) {
                return false;
            }
            if let Some(run_parent) = at.run_parent() {
                run_parents.push(run_parent);
            }
            match at.parent().or_else(|| run_parents.pop()) {
                Some(next) => at = next,
                None => return true,
            }
        }
        false
    }

    /// The first emitter from here up where somebody may hear an event whose name has one of these bits: a listener,
    /// or a pipe; or a run in another run, from where there are several ways up. None if nobody hears it (E15).
    #[inline]
    pub(crate) fn first_loud(&self, names: u64) -> Option<&Self> {
        let mut at = self;
        loop {
            if at.is_loud(names) || at.run_parent().is_some() {
                return Some(at);
            }
            at = at.parent()?;
        }
    }

    /// Tells whether anybody listens here or above, to whatever it may be. If not, an emit does nothing.
    #[must_use]
    #[inline]
    pub fn is_heard(&self) -> bool {
        // Up the tree there is one way, up to a run in another run.
        match self.first_loud(u64::MAX) {
            None => false,
            Some(at) => at.is_loud(u64::MAX) || !at.walk(|emitter| !emitter.is_loud(u64::MAX)),
        }
    }

    #[inline]
    fn is_loud(&self, names: u64) -> bool {
        self.registry().is_some_and(|registry| registry.is_loud(names))
    }

    fn address(&self) -> *const Inner {
        std::ptr::from_ref(self.inner())
    }
}
