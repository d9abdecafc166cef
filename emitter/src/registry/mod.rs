//! The listeners and pipes of one emitter, in order (E5): the only shared state.

pub(crate) mod adapter;
pub(crate) mod calls;
pub(crate) mod claim;
pub(crate) mod listen;
pub(crate) mod listener;
pub(crate) mod published;
pub(crate) mod registration;
pub(crate) mod subscription;
pub(crate) mod tracked;

use std::cmp::Reverse;
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Matcher;
use crate::emitter::pipe::Pipe;
use crate::matching::pattern::{CHUNK, PatternSet};
use crate::matching::snapshot::Snapshot;
use crate::registry::listener::Listener;
use crate::registry::published::Published;
use crate::sync::Guard;

/// Made with the first listener or pipe of an emitter; one that nobody listens to has none.
pub(crate) struct Registry {
    /// The bits of the names that somebody here may take; read by every emit that comes by.
    name_bits: AtomicU64,
    isolated: AtomicU64,
    published: Published<RegistryState, Snapshot>,
}

/// What the lock guards.
#[derive(Default)]
pub(crate) struct RegistryState {
    /// Higher priority first, then oldest first.
    pub(crate) listeners: Vec<Arc<Listener>>,
    pub(crate) pipes: Vec<Arc<Pipe>>,
    /// Shared by the snapshots between which few patterns change.
    pub(crate) patterns: Vec<Arc<PatternSet>>,
    /// How many patterns were registered since these were renewed.
    pub(crate) fresh_patterns: usize,
    /// How many matches a snapshot remembers.
    pub(crate) cache_capacity: usize,
    /// It is that of a run that has ended: it takes no more, and nothing rises through it.
    pub(crate) is_closed: bool,
}

/// It takes no more: it is a run's that has ended.
#[derive(Debug)]
pub(crate) struct Closed;

impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            name_bits: AtomicU64::new(0),
            isolated: AtomicU64::new(0),
            published: Published::new(RegistryState::default()),
        }
    }

    /// Whether somebody is registered here who may take an event whose name has one of the bits: one load (E15).
    #[inline]
    pub(crate) fn may_receive(&self, names: u64) -> bool {
        self.name_bits.load(Ordering::Acquire) & names != 0
    }

    #[inline]
    pub(crate) fn snapshot(&self) -> Guard<Snapshot> {
        self.published.load(Snapshot::of)
    }

    pub(crate) fn add(&self, listener: Arc<Listener>) -> Result<(), Closed> {
        // One that is not taken is dropped outside of the lock.
        let mut listener = Some(listener);
        let renewed = self.published.change(|state| {
            let listener = state.accept(&mut listener)?;
            self.name_bits
                .store(self.name_bits.load(Ordering::Relaxed) | listener.matcher.name_bits(), Ordering::Release);
            state.fresh_patterns += usize::from(listener.matcher.is_pattern());
            let later = |other: &Arc<Listener>| Reverse(other.priority) <= Reverse(listener.priority);
            let at = state.listeners.partition_point(later);
            state.listeners.insert(at, listener);
            Ok((state.fresh_patterns >= CHUNK).then(|| state.renew_patterns().to_vec()))
        })?;
        // Compiled here, and not by the next emit; and not under the lock, because it takes a while.
        for set in renewed.iter().flatten() {
            set.compile();
        }
        Ok(())
    }

    /// Removes the listeners that `goes` picks, and ends them: no dispatch begins to call them any more (E9).
    pub(crate) fn remove(&self, goes: impl Fn(&Listener) -> bool) -> usize {
        let removed: Vec<_> = self.change(|state| {
            let removed = state.listeners.extract_if(.., |listener| goes(listener)).collect::<Vec<_>>();
            for listener in &removed {
                listener.claims.end();
            }
            removed
        });
        removed.len()
    }

    pub(crate) fn remove_matching(&self, matcher: &Matcher) -> usize {
        self.remove(|listener| !listener.persistent && listener.matcher == *matcher)
    }

    pub(crate) fn add_pipe(&self, pipe: Arc<Pipe>) -> Result<(), Closed> {
        let mut pipe = Some(pipe);
        self.change(|state| {
            let pipe = state.accept(&mut pipe)?;
            state.pipes.push(pipe);
            Ok(())
        })
    }

    pub(crate) fn remove_pipe(&self, pipe: &Pipe) -> bool {
        let removed = self.change(|state| {
            let at = state.pipes.iter().position(|other| std::ptr::eq(&**other, pipe))?;
            Some(state.pipes.remove(at))
        });
        removed.is_some()
    }

    pub(crate) fn clear(&self) {
        self.remove(|_| true);
        let pipes = self.change(|state| take(&mut state.pipes));
        drop(pipes);
    }

    /// Removes all of them, and takes no more (R14). An emit under way still calls those that it has found: who comes after them
    /// would hear what they redact.
    pub(crate) fn close(&self) {
        let removed = self.change(|state| {
            state.is_closed = true;
            (take(&mut state.listeners), take(&mut state.pipes))
        });
        drop(removed);
    }

    /// Copies of the listeners, in order, for a fork (E16).
    pub(crate) fn listeners(&self) -> Vec<Arc<Listener>> {
        self.published.inspect(|state| state.listeners.clone())
    }

    /// Forgets the matches remembered so far, because there is no room for more; the next snapshot has more, up to
    /// a bound.
    #[cold]
    pub(crate) fn forget_matches(&self) {
        self.published.change(|state| state.cache_capacity = state.cache_capacity.saturating_mul(4));
    }

    pub(crate) fn count_isolated(&self) {
        self.isolated.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn isolated(&self) -> u64 {
        self.isolated.load(Ordering::Relaxed)
    }

    fn change<R>(&self, change: impl FnOnce(&mut RegistryState) -> R) -> R {
        self.published.change(|state| {
            let result = change(state);
            self.name_bits.store(state.name_bits(), Ordering::Release);
            result
        })
    }
}

impl RegistryState {
    /// What is to be added, unless it takes no more.
    fn accept<T>(&self, what: &mut Option<T>) -> Result<T, Closed> {
        if self.is_closed { None } else { what.take() }.ok_or(Closed)
    }

    /// Brings the sets of patterns up to date.
    pub(crate) fn renew_patterns(&mut self) -> &[Arc<PatternSet>] {
        PatternSet::renew(&mut self.patterns, &self.listeners);
        self.fresh_patterns = 0;
        &self.patterns
    }

    /// A pipe may send on whatever comes; and what comes after the end is counted.
    fn name_bits(&self) -> u64 {
        let is_all = !self.pipes.is_empty() || self.is_closed;
        self.listeners
            .iter()
            .fold(if is_all { u64::MAX } else { 0 }, |names, listener| names | listener.matcher.name_bits())
    }
}
