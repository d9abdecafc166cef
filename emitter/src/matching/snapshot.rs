//! The listeners of one emitter at one moment, and the lookup of the listeners that take an event.
//!
//! A few listeners are checked one by one for each event. Many listeners, or listeners with patterns, are checked once
//! per [`CacheKey`], and the result is stored in a table. Entries are only added, and never invalidated: after a change
//! of the listeners, the next snapshot starts with an empty table.

use std::sync::Arc;

use crate::dispatch::batch::Batch;
use crate::emitter::pipe::Pipe;
use crate::matching::cache::{CacheEntry, CacheKey, MatchCache, RoleList};
use crate::matching::pattern::{PatternIndex, PatternSet};
use crate::registry::RegistryState;
use crate::registry::listener::{EventView, Listener, Role};

/// The largest number of listeners that are checked one by one. Their positions fit into the bits of a word.
const MAX_ASKED_EACH: usize = 8;
/// The smallest and the largest capacity with which a table is created.
const CACHE_CAPACITY: std::ops::RangeInclusive<usize> = 16..=8192;

pub(crate) struct Snapshot {
    pub(crate) listeners: Box<[Arc<Listener>]>,
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
        observers: usize,
    },
    Table(Box<MatchTable>),
}

struct MatchTable {
    /// Positions of listeners that have no pattern, or whose pattern no set covers.
    singly: Box<[u32]>,
    patterns: PatternIndex,
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
        let listeners: Box<[_]> = state.listeners.as_slice().into();
        let pipes: Box<[_]> = state.pipes.as_slice().into();
        let is_closed = state.is_closed;
        let leads_up_only = pipes.is_empty() && !is_closed;
        let few = listeners.len() <= MAX_ASKED_EACH && !listeners.iter().any(|listener| listener.matcher.is_pattern());
        let lookup = if few {
            Lookup::Each { observers: observers(&listeners) }
        } else {
            state.cache_capacity = state.cache_capacity.clamp(*CACHE_CAPACITY.start(), *CACHE_CAPACITY.end());
            let capacity = state.cache_capacity;
            Lookup::Table(Box::new(MatchTable::new(&listeners, state.renew_patterns(), capacity)))
        };
        let observes = listeners.iter().any(|listener| listener.call.role() == Role::Observe);
        Self { listeners, pipes, is_closed, leads_up_only, observes, lookup }
    }

    /// Finds the listeners that take an event.
    #[inline(always)]
    pub(crate) fn find(&self, view: &EventView<'_>) -> Matches {
        match &self.lookup {
            Lookup::Each { .. } => {
                let mut matches = 0;
                for (at, listener) in self.listeners.iter().enumerate() {
                    matches |= usize::from(listener.takes(view)) << at;
                }
                Matches::Few(matches)
            }
            Lookup::Table(table) => table.find(&self.listeners, view),
        }
    }

    /// Returns the matches with one role, in order.
    #[inline(always)]
    pub(crate) fn matched<'s>(&'s self, matches: &'s Matches, role: Role) -> MatchedListeners<'s> {
        match (matches, &self.lookup) {
            (Matches::Few(positions), Lookup::Each { observers }) => match role {
                Role::Change => MatchedListeners::Few(&self.listeners, positions & !observers),
                Role::Observe => MatchedListeners::Few(&self.listeners, positions & observers),
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

impl MatchTable {
    fn new(listeners: &[Arc<Listener>], patterns: &[Arc<PatternSet>], capacity: usize) -> Self {
        let patterns = PatternIndex::new(patterns, listeners);
        // Patterns that are covered by a set are not matched again one by one.
        let covered = patterns.covered();
        let singly = (0..).take(listeners.len()).filter(|at| !covered.contains(at)).collect();
        Self { singly, patterns, cache: MatchCache::new(capacity) }
    }

    #[inline(always)]
    fn find(&self, listeners: &[Arc<Listener>], view: &EventView<'_>) -> Matches {
        let key = CacheKey::of(view);
        let vacant = match self.cache.find(&key) {
            Ok((_, matched)) if matched.is_empty() => return Matches::NONE,
            Ok((slot, _)) => return Matches::Cached(slot),
            Err(vacant) => vacant,
        };
        // The result "no listeners" is remembered like any other result.
        let matched = self.search(listeners, &key, view);
        let nobody = matched.is_empty();
        // Another thread may have stored the same match in the meantime. Both entries are right, and later lookups
        // find the first.
        match self.cache.remember(vacant, matched) {
            Ok(_) if nobody => Matches::NONE,
            Ok(slot) => Matches::Cached(slot),
            Err(matched) => Matches::Uncached(matched),
        }
    }

    /// Checks all listeners. Patterns are matched as sets.
    #[cold]
    fn search(&self, listeners: &[Arc<Listener>], key: &CacheKey<'_>, view: &EventView<'_>) -> Box<CacheEntry> {
        let singly = self.singly.iter().copied().filter(|&at| listeners[at as usize].takes(view));
        let mut found: Vec<u32> = singly.collect();
        self.patterns.find(listeners, view, &mut found);
        // Positions are in the order of priority and age (E5).
        found.sort_unstable();
        Box::new(CacheEntry::new(key, found.into_iter().map(|at| Arc::clone(&listeners[at as usize]))))
    }
}
