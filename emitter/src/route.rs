//! Where an event goes, and in which order (E5, E6).
//!
//! order(e) = e, then order(tree parent), then order(run parent), then order of each pipe; what occurs in a later
//! part is left out of the earlier ones. Without pipes that is a walk up the tree and up the runs, which keeps the
//! last of each emitter it meets twice. With pipes it is a depth-first search that visits the parts backwards and
//! is read backwards: what a later part has visited is not visited again.

use std::any::TypeId;
use std::sync::Arc;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::emitter::Inner;
use crate::listener::{Listener, Role, Sighting};
use crate::registry::Registry;
use crate::snapshot::{Hits, Snapshot};
use crate::sync::Guard;
use crate::{Emitter, EventMeta};

/// Emitters with listeners that a walk takes before it gives up in favour of the search, which visits each once.
const STEPS: usize = 256;

/// The listeners that hear one event, emitter by emitter, fixed when it is emitted (E10).
pub(crate) struct Route {
    stops: SmallVec<[Stop; 4]>,
}

/// One emitter's part.
struct Stop {
    snapshot: Guard<Snapshot>,
    hits: Hits,
}

/// A place in a route, for one role: everything before it has been given out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    stop: usize,
    hit: u32,
}

impl Route {
    /// Finds everybody who hears an event. Empty if nobody does.
    #[inline]
    pub(crate) fn of(meta: &EventMeta<'_>, payload: TypeId) -> Self {
        let mut loud = SmallVec::<[&Emitter; 4]>::new();
        if meta.source().walk(&mut loud) {
            if loud.is_empty() {
                return Self { stops: SmallVec::new() };
            }
            if let Some(route) = Self::along(&loud, meta, payload) {
                return route;
            }
        }
        Self::search(meta, payload)
    }

    /// The route along emitters with listeners; none if one of them has pipes.
    #[inline]
    fn along(loud: &[&Emitter], meta: &EventMeta<'_>, payload: TypeId) -> Option<Self> {
        let mut stops = SmallVec::new();
        for (i, emitter) in loud.iter().enumerate() {
            if loud[i + 1..].contains(emitter) {
                continue;
            }
            let Some(registry) = emitter.registry() else { continue };
            let snapshot = registry.snapshot();
            if snapshot.as_ref().is_some_and(|snapshot| !snapshot.pipes.is_empty()) {
                return None;
            }
            stops.extend(Stop::at(registry, snapshot, &sighting(emitter, meta, payload)));
        }
        Some(Self { stops })
    }

    /// The route along everything, pipes too.
    #[cold]
    fn search(meta: &EventMeta<'_>, payload: TypeId) -> Self {
        let mut stops = SmallVec::new();
        let mut visited = FxHashSet::default();
        let mut stack = vec![Step::Enter(meta.source().clone())];
        while let Some(step) = stack.pop() {
            match step {
                Step::Enter(emitter) if visited.insert(emitter.address()) => {
                    let sighting = sighting(&emitter, meta, payload);
                    let snapshot = emitter.registry().map(Registry::snapshot);
                    let (piped, stop) = match (emitter.registry(), snapshot) {
                        (Some(registry), Some(snapshot)) => {
                            (targets(&snapshot, &sighting), Stop::at(registry, snapshot, &sighting))
                        }
                        _ => (Vec::new(), None),
                    };
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
        Self { stops }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// The next listener of a role; the cursor moves behind it.
    #[inline]
    pub(crate) fn next(&self, role: Role, cursor: &mut Cursor) -> Option<&Arc<Listener>> {
        while let Some(stop) = self.stops.get(cursor.stop) {
            let snapshot = stop.snapshot.as_ref()?;
            if let Some((after, listener)) = snapshot.hit(&stop.hits, role, cursor.hit) {
                cursor.hit = after;
                return Some(listener);
            }
            *cursor = Cursor { stop: cursor.stop + 1, hit: 0 };
        }
        None
    }

    /// The first async listener that hears the event, if any.
    pub(crate) fn first_async(&self, meta: &EventMeta<'_>) -> Option<&Arc<Listener>> {
        [Role::Change, Role::Observe].into_iter().find_map(|role| {
            let mut cursor = Cursor::default();
            std::iter::from_fn(|| self.next(role, &mut cursor))
                .find(|listener| !listener.call.is_sync() && listener.matcher.says_calmly(meta))
        })
    }
}

enum Step {
    Enter(Emitter),
    Leave(Option<Stop>),
}

impl Stop {
    #[inline]
    fn at(registry: &Registry, snapshot: Guard<Snapshot>, sighting: &Sighting<'_>) -> Option<Self> {
        let hits = snapshot.as_ref()?.find(sighting)?;
        if matches!(hits, Hits::Own(_)) {
            registry.forget_matches();
        }
        Some(Self { snapshot, hits })
    }
}

fn targets(snapshot: &Guard<Snapshot>, sighting: &Sighting<'_>) -> Vec<Emitter> {
    let pipes = snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.pipes);
    pipes.iter().filter(|pipe| pipe.takes(sighting)).map(|pipe| pipe.target.clone()).collect()
}

/// How an emitter sees an event (E4).
#[inline]
fn sighting<'a>(listening: &Emitter, meta: &'a EventMeta<'a>, payload: TypeId) -> Sighting<'a> {
    let source = meta.source();
    let here = source == listening || source.is_run_of(listening);
    let nested = listening.run().is_some_and(|run| source.run() != Some(run));
    Sighting { meta, payload, own: here && meta.is_plain(), nested }
}

impl Emitter {
    /// Collects this emitter and what is above it, as far as somebody listens there, along the tree and the runs.
    /// Gives up after a bounded number of steps.
    #[inline]
    fn walk<'e>(&'e self, loud: &mut SmallVec<[&'e Self; 4]>) -> bool {
        let mut at = self;
        let mut run_parents = SmallVec::<[&Self; 4]>::new();
        for _ in 0..STEPS {
            if at.is_loud() {
                loud.push(at);
            }
            run_parents.extend(at.run_parent());
            match at.parent().or_else(|| run_parents.pop()) {
                Some(next) => at = next,
                None => return true,
            }
        }
        false
    }

    /// Nobody listens here or above, along the tree, the runs, and (as a pipe is somebody) the pipes (E15).
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        let mut loud = SmallVec::new();
        self.walk(&mut loud) && loud.is_empty()
    }

    #[inline]
    fn is_loud(&self) -> bool {
        self.registry().is_some_and(|registry| !registry.is_quiet())
    }

    fn address(&self) -> *const Inner {
        std::ptr::from_ref(self.inner())
    }
}
