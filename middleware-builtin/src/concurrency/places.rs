//! Places of each key, and who holds them.
//!
//! 1. A key has places as long as somebody holds or awaits one: tickets are counted under the lock of the table.
//! 2. Who waits for a place gets it in the order of coming: tokio's semaphore is fair, and who comes with a place free
//!    does not overtake those that wait.
//! 3. A place is given back when the last that shares it has gone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use emitree_runtime::RunContext;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::{Instant, timeout_at};

use crate::key::{Found, Owned};

type Lanes = HashMap<Owned, Arc<Lane>>;

/// The places of all keys.
#[derive(Default)]
pub(super) struct Table(Mutex<Lanes>);

/// The places of one key.
struct Lane {
    key: Owned,
    places: Arc<Semaphore>,
    /// How many tickets there are; changed under the lock of the table only.
    tickets: AtomicUsize,
}

/// Somebody who holds or awaits a place.
pub(super) struct Ticket {
    table: Arc<Table>,
    lane: Arc<Lane>,
}

impl Table {
    pub(super) fn ticket(self: &Arc<Self>, key: Found<'_>, places: usize) -> Ticket {
        let mut lanes = self.0.lock();
        let lane = match lanes.get(&key) {
            Some(lane) => Arc::clone(lane),
            None => Arc::clone(Self::add(&mut lanes, key, places)),
        };
        lane.tickets.fetch_add(1, Ordering::Relaxed);
        Ticket { table: Arc::clone(self), lane }
    }

    fn add<'a>(lanes: &'a mut Lanes, key: Found<'_>, places: usize) -> &'a Arc<Lane> {
        let (places, tickets) = (Arc::new(Semaphore::new(places)), AtomicUsize::new(0));
        let lane = Arc::new(Lane { key: key.to_owned(), places, tickets });
        lanes.entry(key.to_owned()).or_insert(lane)
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl Ticket {
    /// A place, if one is free and nobody waits.
    pub(super) fn try_place(self) -> Result<Place, Self> {
        match self.places().try_acquire_owned() {
            Ok(permit) => Ok(Place { _permit: Some(permit), ticket: self }),
            // It is never closed.
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => Err(self),
        }
    }

    /// A place, when it is its turn; none if that takes too long.
    pub(super) async fn place(self, deadline: Option<Instant>) -> Option<Place> {
        let turn = self.places().acquire_owned();
        let permit = match deadline {
            Some(deadline) => timeout_at(deadline, turn).await.ok()?,
            None => turn.await,
        };
        Some(Place { _permit: permit.ok(), ticket: self })
    }

    pub(super) fn key(&self) -> Owned {
        self.lane.key.clone()
    }

    fn places(&self) -> Arc<Semaphore> {
        Arc::clone(&self.lane.places)
    }

    fn is_for(&self, key: Found<'_>) -> bool {
        self.lane.key.as_found() == key
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let gone = {
            let mut lanes = self.table.0.lock();
            let is_last = self.lane.tickets.fetch_sub(1, Ordering::Relaxed) == 1;
            if is_last { lanes.remove_entry(&self.lane.key.as_found()) } else { None }
        };
        // A key may hold the last handle of an instance, whose drop is user code.
        drop(gone);
    }
}

/// A place that is held. The permit goes before the ticket.
pub(super) struct Place {
    _permit: Option<OwnedSemaphorePermit>,
    ticket: Ticket,
}

/// The places that a run holds and those above it, nearest first; in the run's context.
pub(super) struct Held {
    place: Weak<Place>,
    above: Option<Arc<Self>>,
}

impl Held {
    /// The place of a key that the run, or one above it, holds now.
    pub(super) fn find(ctx: &RunContext, table: &Arc<Table>, key: Found<'_>) -> Option<Arc<Place>> {
        let fits = |place: &Arc<Place>| Arc::ptr_eq(&place.ticket.table, table) && place.ticket.is_for(key);
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
