//! A hash table of matches. A key holds the properties of an event that decide which listeners take it, and its entry
//! lists these listeners. Each table belongs to one snapshot and is dropped with it.
//!
//! 1. A slot is written at most once, so that reading needs no lock.
//! 2. At least a quarter of the slots stay empty, so that every probe ends.

use std::any::TypeId;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::Emitter;
use crate::dispatch::batch::{Batch, BatchStarts, batch_starts};
use crate::emitter::namespace::OwnNamespace;
use crate::name::is_same;
use crate::registry::listener::{EventView, Listener, Role};

/// The smallest and the largest capacity with which a table is created.
const CAPACITY: std::ops::RangeInclusive<usize> = 16..=8192;

pub(crate) struct MatchCache {
    /// The number of slots is a power of two.
    slots: Box<[OnceLock<Box<CacheEntry>>]>,
    used: AtomicUsize,
}

/// The properties of an event that decide which listeners take it. Matcher functions also decide, but their results are
/// not cached: they are called for each event.
pub(crate) struct CacheKey<'a> {
    hash: u64,
    source: &'a Emitter,
    namespace: Option<&'a OwnNamespace>,
    name: &'a str,
    /// `here`, `nested` and `has_other_name` of the view, as bits.
    seen: u8,
    payload: TypeId,
}

/// The listeners that take the events of one key.
pub(crate) struct CacheEntry {
    hash: u64,
    namespace: Option<Arc<str>>,
    name: Box<str>,
    seen: u8,
    payload: TypeId,
    changers: RoleList,
    observers: RoleList,
}

/// The listeners with one role, in order.
pub(crate) struct RoleList {
    pub(crate) listeners: Box<[Arc<Listener>]>,
    /// Created when a second event uses the entry.
    batches: OnceLock<BatchStarts>,
    was_found: AtomicBool,
}

impl RoleList {
    fn new(listeners: Vec<Arc<Listener>>) -> Self {
        Self { listeners: listeners.into(), batches: OnceLock::new(), was_found: AtomicBool::new(false) }
    }

    /// Returns the batch that starts at a place, if any.
    #[inline]
    pub(crate) fn batch(&self, place: usize) -> Option<&dyn Batch> {
        let batches = self.batches.get().or_else(|| self.make_batches(place))?;
        batches.get(place)?.as_deref()
    }

    /// Creates the batches for the second event, because many paths occur only once, and creating batches is expensive.
    #[cold]
    fn make_batches(&self, place: usize) -> Option<&BatchStarts> {
        // This method may be called for every place in the list. Only the call for place 0 counts the event.
        let again = place == 0 && self.was_found.swap(true, Ordering::Relaxed);
        again.then(|| self.batches.get_or_init(|| batch_starts(&self.listeners)))
    }
}

impl<'a> CacheKey<'a> {
    #[inline]
    pub(crate) fn of(view: &EventView<'a>) -> Self {
        let source = view.meta.emit.source;
        let name = &view.meta.emit.name;
        let seen = u8::from(view.has_other_name) << 2 | u8::from(view.here) << 1 | u8::from(view.nested);
        let hash = name.hash() ^ source.namespace_hash().rotate_left(20) ^ u64::from(seen);
        Self {
            hash: hash ^ (hash >> 29),
            source,
            namespace: source.own_namespace().map(|(_, own)| own),
            name: name.as_str(),
            seen,
            payload: view.meta.emit.carried.id,
        }
    }
}

impl CacheEntry {
    pub(crate) fn new(key: &CacheKey<'_>, found: Vec<Arc<Listener>>) -> Self {
        let (changers, observers): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|listener| listener.call.role() == Role::Change);
        Self {
            hash: key.hash,
            namespace: key.source.shared_namespace(),
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
            && self.is_of_namespace(key)
    }

    /// Compares the namespaces. Usually both are the same allocation.
    #[inline]
    fn is_of_namespace(&self, key: &CacheKey<'_>) -> bool {
        match (&self.namespace, key.namespace) {
            (Some(a), Some(OwnNamespace::Whole(b))) => Arc::ptr_eq(a, b) || a == b,
            (Some(a), Some(OwnNamespace::Long(_))) => key.source.has_namespace(a),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
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

impl MatchCache {
    /// Creates a table for at least this number of entries, unless it is outside the bounds of a table.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(*CAPACITY.start(), *CAPACITY.end());
        let slots = (0..(capacity * 4 / 3).next_power_of_two()).map(|_| OnceLock::new()).collect();
        Self { slots, used: AtomicUsize::new(0) }
    }

    /// Returns the slot and the entry of a key. If there is no entry, returns the vacant slot where it belongs.
    #[inline(always)]
    pub(crate) fn find(&self, key: &CacheKey<'_>) -> Result<(usize, &CacheEntry), usize> {
        // Linear probing. The length is a power of two, so the mask keeps the index in range.
        let mut at = key.hash as usize & (self.slots.len() - 1);
        loop {
            match self.slots[at].get() {
                Some(matched) if matched.is_for(key) => return Ok((at, matched)),
                Some(_) => at = (at + 1) & (self.slots.len() - 1),
                None => return Err(at),
            }
        }
    }

    /// Stores an entry in the first free slot from `vacant` on, and returns the slot. If three quarters of the table
    /// are in use, returns the entry as an error.
    pub(crate) fn remember(&self, vacant: usize, matched: Box<CacheEntry>) -> Result<usize, Box<CacheEntry>> {
        // The count may exceed the bound, but then no slot is written (invariant 2).
        if self.used.fetch_add(1, Ordering::Relaxed) >= self.slots.len() / 4 * 3 {
            return Err(matched);
        }
        let mut at = vacant;
        let mut matched = matched;
        loop {
            // If another thread has taken the slot first, the next free slot is used.
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
