//! Places of each key, and who holds them.
//!
//! 1. A key has places as long as somebody holds or awaits one: tickets are counted under the lock of the table. Where all
//!    are counted together, the places are always there.
//! 2. Who waits for a place gets it in the order of coming: tokio's semaphore is fair, and who comes with a place free
//!    does not overtake those that wait.
//! 3. A place is given back when the last that shares it has gone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use emitree_runtime::RunContext;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::key::{Found, Owned};

type Lanes = HashMap<Owned, Arc<Lane>>;

/// The places of all keys.
pub(super) struct Table {
    places: usize,
    /// Those of all who have the same key, found without a look into the map; always there.
    common: Arc<Lane>,
    keyed: Mutex<Lanes>,
}

/// The places of one key.
struct Lane {
    key: Owned,
    places: Semaphore,
    /// How many tickets there are; of a key that comes and goes, changed under the lock of the table only.
    tickets: AtomicUsize,
}

/// Somebody who holds or awaits a place.
pub(super) struct Ticket {
    table: Arc<Table>,
    lane: Arc<Lane>,
}

impl Lane {
    fn new(key: Owned, places: usize) -> Arc<Self> {
        Arc::new(Self { key, places: Semaphore::new(places), tickets: AtomicUsize::new(0) })
    }

    fn is_common(&self) -> bool {
        matches!(self.key, Owned::All)
    }

    /// One ticket more.
    fn taken(self: &Arc<Self>) -> Arc<Self> {
        self.tickets.fetch_add(1, Ordering::Relaxed);
        Arc::clone(self)
    }
}

impl Table {
    pub(super) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self { places, common: Lane::new(Owned::All, places), keyed: Mutex::default() })
    }

    pub(super) fn ticket(self: &Arc<Self>, key: Found<'_>) -> Ticket {
        let lane = match key {
            Found::All => self.common.taken(),
            key => self.keyed(key),
        };
        Ticket { table: Arc::clone(self), lane }
    }

    fn keyed(&self, key: Found<'_>) -> Arc<Lane> {
        let mut lanes = self.keyed.lock();
        if let Some(lane) = lanes.get(&key) {
            return lane.taken();
        }
        lanes.entry(key.to_owned()).or_insert_with_key(|key| Lane::new(key.clone(), self.places)).taken()
    }

    pub(super) fn len(&self) -> usize {
        self.keyed.lock().len() + usize::from(self.common.tickets.load(Ordering::Relaxed) > 0)
    }
}

impl Ticket {
    /// A place, if one is free and nobody waits.
    pub(super) fn try_place(self) -> Result<Place, Self> {
        let is_free = self.lane.places.try_acquire().map(SemaphorePermit::forget).is_ok();
        if is_free { Ok(Place(self)) } else { Err(self) }
    }

    /// A place, when it is its turn; none if that takes too long.
    pub(super) async fn place(self, deadline: Option<Instant>) -> Option<Place> {
        let turn = self.lane.places.acquire();
        let permit = match deadline {
            Some(deadline) => timeout_at(deadline, turn).await.ok()?,
            None => turn.await,
        };
        // It is never closed.
        permit.ok()?.forget();
        Some(Place(self))
    }

    pub(super) fn key(&self) -> Owned {
        self.lane.key.clone()
    }

    fn is_for(&self, key: Found<'_>) -> bool {
        self.lane.key.as_found() == key
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.lane.is_common() {
            self.lane.tickets.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let gone = {
            let mut lanes = self.table.keyed.lock();
            let is_last = self.lane.tickets.fetch_sub(1, Ordering::Relaxed) == 1;
            if is_last { lanes.remove_entry(&self.lane.key.as_found()) } else { None }
        };
        // A key may hold the last handle of an instance, whose drop is user code.
        drop(gone);
    }
}

/// A place that is held: given back before the ticket is.
pub(super) struct Place(Ticket);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.lane.places.add_permits(1);
    }
}

/// The places that a run holds and those above it, nearest first; in the run's context.
pub(super) struct Held {
    place: Weak<Place>,
    above: Option<Arc<Self>>,
}

impl Held {
    /// The place of a key that the run, or one above it, holds now.
    pub(super) fn find(ctx: &RunContext, table: &Arc<Table>, key: Found<'_>) -> Option<Arc<Place>> {
        let fits = |place: &Arc<Place>| Arc::ptr_eq(&place.0.table, table) && place.0.is_for(key);
        let nearest = ctx.extension::<Self>();
        let mut all = std::iter::successors(nearest.as_deref(), |held| held.above.as_deref());
        all.find_map(|held| held.place.upgrade().filter(fits))
    }

    /// Lets the runs below know.
    pub(super) fn tell(ctx: &RunContext, place: &Arc<Place>) {
        // Those that were given back at the end of an attempt are forgotten.
        let mut above = ctx.extension::<Self>();
        while above.as_ref().is_some_and(|held| held.place.strong_count() == 0) {
            above = above.and_then(|held| held.above.clone());
        }
        ctx.set_extension(Self { place: Arc::downgrade(place), above });
    }
}
