//! The listeners and pipes of one emitter, in order (E5).
//!
//! `listen` and `registration` create a [`Listener`](listener::Listener) and add it here; `subscription` removes it.
//! Emits read a published [`Snapshot`] without a lock. After a change, the next emit derives a new snapshot under the
//! lock (`published`). If there are many listeners, the first emit of an event after a change searches them under the
//! lock (`listeners`, `group`). Before a listener is called, `claim` checks whether it may run.

pub(crate) mod bound;
pub(crate) mod claim;
pub(crate) mod group;
pub(crate) mod listen;
pub(crate) mod listener;
pub(crate) mod listeners;
pub(crate) mod published;
pub(crate) mod registration;
pub(crate) mod subscription;

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::Matcher;
use crate::emitter::pipe::Pipe;
use crate::matching::snapshot::Snapshot;
use crate::registry::group::Key;
use crate::registry::listener::{EventView, Listener};
use crate::registry::listeners::Listeners;
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
    pub(crate) listeners: Listeners,
    /// By their ids, oldest first.
    pub(crate) pipes: BTreeMap<u64, Arc<Pipe>>,
    /// The number of searches since the last snapshot was derived. The next match cache has room for as many entries.
    pub(crate) searches: usize,
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
            state.listeners.add(listener);
            let has_many = state.listeners.has_many_uncovered_patterns();
            Ok(if has_many { state.listeners.renew_patterns().to_vec() } else { Vec::new() })
        })?;
        // The sets are compiled here instead of in the next emit, and outside the lock, because compiling takes a
        // while.
        for set in renewed {
            set.compile();
        }
        Ok(())
    }

    /// Finds the listeners that take an event, in the order of calls, or returns `None` if they have changed since the
    /// snapshot was derived. `matched` are the listeners whose patterns take the event, of those in sets.
    ///
    /// A lock is held while the listeners are searched, but no code of users is called.
    pub(crate) fn find(
        &self,
        snapshot: &Snapshot,
        view: &EventView<'_>,
        matched: &[Key],
    ) -> Option<Vec<Arc<Listener>>> {
        self.published.inspect_behind(snapshot, |state| {
            state.searches += 1;
            state.listeners.find(view, matched)
        })
    }

    /// Removes a listener after its claims have ended.
    pub(crate) fn remove(&self, listener: &Listener) {
        let removed = self.change(|state| state.listeners.remove(listener));
        // The listener is dropped after unlocking: it owns user code.
        drop(removed);
    }

    /// Removes the listeners that `should_remove` selects, and ends their claims, so that no dispatch begins to call
    /// them (E9).
    pub(crate) fn remove_all(&self, should_remove: impl Fn(&Listener) -> bool) -> usize {
        self.end(|listeners| listeners.remove_all(should_remove))
    }

    /// Removes the non-persistent listeners with an equal matcher, and ends their claims.
    pub(crate) fn remove_matching(&self, matcher: &Matcher) -> usize {
        self.end(|listeners| listeners.remove_equal(matcher, |listener| !listener.persistent))
    }

    fn end(&self, remove: impl FnOnce(&mut Listeners) -> Vec<Arc<Listener>>) -> usize {
        let removed = self.change(|state| {
            let removed = remove(&mut state.listeners);
            for listener in &removed {
                // An emit under way may hold an older snapshot: the ended claims keep the emit from calling the
                // listener (E9).
                listener.claims.end();
            }
            removed
        });
        removed.len()
    }

    pub(crate) fn add_pipe(&self, pipe: Arc<Pipe>) -> Result<(), RegistryClosed> {
        let mut pipe = Some(pipe);
        self.change(|state| {
            let pipe = state.take_unless_closed(&mut pipe)?;
            state.pipes.insert(pipe.id, pipe);
            Ok(())
        })
    }

    pub(crate) fn remove_pipe(&self, pipe: &Pipe) -> bool {
        let removed = self.change(|state| state.pipes.remove(&pipe.id));
        removed.is_some()
    }

    pub(crate) fn clear(&self) {
        self.remove_all(|_| true);
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

    pub(crate) fn listener_count(&self) -> usize {
        self.published.inspect(|state| state.listeners.len())
    }

    /// Drops the cached matches because the match cache is full. The next snapshot gets a larger cache, unless this
    /// cache already had the maximum size.
    #[cold]
    pub(crate) fn forget_matches(&self) {
        self.published.change(|_| ());
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

    /// Returns the name bits of the events that listeners here may take. All bits are set if there are pipes, because a
    /// pipe may forward any event. All bits are also set after the end of a run, because the first later event is
    /// logged.
    fn name_bits(&self) -> u64 {
        let is_all = !self.pipes.is_empty() || self.is_closed;
        if is_all { u64::MAX } else { self.listeners.name_bits() }
    }
}
