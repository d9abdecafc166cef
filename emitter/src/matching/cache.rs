//! A table of matches: from what an event looks like to an emitter, to the listeners that take it.
//!
//! 1. A slot is written once and then only read: reading needs no lock.
//! 2. At least a quarter of the slots stay empty, so that every probe ends.

use std::any::TypeId;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::dispatch::batch::{Batch, BatchStarts, batch_starts};
use crate::name::is_same;
use crate::registry::listener::{EventView, Listener, Role};

pub(crate) struct MatchCache {
    /// A power of two of them.
    slots: Box<[OnceLock<Box<CacheEntry>>]>,
    used: AtomicUsize,
}

/// Everything that decides who takes an event, functions and the passing of time aside.
pub(crate) struct CacheKey<'a> {
    hash: u64,
    namespace: Option<&'a Arc<str>>,
    name: &'a str,
    /// What is own, nested or named otherwise, as bits.
    seen: u8,
    payload: TypeId,
}

/// The listeners that take an event.
pub(crate) struct CacheEntry {
    hash: u64,
    namespace: Option<Arc<str>>,
    name: Box<str>,
    seen: u8,
    payload: TypeId,
    changers: RoleList,
    observers: RoleList,
}

/// Those of one role, in order.
pub(crate) struct RoleList {
    pub(crate) listeners: Box<[Arc<Listener>]>,
    /// Where those begin that are called together; made when they are found again.
    batches: OnceLock<BatchStarts>,
    was_found: AtomicBool,
}

impl RoleList {
    fn new(listeners: Vec<Arc<Listener>>) -> Self {
        Self { listeners: listeners.into(), batches: OnceLock::new(), was_found: AtomicBool::new(false) }
    }

    /// Those that are called together from a place on.
    #[inline]
    pub(crate) fn batch(&self, place: usize) -> Option<&dyn Batch> {
        let batches = self.batches.get().or_else(|| self.make_batches(place))?;
        batches.get(place)?.as_deref()
    }

    /// Not for the first event, because many a path comes by only once.
    #[cold]
    fn make_batches(&self, place: usize) -> Option<&BatchStarts> {
        let again = place == 0 && self.was_found.swap(true, Ordering::Relaxed);
        again.then(|| self.batches.get_or_init(|| batch_starts(&self.listeners)))
    }
}

impl<'a> CacheKey<'a> {
    #[inline]
    pub(crate) fn of(view: &EventView<'a>) -> Self {
        let (source, name) = (view.meta.emit.source, &view.meta.emit.name);
        let seen = u8::from(view.has_other_name) << 2 | u8::from(view.here) << 1 | u8::from(view.nested);
        let hash = name.hash() ^ source.namespace_hash().rotate_left(20) ^ u64::from(seen);
        Self {
            hash: hash ^ (hash >> 29),
            namespace: source.shared_namespace(),
            name: name.as_str(),
            seen,
            payload: view.meta.emit.carried.id,
        }
    }
}

impl CacheEntry {
    pub(crate) fn new(key: &CacheKey<'_>, found: impl Iterator<Item = Arc<Listener>>) -> Self {
        let (changers, observers): (Vec<_>, Vec<_>) = found.partition(|listener| listener.call.role() == Role::Change);
        Self {
            hash: key.hash,
            namespace: key.namespace.cloned(),
            name: key.name.into(),
            seen: key.seen,
            payload: key.payload,
            changers: RoleList::new(changers),
            observers: RoleList::new(observers),
        }
    }

    #[inline]
    fn is_for(&self, key: &CacheKey<'_>) -> bool {
        self.hash == key.hash
            && (self.seen, self.payload) == (key.seen, key.payload)
            && is_same(&self.name, key.name)
            && is_same_namespace(self.namespace.as_ref(), key.namespace)
    }

    #[inline]
    pub(crate) fn of(&self, role: Role) -> &RoleList {
        match role {
            Role::Change => &self.changers,
            Role::Observe => &self.observers,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.changers.listeners.is_empty() && self.observers.listeners.is_empty()
    }
}

/// Mostly it is the very same text.
#[inline]
fn is_same_namespace(a: Option<&Arc<str>>, b: Option<&Arc<str>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

impl MatchCache {
    pub(crate) fn new(capacity: usize) -> Self {
        let slots = (0..(capacity * 4 / 3).next_power_of_two()).map(|_| OnceLock::new()).collect();
        Self { slots, used: AtomicUsize::new(0) }
    }

    /// Finds the slot of a key and what is there, or the vacant one where it belongs.
    #[inline(always)]
    pub(crate) fn find(&self, key: &CacheKey<'_>) -> Result<(usize, &CacheEntry), usize> {
        let mut at = key.hash as usize & (self.slots.len() - 1);
        loop {
            match self.slots[at].get() {
                Some(matched) if matched.is_for(key) => return Ok((at, matched)),
                Some(_) => at = (at + 1) & (self.slots.len() - 1),
                None => return Err(at),
            }
        }
    }

    /// Remembers a match from a vacant slot on; gives it back when there is no room.
    pub(crate) fn remember(&self, vacant: usize, matched: Box<CacheEntry>) -> Result<usize, Box<CacheEntry>> {
        if self.used.fetch_add(1, Ordering::Relaxed) >= self.slots.len() / 4 * 3 {
            return Err(matched);
        }
        let mut at = vacant;
        let mut matched = matched;
        loop {
            match self.slots[at].set(matched) {
                Ok(()) => return Ok(at),
                Err(back) => matched = back,
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    #[inline]
    pub(crate) fn at(&self, slot: usize) -> Option<&CacheEntry> {
        self.slots.get(slot)?.get().map(|matched| &**matched)
    }
}
