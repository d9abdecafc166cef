//! Permits of each key, and who holds them.
//!
//! 1. A key has permits as long as somebody holds or awaits one: handles are counted under the lock of the table. Where all
//!    are counted together, the permits are always there.
//! 2. Who waits for a permit gets it in the order of coming: tokio's semaphore is fair, and who comes with a permit free
//!    does not overtake those that wait.
//! 3. A permit is given back when the last that shares it has gone.

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
    /// Those of all who have the same key, found without a look into the map; always there.
    common: Arc<KeyPermits>,
    keyed: Mutex<KeyTable>,
}

/// The permits of one key.
struct KeyPermits {
    key: OwnedKey,
    semaphore: Semaphore,
    /// How many handles there are; of a key that comes and goes, changed under the lock of the table only.
    handles: AtomicUsize,
}

/// Somebody who holds or awaits a permit.
pub(super) struct KeyHandle {
    table: Arc<PermitTable>,
    key_permits: Arc<KeyPermits>,
}

impl KeyPermits {
    fn new(key: OwnedKey, permits: usize) -> Arc<Self> {
        Arc::new(Self { key, semaphore: Semaphore::new(permits), handles: AtomicUsize::new(0) })
    }

    fn is_common(&self) -> bool {
        matches!(self.key, OwnedKey::All)
    }

    /// One handle more.
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
    /// A permit, if one is free and nobody waits.
    pub(super) fn try_acquire(self) -> Result<Permit, Self> {
        let is_free = self.key_permits.semaphore.try_acquire().map(SemaphorePermit::forget).is_ok();
        if is_free { Ok(Permit(self)) } else { Err(self) }
    }

    /// A permit, when it is its turn; none if that takes too long.
    pub(super) async fn acquire(self, deadline: Option<Instant>) -> Option<Permit> {
        let turn = self.key_permits.semaphore.acquire();
        let permit = match deadline {
            Some(deadline) => timeout_at(deadline, turn).await.ok()?,
            None => turn.await,
        };
        // It is never closed.
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
        if self.key_permits.is_common() {
            self.key_permits.handles.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let removed = {
            let mut keys = self.table.keyed.lock();
            let is_last = self.key_permits.handles.fetch_sub(1, Ordering::Relaxed) == 1;
            if is_last { keys.remove_entry(&self.key_permits.key.as_ref_key()) } else { None }
        };
        // A key may hold the last handle of an instance, whose drop is user code.
        drop(removed);
    }
}

/// A permit that is held: given back before the handle is.
pub(super) struct Permit(KeyHandle);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.key_permits.semaphore.add_permits(1);
    }
}

/// The permits that a run holds and those above it, nearest first; in the run's context.
pub(super) struct HeldPermits {
    permit: Weak<Permit>,
    above: Option<Arc<Self>>,
}

impl HeldPermits {
    /// The permit of a key that the run, or one above it, holds now.
    pub(super) fn find(ctx: &RunContext, table: &Arc<PermitTable>, key: KeyRef<'_>) -> Option<Arc<Permit>> {
        let fits = |permit: &Arc<Permit>| Arc::ptr_eq(&permit.0.table, table) && permit.0.is_for(key);
        let nearest = ctx.extension::<Self>();
        let mut all = std::iter::successors(nearest.as_deref(), |held| held.above.as_deref());
        all.find_map(|held| held.permit.upgrade().filter(fits))
    }

    /// Lets the runs below know.
    pub(super) fn add(ctx: &RunContext, permit: Permit) -> Arc<Permit> {
        // Those that were given back at the end of an attempt are forgotten.
        let mut above = ctx.extension::<Self>();
        while above.as_ref().is_some_and(|held| held.permit.strong_count() == 0) {
            above = above.and_then(|held| held.above.clone());
        }
        let permit = Arc::new(permit);
        ctx.set_extension(Self { permit: Arc::downgrade(&permit), above });
        permit
    }
}
