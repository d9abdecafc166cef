//! The listeners and pipes of one emitter, in order (E5).
//!
//! `listen` and `registration` create a [`Listener`](listener::Listener) and add it here; `subscription` removes it.
//! Emits read a published [`Snapshot`] without a lock. After a change, the next emit derives a new snapshot under the
//! lock (`published`). Before a listener is called, `claim` checks whether it may run.

pub(crate) mod claim;
pub(crate) mod listen;
pub(crate) mod listener;
pub(crate) mod published;
pub(crate) mod registration;
pub(crate) mod subscription;

use std::cmp::Reverse;
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::Matcher;
use crate::emitter::pipe::Pipe;
use crate::matching::pattern::{CHUNK, PatternSet};
use crate::matching::snapshot::Snapshot;
use crate::registry::listener::Listener;
use crate::registry::published::Published;
use crate::sync::Guard;

/// The listeners and pipes of an emitter. The registry is allocated when the first of them is added.
pub(crate) struct Registry {
    /// The name bits of the events that listeners and pipes here may take. Every emit that passes this emitter reads
    /// them.
    name_bits: AtomicU64,
    /// `true` once an event has passed this emitter, or somebody has checked whether it has listeners.
    is_reached: AtomicBool,
    isolated: AtomicU64,
    published: Published<RegistryState, Snapshot>,
}

/// The part of a registry that the lock guards.
#[derive(Default)]
pub(crate) struct RegistryState {
    /// Higher priority first, then oldest first.
    pub(crate) listeners: Vec<Arc<Listener>>,
    pub(crate) pipes: Vec<Arc<Pipe>>,
    /// Sets of patterns, shared by snapshots as long as few patterns change.
    pub(crate) patterns: Vec<Arc<PatternSet>>,
    /// The number of patterns registered since the sets were last renewed.
    pub(crate) fresh_patterns: usize,
    /// The capacity of a snapshot's match cache. The cache rounds it up.
    pub(crate) cache_capacity: usize,
    /// `true` after the end of a run: the registry accepts nothing, and no event rises through it (R14).
    pub(crate) is_closed: bool,
}

/// The error of a registry whose run has ended.
#[derive(Debug)]
pub(crate) struct RegistryClosed;

impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            name_bits: AtomicU64::new(0),
            is_reached: AtomicBool::new(false),
            isolated: AtomicU64::new(0),
            published: Published::new(RegistryState::default()),
        }
    }

    /// Returns `true` if a listener or pipe here may take an event whose name has one of these bits. The check costs
    /// two loads (E15).
    #[inline]
    pub(crate) fn may_receive(&self, name_bits: u64) -> bool {
        self.note_reached();
        self.name_bits.load(Ordering::Acquire) & name_bits != 0
    }

    /// Notes that an event has reached this emitter, whether or not a listener takes it.
    #[inline]
    pub(crate) fn note_reached(&self) {
        // Written by the first event only, so later events find it unchanged in their caches.
        if !self.is_reached() {
            self.is_reached.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn is_reached(&self) -> bool {
        self.is_reached.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn snapshot(&self) -> Guard<Snapshot> {
        self.published.load(Snapshot::of)
    }

    pub(crate) fn add(&self, listener: Arc<Listener>) -> Result<(), RegistryClosed> {
        // An `Option`, so that a listener that is not accepted is dropped outside the lock.
        let mut listener = Some(listener);
        let renewed = self.published.change(|state| {
            let listener = state.take_unless_closed(&mut listener)?;
            // Set the bits before the next snapshot is derived: an emit that starts after this call must not skip this
            // emitter (E10).
            self.name_bits
                .store(self.name_bits.load(Ordering::Relaxed) | listener.matcher.name_bits(), Ordering::Release);
            state.fresh_patterns += usize::from(listener.matcher.is_pattern());
            let is_before = |other: &Arc<Listener>| Reverse(other.priority) <= Reverse(listener.priority);
            // The listener comes after all listeners of the same priority, which are older (E5).
            let at = state.listeners.partition_point(is_before);
            state.listeners.insert(at, listener);
            Ok((state.fresh_patterns >= CHUNK).then(|| state.renew_patterns().to_vec()))
        })?;
        // The sets are compiled here instead of in the next emit, and outside the lock, because compiling takes a
        // while.
        for set in renewed.iter().flatten() {
            set.compile();
        }
        Ok(())
    }

    /// Removes the listeners that `should_remove` selects, and ends their claims, so that no dispatch begins to call
    /// them (E9).
    pub(crate) fn remove(&self, should_remove: impl Fn(&Listener) -> bool) -> usize {
        let removed: Vec<_> = self.change(|state| {
            let removed = state.listeners.extract_if(.., |listener| should_remove(listener)).collect::<Vec<_>>();
            for listener in &removed {
                // An emit under way may hold an older snapshot: the ended claims keep the emit from calling the
                // listener (E9).
                listener.claims.end();
            }
            removed
        });
        removed.len()
    }

    pub(crate) fn remove_matching(&self, matcher: &Matcher) -> usize {
        self.remove(|listener| !listener.persistent && listener.matcher == *matcher)
    }

    pub(crate) fn add_pipe(&self, pipe: Arc<Pipe>) -> Result<(), RegistryClosed> {
        let mut pipe = Some(pipe);
        self.change(|state| {
            let pipe = state.take_unless_closed(&mut pipe)?;
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

    /// Removes all listeners and pipes, and refuses new listeners and pipes (R14).
    ///
    /// The claims are not ended: an emit under way still calls the listeners that it has selected. If the emit skipped
    /// a listener that redacts, later listeners would receive the unredacted event.
    pub(crate) fn close(&self) {
        let removed = self.change(|state| {
            state.is_closed = true;
            (take(&mut state.listeners), take(&mut state.pipes))
        });
        drop(removed);
    }

    /// Returns the listeners in order of priority and age.
    pub(crate) fn listeners(&self) -> Vec<Arc<Listener>> {
        self.published.inspect(|state| state.listeners.clone())
    }

    /// Drops the cached matches because the match cache is full. The next snapshot gets a larger cache, unless this
    /// cache already had the maximum size.
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
    /// Takes the new listener or pipe from `what`, unless the registry is closed.
    fn take_unless_closed<T>(&self, what: &mut Option<T>) -> Result<T, RegistryClosed> {
        if self.is_closed { None } else { what.take() }.ok_or(RegistryClosed)
    }

    /// Brings the sets of patterns up to date with the listeners.
    pub(crate) fn renew_patterns(&mut self) -> &[Arc<PatternSet>] {
        PatternSet::renew(&mut self.patterns, &self.listeners);
        self.fresh_patterns = 0;
        &self.patterns
    }

    /// Returns the name bits of the events that listeners here may take. All bits are set if there are pipes, because a
    /// pipe may forward any event. All bits are also set after the end of a run, because the first later event is
    /// logged.
    fn name_bits(&self) -> u64 {
        let is_all = !self.pipes.is_empty() || self.is_closed;
        self.listeners
            .iter()
            .fold(if is_all { u64::MAX } else { 0 }, |names, listener| names | listener.matcher.name_bits())
    }
}
