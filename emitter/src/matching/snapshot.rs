//! The listeners of one emitter at one moment, and which of them take which event.
//!
//! A few listeners are asked one by one for each event. Many, or patterns, are asked once for each path that comes
//! by; the answer is remembered in a table that is only ever added to. So matching is paid once per emitter and
//! path, and a change of the listeners needs no invalidation: the next snapshot starts with an empty table.

use std::sync::Arc;

use crate::dispatch::batch::Batch;
use crate::emitter::pipe::Pipe;
use crate::matching::cache::{CacheEntry, CacheKey, MatchCache, RoleList};
use crate::matching::pattern::{PatternIndex, PatternSet};
use crate::registry::RegistryState;
use crate::registry::listener::{EventView, Listener, Role};

/// As many listeners as are asked one by one.
const MAX_ASKED_EACH: usize = 8;
/// Matches remembered at first and at most.
const CACHE_CAPACITY: std::ops::RangeInclusive<usize> = 16..=8192;

pub(crate) struct Snapshot {
    pub(crate) listeners: Box<[Arc<Listener>]>,
    pub(crate) pipes: Box<[Arc<Pipe>]>,
    /// Whether there is no way up from here: it is that of a run that has ended.
    pub(crate) is_closed: bool,
    /// Whether the ways from here are those up the tree and the runs.
    pub(crate) leads_up_only: bool,
    /// Whether any of the listeners observes.
    pub(crate) observes: bool,
    search: Search,
}

enum Search {
    /// Asks each listener; tells which of them observe.
    Each {
        observers: usize,
    },
    Table(Box<Table>),
}

struct Table {
    /// Positions of listeners that are no patterns, or that no set covers.
    singly: Box<[u32]>,
    patterns: PatternIndex,
    cache: MatchCache,
}

/// The listeners that take an event, as found in a snapshot.
pub(crate) enum Matches {
    /// Positions as bits.
    Few(usize),
    /// Where the table remembers them.
    Cached(usize),
    /// The table was full.
    Uncached(Box<CacheEntry>),
}

impl Matches {
    pub(crate) const NONE: Self = Self::Few(0);

    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Self::Few(0))
    }
}

/// Those of one role among them, in order.
pub(crate) enum MatchedListeners<'s> {
    /// Positions as bits.
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
        let search = if few {
            Search::Each { observers: observers(&listeners) }
        } else {
            state.cache_capacity = state.cache_capacity.clamp(*CACHE_CAPACITY.start(), *CACHE_CAPACITY.end());
            let capacity = state.cache_capacity;
            Search::Table(Box::new(Table::new(&listeners, state.renew_patterns(), capacity)))
        };
        let observes = listeners.iter().any(|listener| listener.call.role() == Role::Observe);
        Self { listeners, pipes, is_closed, leads_up_only, observes, search }
    }

    /// Which listeners take an event.
    #[inline(always)]
    pub(crate) fn find(&self, view: &EventView<'_>) -> Matches {
        match &self.search {
            Search::Each { .. } => {
                let mut matches = 0;
                for (at, listener) in self.listeners.iter().enumerate() {
                    matches |= usize::from(listener.takes(view)) << at;
                }
                Matches::Few(matches)
            }
            Search::Table(table) => table.find(&self.listeners, view),
        }
    }

    /// The matches of a role, in order.
    #[inline(always)]
    pub(crate) fn matched<'s>(&'s self, matches: &'s Matches, role: Role) -> MatchedListeners<'s> {
        match (matches, &self.search) {
            (Matches::Few(positions), Search::Each { observers }) => match role {
                Role::Change => MatchedListeners::Few(&self.listeners, positions & !observers),
                Role::Observe => MatchedListeners::Few(&self.listeners, positions & observers),
            },
            (Matches::Cached(slot), Search::Table(table)) => match table.cache.at(*slot) {
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

    /// The one that was given out with this place behind it.
    pub(crate) fn before(&self, place: usize) -> Option<&'s Arc<Listener>> {
        match *self {
            Self::Few(listeners, _) => listeners,
            Self::Listed(list) => &list.listeners,
        }
        .get(place.checked_sub(1)?)
    }

    /// The first from a place on; the place moves behind it.
    #[inline(always)]
    pub(crate) fn next(&self, place: &mut usize) -> Option<&'s Arc<Listener>> {
        let (listeners, at) = match *self {
            Self::Few(listeners, positions) => {
                let left = positions >> *place;
                (listeners, if left == 0 { usize::MAX } else { *place + left.trailing_zeros() as usize })
            }
            Self::Listed(list) => (&*list.listeners, *place),
        };
        let listener = listeners.get(at)?;
        *place = at + 1;
        Some(listener)
    }

    /// The batch that starts at a place.
    #[inline(always)]
    pub(crate) fn batch(&self, place: usize) -> Option<&'s dyn Batch> {
        match *self {
            Self::Few(..) => None,
            Self::Listed(list) => list.batch(place),
        }
    }
}

fn observers(listeners: &[Arc<Listener>]) -> usize {
    let bit = |(i, listener): (usize, &Arc<Listener>)| usize::from(listener.call.role() == Role::Observe) << i;
    listeners.iter().enumerate().map(bit).sum()
}

impl Table {
    fn new(listeners: &[Arc<Listener>], patterns: &[Arc<PatternSet>], capacity: usize) -> Self {
        let patterns = PatternIndex::new(patterns, listeners);
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
        let matched = self.search(listeners, &key, view);
        let nobody = matched.is_empty();
        match self.cache.remember(vacant, matched) {
            Ok(_) if nobody => Matches::NONE,
            Ok(slot) => Matches::Cached(slot),
            Err(matched) => Matches::Uncached(matched),
        }
    }

    /// Asks everybody, patterns as sets.
    #[cold]
    fn search(&self, listeners: &[Arc<Listener>], key: &CacheKey<'_>, view: &EventView<'_>) -> Box<CacheEntry> {
        let singly = self.singly.iter().copied().filter(|&at| listeners[at as usize].takes(view));
        let mut found: Vec<u32> = singly.collect();
        self.patterns.find(listeners, view, &mut found);
        found.sort_unstable();
        Box::new(CacheEntry::new(key, found.into_iter().map(|at| Arc::clone(&listeners[at as usize]))))
    }
}
