//! The permits of each key, and the runs that hold them.
//!
//! 1. A key has an entry as long as a run holds or awaits one of its permits. Handles are counted under the lock of the
//!    table. The key that all runs share by default is kept outside the table, and is never removed.
//! 2. Runs get permits in the order in which they arrive: tokio's semaphore is fair, and a new run does not overtake
//!    waiting runs.
//! 3. A permit is released when the last run that shares it drops it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use emitree_runtime::RunContext;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::shared::key::{KeyRef, OwnedKey};

type KeyTable = HashMap<OwnedKey, Arc<KeyPermits>>;

/// The permits of all keys.
pub(super) struct PermitTable {
    permits: usize,
    /// The permits of the key that all runs share by default, kept outside the map.
    common: Arc<KeyPermits>,
    keyed: Mutex<KeyTable>,
}

/// The permits of one key.
struct KeyPermits {
    key: OwnedKey,
    semaphore: Semaphore,
    /// The number of handles. Changed under the lock of the table, except for the common key.
    handles: AtomicUsize,
}

/// A reference to the permits of a key, kept by each run that holds or awaits one of these permits.
pub(super) struct KeyHandle {
    table: Arc<PermitTable>,
    key_permits: Arc<KeyPermits>,
}

impl KeyPermits {
    fn new(key: OwnedKey, permits: usize) -> Arc<Self> {
        Arc::new(Self { key, semaphore: Semaphore::new(permits), handles: AtomicUsize::new(0) })
    }

    /// Returns a reference for a new handle, and counts the handle.
    fn with_new_handle(self: &Arc<Self>) -> Arc<Self> {
        self.handles.fetch_add(1, Ordering::Relaxed);
        Arc::clone(self)
    }
}

impl PermitTable {
    pub(super) fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self { permits, common: KeyPermits::new(OwnedKey::All, permits), keyed: Mutex::default() })
    }

    pub(super) fn handle(self: &Arc<Self>, key: KeyRef<'_>) -> KeyHandle {
        let key_permits = match key {
            KeyRef::All => self.common.with_new_handle(),
            key => self.keyed(key),
        };
        KeyHandle { table: Arc::clone(self), key_permits }
    }

    /// Returns the permits of a key, and creates them for a new key. Only a new key is copied.
    fn keyed(&self, key: KeyRef<'_>) -> Arc<KeyPermits> {
        let mut keys = self.keyed.lock();
        if let Some(key_permits) = keys.get(&key) {
            return key_permits.with_new_handle();
        }
        keys.entry(key.to_owned())
            .or_insert_with_key(|key| KeyPermits::new(key.clone(), self.permits))
            .with_new_handle()
    }

    pub(super) fn len(&self) -> usize {
        self.keyed.lock().len() + usize::from(self.common.handles.load(Ordering::Relaxed) > 0)
    }
}

impl KeyHandle {
    /// Returns a permit if a permit is free and no run waits.
    pub(super) fn try_acquire(self) -> Result<Permit, Self> {
        // Tokio's permit borrows the semaphore, so it is forgotten here and added back in `Permit`'s drop.
        let is_free = self.key_permits.semaphore.try_acquire().map(SemaphorePermit::forget).is_ok();
        if is_free { Ok(Permit(self)) } else { Err(self) }
    }

    /// Waits for a permit in the order of arrival. Returns `None` if the deadline passes first.
    pub(super) async fn acquire(self, deadline: Option<Instant>) -> Option<Permit> {
        let turn = self.key_permits.semaphore.acquire();
        let permit = match deadline {
            Some(deadline) => timeout_at(deadline, turn).await.ok()?,
            None => turn.await,
        };
        // The semaphore is never closed.
        permit.ok()?.forget();
        Some(Permit(self))
    }

    pub(super) fn key(&self) -> OwnedKey {
        self.key_permits.key.clone()
    }

    fn is_for(&self, key: KeyRef<'_>) -> bool {
        self.key_permits.key.as_ref_key() == key
    }
}

impl Drop for KeyHandle {
    fn drop(&mut self) {
        // The permits that all runs share are never removed.
        if let OwnedKey::All = self.key_permits.key {
            self.key_permits.handles.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let removed = {
            let mut keys = self.table.keyed.lock();
            // Count under the lock, so that no other run takes a handle between the count and the removal (1).
            let is_last = self.key_permits.handles.fetch_sub(1, Ordering::Relaxed) == 1;
            if is_last { keys.remove_entry(&self.key_permits.key.as_ref_key()) } else { None }
        };
        // Drop the entry after unlocking: a key may hold the last handle to an instance, whose drop may call user code.
        drop(removed);
    }
}

/// A held permit. The permit is released before its handle is dropped.
pub(super) struct Permit(KeyHandle);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.key_permits.semaphore.add_permits(1);
    }
}

/// The permits held by a run and the runs above it, nearest first, as an extension of the run.
pub(super) struct HeldPermits {
    permit: Weak<Permit>,
    above: Option<Arc<Self>>,
}

impl HeldPermits {
    /// Returns the permit of a key if the run or a run above it holds one now.
    pub(super) fn find(ctx: &RunContext, table: &Arc<PermitTable>, key: KeyRef<'_>) -> Option<Arc<Permit>> {
        let fits = |permit: &Arc<Permit>| Arc::ptr_eq(&permit.0.table, table) && permit.0.is_for(key);
        let nearest = ctx.extension::<Self>();
        let mut all = std::iter::successors(nearest.as_deref(), |held| held.above.as_deref());
        all.find_map(|held| held.permit.upgrade().filter(fits))
    }

    /// Registers a permit, so that runs below share it.
    pub(super) fn add(ctx: &RunContext, permit: Permit) -> Arc<Permit> {
        // Skip permits released at the end of an attempt, so that the list does not grow with each attempt. The list
        // holds weak references: strong ones would keep the permits until the run is dropped.
        let mut above = ctx.extension::<Self>();
        while above.as_ref().is_some_and(|held| held.permit.strong_count() == 0) {
            above = above.and_then(|held| held.above.clone());
        }
        let permit = Arc::new(permit);
        ctx.set_extension(Self { permit: Arc::downgrade(&permit), above });
        permit
    }
}
