//! The listeners of one emitter at one moment, and the lookup of the listeners that take an event.
//!
//! A few listeners are checked one by one for each event. Many listeners, or listeners with patterns, are searched once
//! per [`CacheKey`], in the registry, and the result is stored in a table. Entries are only added, and never invalidated:
//! after a change of the listeners, the next snapshot starts with an empty table.

use std::sync::Arc;

use crate::dispatch::batch::Batch;
use crate::emitter::pipe::Pipe;
use crate::matching::cache::{CacheEntry, CacheKey, MatchCache, RoleList};
use crate::matching::pattern::PatternSet;
use crate::registry::listener::{EventView, Listener, Role};
use crate::registry::listeners::Listeners;
use crate::registry::{Registry, RegistryState};

pub(crate) struct Snapshot {
    pub(crate) pipes: Box<[Arc<Pipe>]>,
    /// `true` for a run that has ended: events do not rise from here.
    pub(crate) is_closed: bool,
    /// `true` if events continue only to the emitters above: there are no pipes, and the registry is not closed.
    pub(crate) leads_up_only: bool,
    /// `true` if any of the listeners is an observer.
    pub(crate) observes: bool,
    lookup: Lookup,
}

/// The way in which the listeners of an event are found.
enum Lookup {
    /// Checks each listener. `observers` has a bit for each observer.
    Each {
        listeners: Box<[Arc<Listener>]>,
        observers: usize,
    },
    Table(Box<MatchTable>),
}

/// The matches that were found so far. The listeners themselves stay in the registry, so that a table costs the same
/// however many there are.
struct MatchTable {
    patterns: Box<[Arc<PatternSet>]>,
    cache: MatchCache,
}

/// The listeners that take an event, as found in a snapshot.
pub(crate) enum Matches {
    /// The positions of the matches, as bits.
    Few(usize),
    /// A slot of the table.
    Cached(usize),
    /// An entry that did not fit into the full table.
    Uncached(Box<CacheEntry>),
    /// The listeners have changed since the snapshot was loaded, and the event is not in the table. The next snapshot
    /// has to be asked.
    Outdated,
}

impl Matches {
    pub(crate) const NONE: Self = Self::Few(0);

    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Self::Few(0))
    }
}

/// The matches with one role, in order.
pub(crate) enum MatchedListeners<'s> {
    /// All listeners of the snapshot, and the positions of the matches as bits.
    Few(&'s [Arc<Listener>], usize),
    Listed(&'s RoleList),
}

impl Snapshot {
    pub(crate) fn of(state: &mut RegistryState) -> Self {
        let pipes: Box<[_]> = state.pipes.values().cloned().collect();
        let is_closed = state.is_closed;
        let leads_up_only = pipes.is_empty() && !is_closed;
        let observes = state.listeners.observes();
        let lookup = match &mut state.listeners {
            Listeners::Few(few) if !few.iter().any(|listener| listener.matcher.is_pattern()) => {
                Lookup::Each { listeners: few.as_slice().into(), observers: observers(few) }
            }
            listeners => {
                let patterns = listeners.renew_patterns().into();
                // About as many events will be looked up again as in the last snapshot.
                let cache = MatchCache::new(2 * state.searches);
                Lookup::Table(Box::new(MatchTable { patterns, cache }))
            }
        };
        state.searches = 0;
        Self { pipes, is_closed, leads_up_only, observes, lookup }
    }

    /// Finds the listeners that take an event. `registry` is the registry that has published this snapshot.
    #[inline(always)]
    pub(crate) fn find(&self, registry: &Registry, view: &EventView<'_>) -> Matches {
        match &self.lookup {
            Lookup::Each { listeners, .. } => {
                let mut matches = 0;
                for (at, listener) in listeners.iter().enumerate() {
                    matches |= usize::from(listener.takes(view)) << at;
                }
                Matches::Few(matches)
            }
            Lookup::Table(table) => {
                let key = CacheKey::of(view);
                match table.cache.find(&key) {
                    Ok((_, matched)) if matched.is_empty() => Matches::NONE,
                    Ok((slot, _)) => Matches::Cached(slot),
                    Err(vacant) => self.search(table, registry, view, &key, vacant),
                }
            }
        }
    }

    /// Finds the listeners among all listeners of the registry, and stores them in the table.
    #[cold]
    fn search(
        &self,
        table: &MatchTable,
        registry: &Registry,
        view: &EventView<'_>,
        key: &CacheKey<'_>,
        vacant: usize,
    ) -> Matches {
        // Sets are compiled and matched without a lock, because this takes a while.
        let mut matched = Vec::new();
        for set in &table.patterns {
            set.find(view, &mut matched);
        }
        let Some(listeners) = registry.find(self, view, &matched) else { return Matches::Outdated };
        // The result "no listeners" is remembered like any other result.
        let nobody = listeners.is_empty();
        // Another thread may have stored the same match in the meantime. Both entries are right, and later lookups
        // find the first.
        match table.cache.remember(vacant, Box::new(CacheEntry::new(key, listeners))) {
            Ok(_) if nobody => Matches::NONE,
            Ok(slot) => Matches::Cached(slot),
            Err(matched) => Matches::Uncached(matched),
        }
    }

    /// Returns the matches with one role, in order.
    #[inline(always)]
    pub(crate) fn matched<'s>(&'s self, matches: &'s Matches, role: Role) -> MatchedListeners<'s> {
        match (matches, &self.lookup) {
            (Matches::Few(positions), Lookup::Each { listeners, observers }) => match role {
                Role::Change => MatchedListeners::Few(listeners, positions & !observers),
                Role::Observe => MatchedListeners::Few(listeners, positions & observers),
            },
            (Matches::Cached(slot), Lookup::Table(table)) => match table.cache.at(*slot) {
                Some(entry) => MatchedListeners::Listed(entry.of(role)),
                None => MatchedListeners::NONE,
            },
            (Matches::Uncached(entry), _) => MatchedListeners::Listed(entry.of(role)),
            _ => MatchedListeners::NONE,
        }
    }
}

impl<'s> MatchedListeners<'s> {
    const NONE: Self = Self::Few(&[], 0);

    /// Returns the listener just before a place: the listener that `next` returned last.
    pub(crate) fn before(&self, place: usize) -> Option<&'s Arc<Listener>> {
        match *self {
            Self::Few(listeners, _) => listeners,
            Self::Listed(list) => &list.listeners,
        }
        .get(place.checked_sub(1)?)
    }

    /// Returns the first listener at or after a place, and moves the place past it.
    #[inline(always)]
    pub(crate) fn next(&self, place: &mut usize) -> Option<&'s Arc<Listener>> {
        let (listeners, at) = match *self {
            Self::Few(listeners, positions) => {
                // The next bit that is set is the next position. If no bit is left, the index is out of range.
                let left = positions >> *place;
                (listeners, if left == 0 { usize::MAX } else { *place + left.trailing_zeros() as usize })
            }
            Self::Listed(list) => (&*list.listeners, *place),
        };
        let listener = listeners.get(at)?;
        *place = at + 1;
        Some(listener)
    }

    /// Returns the batch that starts at a place, if any.
    #[inline(always)]
    pub(crate) fn batch(&self, place: usize) -> Option<&'s dyn Batch> {
        match *self {
            Self::Few(..) => None,
            Self::Listed(list) => list.batch(place),
        }
    }
}

/// Returns the positions of the observers as bits.
fn observers(listeners: &[Arc<Listener>]) -> usize {
    let bit = |(i, listener): (usize, &Arc<Listener>)| usize::from(listener.call.role() == Role::Observe) << i;
    listeners.iter().enumerate().map(bit).sum()
}
