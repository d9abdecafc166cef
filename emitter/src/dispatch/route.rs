//! Where an event goes, and in which order (E5, E6).
//!
//! order(e) = e, then order(tree parent), then order(run parent), then order of each pipe; what occurs in a later
//! part is left out of the earlier ones. Without pipes that is a walk up the tree and up the runs, which keeps the
//! last of each emitter it meets twice. With pipes it is a depth-first search that visits the parts backwards and
//! is read backwards: what a later part has visited is not visited again.

use std::cell::OnceCell;
use std::sync::Arc;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::emitter::Node;
use crate::matching::snapshot::{MatchedListeners, Matches, Snapshot};
use crate::registry::Registry;
use crate::registry::listener::{EventView, Listener, Role};
use crate::sync::Guard;
use crate::{Emitter, EventMeta};

/// Emitters with listeners that a walk takes before it gives up in favour of the search, which visits each once.
const MAX_WALK: usize = 256;

/// The listeners that receive one event, emitter by emitter, fixed when it is emitted (E10).
pub(super) struct Route {
    /// Most events are heard at one emitter.
    first: Option<Stop>,
    others: Option<SmallVec<[Stop; 3]>>,
    /// Whether somebody on it may observe: mostly nobody does, and it is gone through only once.
    is_observed: bool,
}

/// An emitter on the way up where somebody listens.
#[derive(Clone, Copy)]
struct Receiver<'e> {
    emitter: &'e Emitter,
    registry: &'e Registry,
    /// Whether the way leads through a run of it, above the run that the event happened in.
    through: bool,
}

/// One emitter's part.
struct Stop {
    snapshot: Guard<Snapshot>,
    matches: Matches,
}

/// A place in a route: everything before it has been given out. All that may change the event come first, emitter by emitter, then all
/// that observe it (E5).
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    role: Role,
    stop: usize,
    /// Among the listeners of that role at that stop.
    pub(super) place: usize,
}

impl Cursor {
    pub(super) const START: Self = Self { role: Role::Change, stop: 0, place: 0 };
    const OBSERVERS: Self = Self { role: Role::Observe, stop: 0, place: 0 };

    /// Moves on to the next emitter.
    #[inline(always)]
    pub(super) fn pass_emitter(&mut self) {
        self.stop += 1;
        self.place = 0;
    }

    /// Moves on to those that observe the event.
    pub(super) fn skip_changing(&mut self) {
        if !self.is_observing() {
            *self = Self::OBSERVERS;
        }
    }

    pub(super) fn is_observing(&self) -> bool {
        self.role == Role::Observe
    }
}

impl Route {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { first: None, others: None, is_observed: false }
    }

    /// Finds everybody who receives an event; returns whether anybody does. Nobody receives it before it comes to `from`.
    #[inline(always)]
    pub(super) fn find(&mut self, from: &Emitter, meta: &EventMeta<'_>) -> bool {
        if !self.find_along_tree(from, meta) {
            *self = Self::search(from, meta);
        }
        self.first.is_some()
    }

    /// Adds the stops along the tree and the runs. Gives up where there are pipes, a run that has ended, or too much to walk.
    #[inline(always)]
    fn find_along_tree(&mut self, from: &Emitter, meta: &EventMeta<'_>) -> bool {
        let name_bits = meta.emit.name_bits;
        for emitter in from.upwards() {
            if emitter.run_parent().is_some() {
                *self = Self::new();
                return self.find_along_runs(from, meta);
            }
            if let Some(registry) = emitter.receiver(name_bits)
                && !self.add_stop(registry, || view(emitter, meta, || meta.source().is_in_part_of_run_of(emitter)))
            {
                return false;
            }
        }
        true
    }

    /// The same where there are several ways up.
    #[inline(never)]
    fn find_along_runs(&mut self, from: &Emitter, meta: &EventMeta<'_>) -> bool {
        let mut receivers = SmallVec::<[Receiver<'_>; 8]>::new();
        let (name_bits, origin, mut below) = (meta.emit.name_bits, meta.source().run(), None::<&Emitter>);
        let over = from.walk(|emitter| {
            // Behind a run comes its instance.
            let through = below.is_some_and(|below| below.is_run() && Some(below) != origin);
            receivers.extend(emitter.receiver(name_bits).map(|registry| Receiver { emitter, registry, through }));
            below = Some(emitter);
            true
        });
        over && (0..receivers.len()).all(|i| {
            let Receiver { emitter, registry, through } = receivers[i];
            // What occurs later is left out here (E5), and known there to be come to in this way as well.
            match receivers[i + 1..].iter_mut().find(|later| later.emitter == emitter) {
                Some(later) => {
                    later.through |= through;
                    true
                }
                None => self.add_stop(registry, || view(emitter, meta, || through)),
            }
        })
    }

    /// Adds the part of an emitter, if it has any. Gives up if it has pipes, or nothing rises through it. How the emitter sees the event is found
    /// after its snapshot is loaded: else that would be kept on the stack meanwhile.
    #[inline(always)]
    fn add_stop<'a>(&mut self, registry: &Registry, view: impl FnOnce() -> EventView<'a>) -> bool {
        let guard = registry.snapshot();
        let Some(snapshot) = guard.as_ref() else { return true };
        if !snapshot.leads_up_only {
            return false;
        }
        let matches = snapshot.find(&view());
        match matches {
            Matches::Few(0) => return true,
            // No room was left to remember the match: the next snapshot has more.
            Matches::Uncached(_) => registry.forget_matches(),
            Matches::Few(_) | Matches::Cached(_) => {}
        }
        self.is_observed |= snapshot.observes;
        self.push(Stop { snapshot: guard, matches });
        true
    }

    #[inline(always)]
    fn push(&mut self, stop: Stop) {
        if self.first.is_none() {
            self.first = Some(stop);
        } else {
            self.others.get_or_insert_default().push(stop);
        }
    }

    /// The route along everything, pipes too.
    #[cold]
    fn search(from: &Emitter, meta: &EventMeta<'_>) -> Self {
        let mut stops = Vec::new();
        let mut visited = FxHashSet::default();
        let mut stack = vec![SearchStep::Enter(from.clone())];
        let instances_above = OnceCell::new();
        while let Some(step) = stack.pop() {
            match step {
                SearchStep::Enter(emitter) if visited.insert(emitter.address()) => {
                    let instances = || instances_above.get_or_init(|| meta.source().instances_of_runs_above());
                    let view = view(&emitter, meta, || instances().contains(&emitter.address()));
                    let (stop, piped) = emitter.registry().map_or((None, Some(Vec::new())), |registry| {
                        let snapshot = registry.snapshot();
                        let piped = targets(&snapshot, &view);
                        let matches = snapshot.as_ref().map_or(Matches::NONE, |snapshot| snapshot.find(&view));
                        if matches!(matches, Matches::Uncached(_)) {
                            registry.forget_matches();
                        }
                        ((!matches.is_none()).then_some(Stop { snapshot, matches }), piped)
                    });
                    stack.push(SearchStep::Leave(stop));
                    let Some(piped) = piped else {
                        emitter.count_late(|| meta.path().to_owned());
                        continue;
                    };
                    // What is pushed last is visited first: the last pipe, and the tree parent at the end.
                    stack.extend(emitter.parent().cloned().map(SearchStep::Enter));
                    stack.extend(emitter.run_parent().cloned().map(SearchStep::Enter));
                    stack.extend(piped.into_iter().map(SearchStep::Enter));
                }
                SearchStep::Enter(_) => {}
                SearchStep::Leave(stop) => stops.extend(stop),
            }
        }
        let mut route = Self { is_observed: true, ..Self::new() };
        stops.into_iter().rev().for_each(|stop| route.push(stop));
        route
    }

    #[inline(always)]
    fn stop(&self, stop: usize) -> Option<&Stop> {
        match stop {
            0 => self.first.as_ref(),
            _ => self.others.as_ref()?.get(stop - 1),
        }
    }

    /// The listeners of the emitter at the cursor, which moves on to the observers behind the last emitter. None behind all of them.
    #[inline(always)]
    pub(super) fn listeners(&self, cursor: &mut Cursor) -> Option<MatchedListeners<'_>> {
        loop {
            if let Some(stop) = self.stop(cursor.stop) {
                return Some(stop.snapshot.as_ref()?.matched(&stop.matches, cursor.role));
            }
            if !self.is_observed || cursor.is_observing() {
                return None;
            }
            *cursor = Cursor::OBSERVERS;
        }
    }

    /// The listener that was given out last.
    pub(super) fn before(&self, cursor: &Cursor) -> Option<&Arc<Listener>> {
        let stop = self.stop(cursor.stop)?;
        stop.snapshot.as_ref()?.matched(&stop.matches, cursor.role).before(cursor.place)
    }

    /// The next listener; the cursor moves behind it.
    fn next(&self, cursor: &mut Cursor) -> Option<&Arc<Listener>> {
        loop {
            let listeners = self.listeners(cursor)?;
            let next = listeners.next(&mut cursor.place);
            if next.is_some() {
                return next;
            }
            cursor.pass_emitter();
        }
    }

    /// The first listener that receives the event and has to be awaited, if any.
    pub(super) fn first_async(&self, meta: &EventMeta<'_>) -> Option<&Arc<Listener>> {
        let mut cursor = Cursor::START;
        std::iter::from_fn(|| self.next(&mut cursor)).find(|listener| {
            listener.call.would_wait() && !listener.claims.is_spent() && listener.matcher.accepts_or_logs(meta)
        })
    }
}

enum SearchStep {
    Enter(Emitter),
    Leave(Option<Stop>),
}

/// Where pipes lead. None where nothing leads anywhere: nothing rises through a run that has ended (R14).
fn targets(snapshot: &Guard<Snapshot>, view: &EventView<'_>) -> Option<Vec<Emitter>> {
    let snapshot = snapshot.as_ref();
    let pipes = snapshot.map_or(&[][..], |snapshot| &snapshot.pipes);
    let piped = || pipes.iter().filter_map(|pipe| pipe.target_for(view)).collect();
    snapshot.is_none_or(|snapshot| !snapshot.is_closed).then(piped)
}

/// How an emitter sees an event (E4). An event happened below an emitter's runs if above the run that it happened in there is a
/// run of that emitter; that is asked for only where it matters.
#[inline]
fn view<'a>(listening: &Emitter, meta: &'a EventMeta<'a>, is_below_its_runs: impl FnOnce() -> bool) -> EventView<'a> {
    let source = meta.emit.source;
    let here = source == listening || source.is_run_of(listening) || source.emits_for(listening);
    let nested = !here
        && match listening.run() {
            Some(run) => source.run() != Some(run),
            // A part of a run is in that run, and not below it.
            None => is_below_its_runs() && !source.run().is_some_and(|run| run.is_run_of(listening)),
        };
    let has_other_name = here && meta.emit.facet.is_some_and(|facet| facet.other_name().is_some());
    EventView { meta, here, nested, has_other_name }
}

impl Emitter {
    /// Whether it is in a part of a run of that instance, and in a run of that part: then the tree leads from one run to the other.
    fn is_in_part_of_run_of(&self, instance: &Self) -> bool {
        let top = self.upwards().take_while(|emitter| emitter.node().is_in_run).last();
        top.is_some_and(|top| top.is_run_of(instance) && self.run() != Some(top))
    }

    /// The addresses of the instances that have a run above the one which this emitter is in.
    #[cold]
    fn instances_of_runs_above(&self) -> FxHashSet<*const Node> {
        let (mut instances, mut visited) = (FxHashSet::default(), FxHashSet::default());
        let Some(run) = self.run() else { return instances };
        let above = |emitter: &Self| [emitter.parent().cloned(), emitter.run_parent().cloned()].into_iter().flatten();
        let mut left: Vec<Self> = above(run).collect();
        while let Some(emitter) = left.pop() {
            if visited.insert(emitter.address()) {
                instances.extend(emitter.parent().filter(|_| emitter.is_run()).map(Self::address));
                left.extend(above(&emitter));
            }
        }
        instances
    }

    fn is_run(&self) -> bool {
        self.node().run.is_some()
    }

    /// Visits this emitter and what is above it, along the tree and then the runs, the last one first, as long as the
    /// visitor says so; tells whether it came to the end. Gives up after a bounded number of steps, for many ways may
    /// lead to the same emitter.
    #[inline]
    fn walk<'e>(&'e self, mut visit: impl FnMut(&'e Self) -> bool) -> bool {
        let mut run_parents = SmallVec::<[&Self; 8]>::new();
        let mut at = self;
        for _ in 0..MAX_WALK {
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
    pub(crate) fn first_receiver(&self, name_bits: u64) -> Option<&Self> {
        let mut at = self;
        loop {
            if at.receiver(name_bits).is_some() || at.run_parent().is_some() {
                return Some(at);
            }
            at = at.parent()?;
        }
    }

    /// Tells whether anybody listens here or above, to whatever it may be. If not, an emit does nothing.
    ///
    /// On a run that has ended nobody does. What is found outside of runs is remembered until somebody begins to listen there.
    #[must_use]
    #[inline]
    pub fn is_heard(&self) -> bool {
        if self.node().is_in_run {
            self.is_heard_in_run()
        } else {
            !self.node().no_listener_cache.holds_or(|| self.has_no_listeners_in_tree())
        }
    }

    /// Returns `true` if there are listeners here or above in the tree. Unlike [`is_heard`](Self::is_heard) it does not look at the
    /// runs that a run was started in, nor whether a run has ended.
    #[must_use]
    pub fn is_heard_in_tree(&self) -> bool {
        let mut at = self;
        while at.node().is_in_run {
            if at.receiver(u64::MAX).is_some() {
                return true;
            }
            let Some(above) = at.parent() else { return false };
            at = above;
        }
        at.is_heard()
    }

    /// Whether nobody listens from here up the tree, which is outside of runs.
    fn has_no_listeners_in_tree(&self) -> bool {
        self.first_receiver(u64::MAX).is_none()
    }

    fn is_heard_in_run(&self) -> bool {
        // What is below it may be an instance, whose runs are heard there.
        if self.is_run() && self.has_run_ended() {
            return false;
        }
        // Up the tree there is one way, up to a run in another run.
        match self.first_receiver(u64::MAX) {
            None => false,
            Some(at) => at.receiver(u64::MAX).is_some() || !at.walk(|emitter| emitter.receiver(u64::MAX).is_none()),
        }
    }

    /// Those who may hear an event whose name has one of these bits.
    #[inline]
    fn receiver(&self, name_bits: u64) -> Option<&Registry> {
        self.registry().filter(|registry| registry.may_receive(name_bits))
    }

    fn address(&self) -> *const Node {
        std::ptr::from_ref(self.node())
    }
}
