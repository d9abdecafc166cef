//! The listeners of one emitter at one moment, and which of them take which event.
//!
//! A few listeners are asked one by one for each event. Many, or patterns, are asked once for each path that comes
//! by; the answer is remembered in a table that is only ever added to. So matching is paid once per emitter and
//! path, and a change of the listeners needs no invalidation: the next snapshot starts with an empty table.

use std::sync::Arc;

use crate::cache::{Key, Line, Matched, Memo};
use crate::listener::{Listener, Role, Sighting};
use crate::pattern::{PatternIndex, PatternSet};
use crate::pipe::Pipe;
use crate::registry::{State, takers};

/// As many listeners as are asked one by one.
const FEW: usize = 8;
/// Matches remembered at first and at most.
const MEMORY: std::ops::RangeInclusive<usize> = 16..=8192;

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
    memo: Memo,
}

/// The listeners that take an event, as found in a snapshot.
pub(crate) enum Hits {
    /// Positions as bits.
    Few(usize),
    /// Where the table remembers them.
    Remembered(usize),
    /// The table was full.
    Own(Box<Matched>),
}

impl Hits {
    pub(crate) const NONE: Self = Self::Few(0);

    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Self::Few(0))
    }
}

/// Those of one role among them, in order.
pub(crate) enum Takers<'s> {
    /// Positions as bits.
    Few(&'s [Arc<Listener>], usize),
    Listed(&'s Line),
}

impl Snapshot {
    pub(crate) fn of(state: &mut State) -> Self {
        let listeners: Box<[_]> = state.listeners.as_slice().into();
        let pipes: Box<[_]> = state.pipes.as_slice().into();
        let is_closed = state.is_closed;
        let leads_up_only = pipes.is_empty() && !is_closed;
        let few = listeners.len() <= FEW && !listeners.iter().any(|listener| listener.matcher.is_pattern());
        let search = if few {
            Search::Each { observers: observers(&listeners) }
        } else {
            state.memory = state.memory.clamp(*MEMORY.start(), *MEMORY.end());
            let memory = state.memory;
            Search::Table(Box::new(Table::new(&listeners, state.renew_patterns(), memory)))
        };
        let observes = listeners.iter().any(|listener| listener.call.role() == Role::Observe);
        Self { listeners, pipes, is_closed, leads_up_only, observes, search }
    }

    /// Which listeners take an event.
    #[inline(always)]
    pub(crate) fn find(&self, sighting: &Sighting<'_>) -> Hits {
        match &self.search {
            Search::Each { .. } => Hits::Few(takers(&self.listeners, sighting)),
            Search::Table(table) => table.find(&self.listeners, sighting),
        }
    }

    /// The hits of a role.
    #[inline]
    pub(crate) fn takers<'s>(&'s self, hits: &'s Hits, role: Role) -> Takers<'s> {
        match (hits, &self.search) {
            (Hits::Few(mask), Search::Each { observers }) if role == Role::Observe => self.few(mask & observers),
            (Hits::Few(mask), Search::Each { observers }) => self.few(mask & !observers),
            (Hits::Remembered(slot), Search::Table(table)) => {
                table.memo.at(*slot).map_or(Takers::NOBODY, |matched| Takers::Listed(matched.of(role)))
            }
            (Hits::Own(matched), _) => Takers::Listed(matched.of(role)),
            _ => Takers::NOBODY,
        }
    }

    fn few(&self, positions: usize) -> Takers<'_> {
        Takers::Few(&self.listeners, positions)
    }
}

impl<'s> Takers<'s> {
    const NOBODY: Self = Self::Few(&[], 0);

    /// The one that was given out with this place behind it.
    pub(crate) fn before(&self, place: usize) -> Option<&'s Arc<Listener>> {
        match *self {
            Takers::Few(listeners, _) => listeners,
            Takers::Listed(line) => &line.listeners,
        }
        .get(place.checked_sub(1)?)
    }

    /// The first from a place on, and the place behind it.
    #[inline]
    pub(crate) fn next(&self, from: usize) -> Option<(usize, &'s Arc<Listener>)> {
        match *self {
            Takers::Few(listeners, positions) => {
                let left = positions >> from;
                let at = from + left.trailing_zeros() as usize;
                if left == 0 { None } else { Some((at + 1, listeners.get(at)?)) }
            }
            Takers::Listed(line) => Some((from + 1, line.listeners.get(from)?)),
        }
    }
}

fn observers(listeners: &[Arc<Listener>]) -> usize {
    let bit = |(i, listener): (usize, &Arc<Listener>)| usize::from(listener.call.role() == Role::Observe) << i;
    listeners.iter().enumerate().map(bit).sum()
}

impl Table {
    fn new(listeners: &[Arc<Listener>], patterns: &[Arc<PatternSet>], memory: usize) -> Self {
        let patterns = PatternIndex::new(patterns, listeners);
        let covered = patterns.covered();
        let singly = (0..).take(listeners.len()).filter(|at| !covered.contains(at)).collect();
        Self { singly, patterns, memo: Memo::new(memory) }
    }

    #[inline(always)]
    fn find(&self, listeners: &[Arc<Listener>], sighting: &Sighting<'_>) -> Hits {
        let key = Key::of(sighting);
        let vacant = match self.memo.find(&key) {
            Ok((_, matched)) if matched.is_empty() => return Hits::NONE,
            Ok((slot, _)) => return Hits::Remembered(slot),
            Err(vacant) => vacant,
        };
        let matched = self.search(listeners, &key, sighting);
        let nobody = matched.is_empty();
        match self.memo.remember(vacant, matched) {
            Ok(_) if nobody => Hits::NONE,
            Ok(slot) => Hits::Remembered(slot),
            Err(matched) => Hits::Own(matched),
        }
    }

    /// Asks everybody, patterns as sets.
    #[cold]
    fn search(&self, listeners: &[Arc<Listener>], key: &Key<'_>, sighting: &Sighting<'_>) -> Box<Matched> {
        let singly = self.singly.iter().copied().filter(|&at| listeners[at as usize].takes(sighting));
        let mut found: Vec<u32> = singly.collect();
        self.patterns.find(listeners, sighting, &mut found);
        found.sort_unstable();
        Box::new(Matched::new(key, found.into_iter().map(|at| Arc::clone(&listeners[at as usize]))))
    }
}
