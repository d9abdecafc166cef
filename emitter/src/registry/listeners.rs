//! The listeners of one emitter, kept so that a change and a search cost no more if there are many of them.
//!
//! 1. A few listeners are a list in the order of calls. More of them are in two maps, under their [`Key`]s: sorted by
//!    group, and by place within a group. Patterns have a map of their own, because no event looks for their groups: sets
//!    find them, so many patterns make no other search slower.
//! 2. A search looks only at the groups that may take the event, and asks each listener that it finds there
//!    ([`Listener::takes`]). Listeners of other groups never take the event.
//! 3. Adding and removing a listener takes a number of steps that is logarithmic in the number of listeners. So does a
//!    search, for each listener that it finds. Functions, `Regex` values and the few patterns that no set covers are
//!    asked one by one.
//! 4. What is known of all listeners together (their number, name bits and observers) is counted, and not derived from
//!    all of them after each change.

use std::collections::BTreeMap;
use std::mem::take;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use crate::Matcher;
use crate::matching::pattern::{PatternSet, Patterns};
use crate::registry::group::{Group, Key, Place};
use crate::registry::listener::{EventView, Listener, Role};
use crate::rt::Facet;

/// The largest number of listeners that are kept as a list. If none of them has a pattern, an emit checks them one by
/// one, and their positions fit into the bits of a word.
pub(crate) const MAX_FEW: usize = 8;

pub(crate) enum Listeners {
    /// Higher priority first, then oldest first.
    Few(Vec<Arc<Listener>>),
    Many(Box<ManyListeners>),
}

#[derive(Default)]
pub(crate) struct ManyListeners {
    /// All listeners but those with patterns.
    by_group: BTreeMap<Key, Arc<Listener>>,
    by_pattern: BTreeMap<Key, Arc<Listener>>,
    patterns: Patterns,
    names: NameCounts,
    observers: usize,
}

impl Default for Listeners {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Listeners {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    /// Returns the bits of the names that the listeners may take.
    pub(crate) fn name_bits(&self) -> u64 {
        match self {
            Self::Few(few) => few.iter().fold(0, |bits, listener| bits | listener.matcher.name_bits()),
            Self::Many(many) => many.names.bits(),
        }
    }

    /// Returns `true` if any of the listeners is an observer.
    pub(crate) fn observes(&self) -> bool {
        match self {
            Self::Few(few) => few.iter().any(|listener| listener.call.role() == Role::Observe),
            Self::Many(many) => many.observers > 0,
        }
    }

    /// Adds a listener. It comes after all listeners of the same priority, which are older (E5).
    pub(crate) fn add(&mut self, listener: Arc<Listener>) {
        match self {
            Self::Few(few) if few.len() < MAX_FEW => {
                let place = Place::of(&listener);
                let at = few.partition_point(|other| Place::of(other) < place);
                few.insert(at, listener);
            }
            Self::Few(few) => {
                let mut many = Box::<ManyListeners>::default();
                for listener in take(few).into_iter().chain([listener]) {
                    many.add(listener);
                }
                *self = Self::Many(many);
            }
            Self::Many(many) => many.add(listener),
        }
    }

    /// Removes a listener, unless it was already removed.
    pub(crate) fn remove(&mut self, listener: &Listener) -> Option<Arc<Listener>> {
        let removed = match self {
            Self::Few(few) => {
                let at = few.iter().position(|other| other.id == listener.id)?;
                few.remove(at)
            }
            Self::Many(many) => {
                let removed = many.map_of(listener).remove(&Key::of(listener))?;
                many.count_removed(&removed);
                removed
            }
        };
        self.shrink();
        Some(removed)
    }

    /// Removes the listeners that `should_remove` selects.
    pub(crate) fn remove_all(&mut self, should_remove: impl Fn(&Listener) -> bool) -> Vec<Arc<Listener>> {
        let removed = match self {
            Self::Few(few) => few.extract_if(.., |listener| should_remove(listener)).collect(),
            Self::Many(many) => many.remove_in(.., &should_remove),
        };
        self.shrink();
        removed
    }

    /// Removes the listeners that `should_remove` selects among the listeners with an equal matcher.
    pub(crate) fn remove_equal(
        &mut self,
        matcher: &Matcher,
        should_remove: impl Fn(&Listener) -> bool,
    ) -> Vec<Arc<Listener>> {
        let should_remove = |listener: &Listener| listener.matcher == *matcher && should_remove(listener);
        let Self::Many(many) = self else { return self.remove_all(should_remove) };
        let mut removed = Vec::new();
        for keys in Group::keys_of(matcher) {
            removed.append(&mut many.remove_in(keys, &should_remove));
        }
        self.shrink();
        removed
    }

    /// Makes a list of the listeners that are left after a removal, if they are few.
    fn shrink(&mut self) {
        let Self::Many(many) = self else { return };
        if many.len() <= MAX_FEW {
            let mut few: Vec<_> = take(&mut many.by_group).into_values().collect();
            few.extend(take(&mut many.by_pattern).into_values());
            few.sort_unstable_by_key(|listener| Place::of(listener));
            *self = Self::Few(few);
        }
    }

    /// Brings the sets of patterns up to date, and returns them.
    pub(crate) fn renew_patterns(&mut self) -> &[Arc<PatternSet>] {
        match self {
            Self::Few(_) => &[],
            Self::Many(many) => many.patterns.renew(&many.by_pattern),
        }
    }

    /// Returns `true` if so many patterns are not covered by a set that the sets should be renewed at once.
    pub(crate) fn has_many_uncovered_patterns(&self) -> bool {
        matches!(self, Self::Many(many) if many.patterns.has_many_uncovered())
    }

    /// Finds the listeners that take an event, in the order of calls. `matched` are the members of the sets of patterns
    /// that take the event's name or path.
    pub(crate) fn find(&self, view: &EventView<'_>, matched: &[Key]) -> Vec<Arc<Listener>> {
        match self {
            Self::Few(few) => few.iter().filter(|listener| listener.takes(view)).cloned().collect(),
            Self::Many(many) => many.find(view, matched),
        }
    }
}

impl ManyListeners {
    fn len(&self) -> usize {
        self.by_group.len() + self.by_pattern.len()
    }

    fn map_of(&mut self, listener: &Listener) -> &mut BTreeMap<Key, Arc<Listener>> {
        if listener.matcher.is_pattern() { &mut self.by_pattern } else { &mut self.by_group }
    }

    fn add(&mut self, listener: Arc<Listener>) {
        let key = Key::of(&listener);
        if listener.matcher.is_pattern() {
            self.patterns.add(key);
        }
        self.names.add(listener.matcher.name_bits());
        self.observers += usize::from(listener.call.role() == Role::Observe);
        self.map_of(&listener).insert(key, listener);
    }

    /// Undoes what [`add`](Self::add) has counted, after the listener was taken out of its map.
    fn count_removed(&mut self, listener: &Listener) {
        if listener.matcher.is_pattern() {
            self.patterns.remove(&Key::of(listener));
        }
        self.names.remove(listener.matcher.name_bits());
        self.observers -= usize::from(listener.call.role() == Role::Observe);
    }

    fn remove_in(
        &mut self,
        keys: impl RangeBounds<Key> + Clone,
        should_remove: &impl Fn(&Listener) -> bool,
    ) -> Vec<Arc<Listener>> {
        let mut removed: Vec<_> =
            self.by_group.extract_if(keys.clone(), |_, listener| should_remove(listener)).collect();
        removed.extend(self.by_pattern.extract_if(keys, |_, listener| should_remove(listener)));
        for (_, listener) in &removed {
            self.count_removed(listener);
        }
        removed.into_iter().map(|(_, listener)| listener).collect()
    }

    fn find(&self, view: &EventView<'_>, matched: &[Key]) -> Vec<Arc<Listener>> {
        let meta = view.meta;
        let payload = Some(meta.emit.carried.id);
        let mut found = Vec::new();
        // A name, `"*"` and a second name only take events that were emitted here (E4).
        if view.here {
            self.find_in(Group::name(meta.emit.name.as_str()).keys(), view, &mut found);
            if let Some(other_name) = meta.emit.facet.and_then(Facet::other_name) {
                self.find_in(Group::name(other_name.as_str()).keys(), view, &mut found);
            }
            self.find_in(Group::Own(None).keys(), view, &mut found);
            self.find_in(Group::Own(payload).keys(), view, &mut found);
        }
        // The path is only joined if a listener names one.
        if self.by_group.range(Group::paths()).next().is_some() {
            self.find_in(Group::path(meta.path()).keys(), view, &mut found);
        }
        self.find_in(Group::Every(None).keys(), view, &mut found);
        self.find_in(Group::Every(payload).keys(), view, &mut found);
        self.find_in(Group::others(), view, &mut found);
        for key in self.patterns.uncovered() {
            if let Some(listener) = self.by_pattern.get(key)
                && listener.takes(view)
            {
                found.push((key.place(), listener));
            }
        }
        for key in matched {
            // The set has matched the pattern. Nesting and type remain to be checked. A member whose listener was
            // removed is still in the set.
            if let Some(listener) = self.by_pattern.get(key)
                && (listener.takes_nested || !view.nested)
                && listener.may_take_type(view)
            {
                found.push((key.place(), listener));
            }
        }
        found.sort_unstable_by_key(|(place, _)| *place);
        // The name and the second name of an event may be in the same group.
        found.dedup_by_key(|(place, _)| *place);
        found.into_iter().map(|(_, listener)| Arc::clone(listener)).collect()
    }

    fn find_in<'s>(&'s self, keys: Range<Key>, view: &EventView<'_>, found: &mut Vec<(Place, &'s Arc<Listener>)>) {
        for (key, listener) in self.by_group.range(keys) {
            if listener.takes(view) {
                found.push((key.place(), listener));
            }
        }
    }
}

/// Counts the listeners that may take the names of each bit.
struct NameCounts([u32; 64]);

impl Default for NameCounts {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl NameCounts {
    fn add(&mut self, bits: u64) {
        for (bit, count) in self.0.iter_mut().enumerate() {
            *count += u32::from(bits >> bit & 1 == 1);
        }
    }

    fn remove(&mut self, bits: u64) {
        for (bit, count) in self.0.iter_mut().enumerate() {
            *count -= u32::from(bits >> bit & 1 == 1);
        }
    }

    fn bits(&self) -> u64 {
        self.0.iter().enumerate().map(|(bit, count)| u64::from(*count > 0) << bit).sum()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use crate::{AnyEvent, Emitter, IntoMatcher, Matcher, Options, Subscription};

    thread_local! {
        static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    /// Counts a comparison of two keys, or a listener that is asked whether it takes an event.
    pub(crate) fn count_step() {
        STEPS.set(STEPS.get() + 1);
    }

    fn steps_of(act: impl FnOnce()) -> usize {
        let before = STEPS.get();
        act();
        STEPS.get() - before
    }

    fn listen(emitter: &Emitter, matcher: impl IntoMatcher) -> Subscription {
        emitter.on(matcher, |_: &mut dyn AnyEvent, _| ()).expect("a matcher")
    }

    fn regex(text: &str) -> Matcher {
        Matcher::regex(text).expect("a regex")
    }

    /// Registers a listener that does not take an event `x`. The number makes its name unique.
    type Fill = fn(&Emitter, usize);

    const FILLS: [(&str, Fill, usize); 7] = [
        ("names", |emitter, i| drop(listen(emitter, format!("name_{i}"))), 10_000),
        ("paths", |emitter, i| drop(listen(emitter, format!("a.name_{i}"))), 10_000),
        ("observers of a type", |emitter, _| drop(emitter.observe("*", |_: &String, _| ())), 10_000),
        ("observers of a type everywhere", |emitter, _| drop(emitter.observe("*.*", |_: &String, _| ())), 10_000),
        ("listeners of one name", |emitter, _| drop(listen(emitter, "name")), 10_000),
        ("globs", |emitter, i| drop(listen(emitter, format!("name_{i}_*"))), 2000),
        ("regexes", |emitter, i| drop(listen(emitter, regex(&format!("name_{i}$")))), 2000),
    ];

    fn log2(n: usize) -> usize {
        n.ilog2() as usize
    }

    #[test]
    fn removing_one_of_n_listeners_takes_logarithmically_many_steps() {
        for n in [500, 10_000] {
            let emitter = Emitter::new();
            let of_a_name: Vec<_> = (0..n).map(|_| listen(&emitter, "x")).collect();
            for i in 0..n {
                listen(&emitter, format!("name_{i}"));
                emitter.with(Options::new().once()).on("once", |_: &mut dyn AnyEvent, _| ()).expect("a matcher");
            }
            for at in [0, n / 2, n - 1] {
                let steps = steps_of(|| assert!(of_a_name[at].off()));
                assert!(steps <= 20 * log2(n), "{steps} steps to remove listener {at} of {n}");
                let matcher = format!("name_{at}");
                let steps = steps_of(|| assert!(emitter.off_matching(&matcher).is_ok_and(|removed| removed == 1)));
                assert!(steps <= 20 * log2(n), "{steps} steps to remove the listener of one of {n} names");
            }
            // Each of these listeners is removed after its call.
            let steps = steps_of(|| emitter.emit_now("once", &mut ()).expect("no listener fails"));
            assert!(steps <= n * 20 * log2(n), "{} steps for each of {n} last calls", steps / n);
            assert_eq!(emitter.listener_count(), 2 * n - 6);
        }
    }

    #[test]
    fn removing_one_of_n_patterns_takes_logarithmically_many_steps_on_average() {
        let emitter = Emitter::new();
        let n = 1500;
        let globs: Vec<_> = (0..n).map(|i| listen(&emitter, format!("name_{i}_*"))).collect();
        emitter.emit_now("x", &mut ()).expect("no listener fails");
        let steps = steps_of(|| {
            for (i, glob) in globs.iter().enumerate() {
                let by_matcher = i % 2 == 0;
                let matcher = format!("name_{i}_*");
                assert!(if by_matcher { emitter.off_matching(matcher).is_ok() } else { glob.off() });
            }
        });
        assert!(steps <= n * 60 * log2(n), "{} steps for each of {n}", steps / n);
        assert_eq!(emitter.listener_count(), 0);
    }

    #[test]
    fn on_and_emit_in_turn_take_logarithmically_many_steps_beside_n_listeners() {
        for (what, fill, n) in FILLS {
            for n in [n / 10, n] {
                let emitter = Emitter::new();
                for i in 0..n {
                    fill(&emitter, i);
                }
                emitter.emit_now("x", &mut ()).expect("no listener fails");
                let turns = 200;
                let steps = steps_of(|| {
                    for i in 0..turns {
                        let matcher = if i % 2 == 0 { format!("other_{i}") } else { format!("other_{i}_*") };
                        listen(&emitter, matcher);
                        emitter.emit_now("x", &mut ()).expect("no listener fails");
                    }
                });
                assert!(steps <= turns * 150 * log2(n), "{} steps for each turn beside {n} {what}", steps / turns);
            }
        }
    }
}
