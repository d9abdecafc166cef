//! Finds the listeners of an event, in order (E5, E6). [`emit`](super::emit) begins an emit, and the loop in
//! [`sync`](super::sync) calls the listeners that are found here.
//!
//! order(e) = e, then order(tree parent), then order(run parent), then order(target) of each pipe. An emitter that
//! occurs several times keeps its last place. Usually, a walk up the tree and up the runs finds this order, and keeps
//! the last occurrence of each emitter. If the walk gives up, for example at a pipe, a depth-first search visits the
//! parts in reverse order, and its result is reversed. The search visits each emitter only once, at its last place.

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

/// After this many emitters, the search replaces the walk, because the search visits each emitter only once.
const MAX_WALK: usize = 256;

/// The listeners that receive one event, emitter by emitter. They are fixed when the event is emitted (E10).
pub(super) struct Route {
    /// The first stop, stored inline, because most events have listeners on one emitter only.
    first: Option<RouteStop>,
    others: Option<SmallVec<[RouteStop; 3]>>,
    /// `true` if there may be observers. Most events have no observers, so the second pass is usually skipped.
    is_observed: bool,
}

/// An emitter on the way up that may have listeners for the event.
#[derive(Clone, Copy)]
struct Receiver<'e> {
    emitter: &'e Emitter,
    registry: &'e Registry,
    /// `true` if one of this emitter's runs is above the run that the event happened in.
    through: bool,
}

/// The matched listeners of one emitter.
struct RouteStop {
    snapshot: Guard<Snapshot>,
    matches: Matches,
}

/// A position in a route, just past the listener that was returned last. The route lists all listeners that may change
/// the event, emitter by emitter, and then all observers (E5).
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    role: Role,
    stop: usize,
    /// The index among the listeners with this role at this stop.
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

    /// Moves on to the observers, unless the cursor has already reached them.
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

    /// Finds all listeners of an event. Returns `false` if there are none. `from` is the first emitter that may have
    /// listeners.
    #[inline(always)]
    pub(super) fn find(&mut self, from: &Emitter, meta: &EventMeta<'_>) -> bool {
        if !self.find_along_tree(from, meta) {
            *self = Self::search(from, meta);
        }
        self.first.is_some()
    }

    /// Adds the stops up the tree and up the runs. Returns `false` if the search is needed: at a pipe, at a run that
    /// has ended, or after too many emitters.
    #[inline(always)]
    fn find_along_tree(&mut self, from: &Emitter, meta: &EventMeta<'_>) -> bool {
        let name_bits = meta.emit.name_bits;
        for emitter in from.upwards() {
            // From a run that was started in another run, two ways lead up, and they may meet. `find_along_runs`
            // handles this case.
            if emitter.run_parent().is_some() {
                *self = Self::new();
                return self.find_along_runs(from, meta);
            }
            if let Some(registry) = emitter.receiver(name_bits)
                && !self.add_stop(registry, || view_of(emitter, meta, || meta.source().is_in_part_of_run_of(emitter)))
            {
                return false;
            }
        }
        true
    }

    /// Adds the stops when several ways lead up, through the tree and through run parents.
    #[inline(never)]
    fn find_along_runs(&mut self, from: &Emitter, meta: &EventMeta<'_>) -> bool {
        let mut receivers = SmallVec::<[Receiver<'_>; 8]>::new();
        let name_bits = meta.emit.name_bits;
        let origin = meta.source().run();
        let mut below = None::<&Emitter>;
        let over = from.walk_up(|emitter| {
            // The walk visits a run's instance right after the run. For the instance, an event of a run below that run
            // is nested.
            let through = below.is_some_and(|below| below.is_run() && Some(below) != origin);
            receivers.extend(emitter.receiver(name_bits).map(|registry| Receiver { emitter, registry, through }));
            below = Some(emitter);
            true
        });
        over && (0..receivers.len()).all(|i| {
            let Receiver { emitter, registry, through } = receivers[i];
            // An emitter that occurs again keeps its last place (E5). `through` is carried over to that place.
            match receivers[i + 1..].iter_mut().find(|later| later.emitter == emitter) {
                Some(later) => {
                    later.through |= through;
                    true
                }
                None => self.add_stop(registry, || view_of(emitter, meta, || through)),
            }
        })
    }

    /// Adds the stop of an emitter, if it has matching listeners. Returns `false` if the emitter has pipes, or is the
    /// emitter of a run that has ended.
    ///
    /// The view is computed after the snapshot is loaded, so that the view is not on the stack during the load.
    #[inline(always)]
    fn add_stop<'a>(&mut self, registry: &Registry, view: impl Fn() -> EventView<'a>) -> bool {
        loop {
            let guard = registry.snapshot();
            let Some(snapshot) = guard.as_ref() else { return true };
            if !snapshot.leads_up_only {
                return false;
            }
            let matches = snapshot.find(registry, &view());
            match matches {
                Matches::Few(0) => return true,
                // The match cache was full: drop it. The next snapshot gets a larger cache, unless this cache had the
                // largest size.
                Matches::Uncached(_) => registry.forget_matches(),
                Matches::Few(_) | Matches::Cached(_) => {}
                Matches::Outdated => continue,
            }
            self.is_observed |= snapshot.observes;
            self.push(RouteStop { snapshot: guard, matches });
            return true;
        }
    }

    #[inline(always)]
    fn push(&mut self, stop: RouteStop) {
        if self.first.is_none() {
            self.first = Some(stop);
        } else {
            self.others.get_or_insert_default().push(stop);
        }
    }

    /// Finds the route up the tree, up the runs and along pipes.
    #[cold]
    fn search(from: &Emitter, meta: &EventMeta<'_>) -> Self {
        let mut stops = Vec::new();
        let mut visited = FxHashSet::default();
        let mut stack = vec![SearchStep::Enter(from.clone())];
        let instances_above = OnceCell::new();
        while let Some(step) = stack.pop() {
            match step {
                // Each emitter is entered once, however many ways and cycles lead to it (E6).
                SearchStep::Enter(emitter) if visited.insert(emitter.address()) => {
                    let instances = || instances_above.get_or_init(|| meta.source().instances_of_runs_above());
                    let view = view_of(&emitter, meta, || instances().contains(&emitter.address()));
                    let (stop, piped) = match emitter.registry() {
                        Some(registry) => {
                            registry.note_reached();
                            stop_and_targets(registry, &view)
                        }
                        None => (None, Some(Vec::new())),
                    };
                    stack.push(SearchStep::Leave(stop));
                    let Some(piped) = piped else {
                        // The run has ended: the event does not rise from here (R14).
                        emitter.log_late(|| meta.path().to_owned());
                        continue;
                    };
                    // The stack is popped from its end, so the last pipe is visited first and the tree parent last: the
                    // reverse of the final order.
                    stack.extend(emitter.parent().cloned().map(SearchStep::Enter));
                    stack.extend(emitter.run_parent().cloned().map(SearchStep::Enter));
                    stack.extend(piped.into_iter().map(SearchStep::Enter));
                }
                SearchStep::Enter(_) => {}
                SearchStep::Leave(stop) => stops.extend(stop),
            }
        }
        // The search has visited the parts in reverse order.
        let mut route = Self { is_observed: true, ..Self::new() };
        stops.into_iter().rev().for_each(|stop| route.push(stop));
        route
    }

    #[inline(always)]
    fn stop(&self, stop: usize) -> Option<&RouteStop> {
        match stop {
            0 => self.first.as_ref(),
            _ => self.others.as_ref()?.get(stop - 1),
        }
    }

    /// Returns the listeners of the emitter at the cursor. After the last emitter, the cursor moves on to the
    /// observers. After the last observer, the result is `None`.
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

    /// Returns the listener just before the cursor: the listener that was returned last.
    pub(super) fn before(&self, cursor: &Cursor) -> Option<&Arc<Listener>> {
        let stop = self.stop(cursor.stop)?;
        stop.snapshot.as_ref()?.matched(&stop.matches, cursor.role).before(cursor.place)
    }

    /// Returns the next listener and moves the cursor past it.
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

    /// Returns the first listener that would have to be awaited, if any.
    pub(super) fn first_async(&self, meta: &EventMeta<'_>) -> Option<&Arc<Listener>> {
        let mut cursor = Cursor::START;
        std::iter::from_fn(|| self.next(&mut cursor)).find(|listener| {
            listener.call.would_wait() && !listener.claims.is_spent() && listener.matcher.accepts_or_logs(meta)
        })
    }
}

/// A pending step of the search.
enum SearchStep {
    Enter(Emitter),
    Leave(Option<RouteStop>),
}

/// Returns the stop of an emitter, if it has matching listeners, and the targets of its pipes, as `targets` does.
fn stop_and_targets(registry: &Registry, view: &EventView<'_>) -> (Option<RouteStop>, Option<Vec<Emitter>>) {
    loop {
        let snapshot = registry.snapshot();
        let matches = snapshot.as_ref().map_or(Matches::NONE, |snapshot| snapshot.find(registry, view));
        match matches {
            Matches::Outdated => continue,
            Matches::Uncached(_) => registry.forget_matches(),
            Matches::Few(_) | Matches::Cached(_) => {}
        }
        let piped = targets(&snapshot);
        return ((!matches.is_none()).then_some(RouteStop { snapshot, matches }), piped);
    }
}

/// Returns the targets of the pipes. Returns `None` on the emitter of a run that has ended, because no event rises
/// through that emitter any more (R14).
fn targets(snapshot: &Guard<Snapshot>) -> Option<Vec<Emitter>> {
    let Some(snapshot) = snapshot.as_ref() else { return Some(Vec::new()) };
    if snapshot.is_closed {
        return None;
    }
    Some(snapshot.pipes.iter().filter_map(|pipe| pipe.target().cloned()).collect())
}

/// Describes an event for the emitter `listening`: emitted there, nested, or neither (E4).
///
/// Only an event that was emitted elsewhere can be nested. For an emitter in a run, such an event is nested if it
/// happened outside that run. For an emitter outside runs, it is nested if it happened below one of the emitter's own
/// runs, in a run of a different emitter. Looking for these runs is expensive, so `is_below_its_runs` is called only in
/// this last case.
#[inline]
fn view_of<'a>(
    listening: &Emitter,
    meta: &'a EventMeta<'a>,
    is_below_its_runs: impl FnOnce() -> bool,
) -> EventView<'a> {
    let source = meta.emit.source;
    let here = source == listening || source.is_run_of(listening) || source.emits_for(listening);
    let nested = !here
        && match listening.run() {
            Some(run) => source.run() != Some(run),
            // An emitter below a run's emitter is in that run, not in a run below it.
            None => is_below_its_runs() && !source.run().is_some_and(|run| run.is_run_of(listening)),
        };
    let has_other_name = here && meta.emit.facet.is_some_and(|facet| facet.other_name().is_some());
    EventView { meta, here, nested, has_other_name }
}

impl Emitter {
    /// Returns `true` if this emitter's run is below a run of `instance` in the tree. `instance` must be outside all
    /// runs.
    fn is_in_part_of_run_of(&self, instance: &Self) -> bool {
        let top = self.upwards().take_while(|emitter| emitter.node().is_in_run).last();
        top.is_some_and(|top| top.is_run_of(instance) && self.run() != Some(top))
    }

    /// Returns the addresses of the instances that have a run above the run of this emitter.
    #[cold]
    fn instances_of_runs_above(&self) -> FxHashSet<*const Node> {
        let mut instances = FxHashSet::default();
        let mut visited = FxHashSet::default();
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

    /// Visits this emitter and the emitters above it. The walk goes up the tree, and then continues from the run parent
    /// that was found last. It stops when `visit` returns `false`. Returns `true` if the walk reached the end.
    ///
    /// Gives up after `MAX_WALK` emitters and returns `false`, because an emitter is visited once for each way that
    /// leads to it.
    #[inline]
    fn walk_up<'e>(&'e self, mut visit: impl FnMut(&'e Self) -> bool) -> bool {
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

    /// Returns the first emitter, from here up the tree, that may have listeners or pipes for an event with one of
    /// these name bits. If the emitter of a run that was started in another run comes first, it is returned, because
    /// several ways lead up from there. If there is no such emitter, the event has no listeners, and the result is
    /// `None` (E15).
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

    /// Returns `true` if a listener, sink or pipe is registered here or above, for any event. If the result is `false`,
    /// an emit delivers nothing, but still returns an error if the name is not valid or is declared with another type.
    ///
    /// Returns `false` on the emitter of a run that has ended. Outside runs, the result `false` is remembered until a
    /// listener, sink or pipe is added.
    ///
    /// ```
    /// use emitree_emitter::{AnyEvent, Emitter};
    ///
    /// let app = Emitter::new();
    /// let model = app.child("model")?;
    /// assert!(!model.has_listeners());
    /// app.observe("*.*", |_: &dyn AnyEvent, _| ())?;
    /// assert!(model.has_listeners());
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use]
    #[inline]
    pub fn has_listeners(&self) -> bool {
        if self.node().is_in_run {
            self.has_listeners_in_run()
        } else {
            !self.node().no_listener_cache.holds_or(|| self.has_no_listeners_in_tree())
        }
    }

    /// Returns `true` if a listener, sink or pipe is registered here or above in the tree. Unlike
    /// [`has_listeners`](Self::has_listeners), this method ignores the emitters of parent runs. It does not check
    /// whether a run has ended, and may return `true` on the emitter of such a run.
    #[must_use]
    pub fn has_listeners_in_tree(&self) -> bool {
        let mut at = self;
        while at.node().is_in_run {
            if at.receiver(u64::MAX).is_some() {
                return true;
            }
            let Some(above) = at.parent() else { return false };
            at = above;
        }
        at.has_listeners()
    }

    /// Returns `true` if there are no listeners here or above in the tree. The emitter must be outside all runs.
    fn has_no_listeners_in_tree(&self) -> bool {
        self.first_receiver(u64::MAX).is_none()
    }

    fn has_listeners_in_run(&self) -> bool {
        // An emitter below the emitter of an ended run is still checked: it may be an instance, which receives the
        // events of its own runs.
        if self.is_run() && self.has_run_ended() {
            return false;
        }
        // Up to a run that was started in another run, there is one way up. From that run on, all ways are walked.
        match self.first_receiver(u64::MAX) {
            None => false,
            Some(at) => at.receiver(u64::MAX).is_some() || !at.walk_up(|emitter| emitter.receiver(u64::MAX).is_none()),
        }
    }

    /// Returns the registry if it may have listeners or pipes for an event with one of these name bits.
    #[inline]
    fn receiver(&self, name_bits: u64) -> Option<&Registry> {
        self.registry().filter(|registry| registry.may_receive(name_bits))
    }

    fn address(&self) -> *const Node {
        std::ptr::from_ref(self.node())
    }
}
