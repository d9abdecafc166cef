//! The listeners of one emitter at one moment, and which of them take which event.
//!
//! A few listeners are asked one by one for each event. Many, or patterns, are asked once for each path that comes
//! by; the answer is remembered in a table that is only ever added to. So matching is paid once per emitter and
//! path, and a change of the listeners needs no invalidation: the next snapshot starts with an empty table.

use std::sync::Arc;

use crate::listener::{Listener, Role, Sighting};
use crate::memo::{Key, Matched, Memo};
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
    search: Search,
}

enum Search {
    /// Asks each listener; tells which of them observe.
    Each {
        observers: u8,
    },
    Table(Box<Table>),
}

struct Table {
    /// Positions of listeners that are no patterns, or that no set covers.
    singly: Box<[u32]>,
    patterns: Option<PatternIndex>,
    memo: Memo,
}

/// The listeners that take an event.
pub(crate) enum Hits {
    /// Positions as bits.
    Few(u8),
    /// Where the table remembers them.
    Remembered(u32),
    /// The table was full.
    Own(Box<Matched>),
}

impl Snapshot {
    pub(crate) fn of(state: &mut State) -> Self {
        let listeners: Box<[_]> = state.listeners.as_slice().into();
        let pipes = state.pipes.as_slice().into();
        let few = listeners.len() <= FEW && !listeners.iter().any(|listener| listener.matcher.is_pattern());
        let search = if few {
            Search::Each { observers: observers(&listeners) }
        } else {
            state.memory = state.memory.clamp(*MEMORY.start(), *MEMORY.end());
            state.patterns = PatternSet::renew(state.patterns.take(), &listeners);
            Search::Table(Box::new(Table::new(&listeners, state.patterns.clone(), state.memory)))
        };
        Self { listeners, pipes, search }
    }

    /// Which listeners take an event; nothing if none does.
    #[inline]
    pub(crate) fn find(&self, sighting: &Sighting<'_>) -> Option<Hits> {
        match &self.search {
            Search::Each { .. } => match takers(&self.listeners, sighting) {
                0 => None,
                mask => Some(Hits::Few(mask)),
            },
            Search::Table(table) => table.find(&self.listeners, sighting),
        }
    }

    /// The first hit of a role at or after a position, and the position after it.
    #[inline]
    pub(crate) fn hit(&self, hits: &Hits, role: Role, from: u32) -> Option<(u32, &Arc<Listener>)> {
        match (hits, &self.search) {
            (Hits::Few(mask), Search::Each { observers }) => {
                let of_role = if role == Role::Observe { mask & observers } else { mask & !observers };
                let left = u32::from(of_role) >> from;
                let at = from + left.trailing_zeros();
                (left != 0).then(|| (at + 1, &self.listeners[at as usize]))
            }
            (Hits::Remembered(slot), Search::Table(table)) => self.nth(table.memo.at(*slot)?, role, from),
            (Hits::Own(matched), _) => self.nth(matched, role, from),
            _ => None,
        }
    }

    fn nth(&self, matched: &Matched, role: Role, n: u32) -> Option<(u32, &Arc<Listener>)> {
        let position = *matched.of(role).get(n as usize)?;
        Some((n + 1, self.listeners.get(position as usize)?))
    }
}

fn observers(listeners: &[Arc<Listener>]) -> u8 {
    let bit = |(i, listener): (usize, &Arc<Listener>)| u8::from(listener.call.role() == Role::Observe) << i;
    listeners.iter().enumerate().map(bit).sum()
}

impl Table {
    fn new(listeners: &[Arc<Listener>], patterns: Option<Arc<PatternSet>>, memory: usize) -> Self {
        let patterns = patterns.map(|set| PatternIndex::new(set, listeners));
        let covered = |at: &u32| patterns.as_ref().is_some_and(|index| index.covers(*at));
        let singly = (0..).take(listeners.len()).filter(|at| !covered(at)).collect();
        Self { singly, patterns, memo: Memo::new(memory) }
    }

    #[inline]
    fn find(&self, listeners: &[Arc<Listener>], sighting: &Sighting<'_>) -> Option<Hits> {
        let key = Key::of(sighting);
        let slot = match self.memo.find(&key) {
            Ok(slot) => slot,
            Err(vacant) => match self.memo.remember(vacant, self.search(listeners, &key, sighting)) {
                Ok(slot) => slot,
                Err(matched) => return (!matched.is_empty()).then_some(Hits::Own(matched)),
            },
        };
        let nobody = self.memo.at(slot).is_none_or(Matched::is_empty);
        (!nobody).then_some(Hits::Remembered(slot))
    }

    /// Asks everybody, patterns as sets.
    #[cold]
    fn search(&self, listeners: &[Arc<Listener>], key: &Key<'_>, sighting: &Sighting<'_>) -> Box<Matched> {
        let singly = self.singly.iter().copied().filter(|&at| listeners[at as usize].takes(sighting));
        let mut found: Vec<u32> = singly.collect();
        if let Some(patterns) = &self.patterns {
            patterns.find(listeners, sighting, &mut found);
        }
        found.sort_unstable();
        Box::new(Matched::new(key, found, |at| listeners[at as usize].call.role()))
    }
}
