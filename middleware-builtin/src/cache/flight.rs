//! Executions under way, and the runs that wait for them.
//!
//! A *flight* is one execution of the work for a key. Its *leader* is the run that executes the work. Its *followers*
//! are the runs that wait for the result.
//!
//! 1. Each key has at most one attached flight. A run that arrives later follows that flight.
//! 2. A leader that is dropped removes its flight and wakes its followers. If there is no result, one of the followers
//!    leads next.
//! 3. A result that the cache keeps is stored before its flight ends. A new leader therefore looks the entry up once
//!    more before it executes, unless its run is in a further attempt.
//! 4. A detached flight accepts no new followers, and its result is not stored.
//! 5. No run waits for itself, directly or through other flights (`deadlock.rs`).
//! 6. No user code runs under the lock. Comparing keys runs no user code, because a key consists of a text and the
//!    identity of an emitter.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use emitree_runtime::{Error, RunContext};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::deadlock::Wait;
use super::key::CacheKey;

/// The result of a flight; `None` while the flight is under way.
type Completion<T> = Option<Arc<Result<T, Error>>>;

/// The attached flights of a cache.
pub(super) struct Flights<T>(Arc<Mutex<HashMap<CacheKey, Flight<T>>>>);

/// One attached flight, with the receiver that each follower clones.
struct Flight<T> {
    id: u64,
    began: Instant,
    completion: watch::Receiver<Completion<T>>,
}

/// The role of a run in the flight of a key.
pub(super) enum Role<T> {
    Leads(Leader<T>),
    Joins(Follower<T>),
    /// The run would wait for itself: the flight is led by this run or a run above it, or waits for a flight that one
    /// of these runs leads.
    Recurses,
}

/// The executing run of a flight. If it is dropped without a result, a follower leads next.
pub(super) struct Leader<T> {
    id: u64,
    key: CacheKey,
    flights: Flights<T>,
    completion: watch::Sender<Completion<T>>,
    /// Dropped when this run no longer leads: `LedFlight` has a `Weak` to it.
    alive: Arc<()>,
}

/// A waiting run.
pub(super) struct Follower<T> {
    pub(super) began: Instant,
    completion: watch::Receiver<Completion<T>>,
    /// Keeps the wait registered until this follower is dropped.
    _wait: Wait,
}

impl<T> Flights<T> {
    /// Joins or starts the flight of a key, and returns the role of the run.
    pub(super) fn enter(&self, key: &CacheKey, ctx: &RunContext) -> Role<T> {
        let mut flights = self.0.lock();
        match flights.entry(key.clone()) {
            // Register the wait under the lock of the flights, so that the flight is not removed before the run joins.
            Entry::Occupied(flight) => match Wait::of(LedFlights::ids_at(ctx), flight.get().id) {
                Some(wait) => Role::Joins(flight.get().join(wait)),
                None => Role::Recurses,
            },
            Entry::Vacant(vacant) => {
                let (id, (completion, receiver)) = (next_id(), watch::channel(None));
                vacant.insert(Flight { id, began: Instant::now(), completion: receiver });
                Role::Leads(Leader { id, key: key.clone(), flights: self.clone(), completion, alive: Arc::default() })
            }
        }
    }

    /// Detaches all flights (4).
    #[expect(clippy::mutable_key_type, reason = "an emitter is hashed and compared by its identity")]
    pub(super) fn detach(&self) {
        // Drop the flights after unlocking: the drop of a result may call user code (6).
        let detached = std::mem::take(&mut *self.0.lock());
        drop(detached);
    }
}

impl<T> Flight<T> {
    fn join(&self, wait: Wait) -> Follower<T> {
        Follower { began: self.began, completion: self.completion.clone(), _wait: wait }
    }
}

impl<T> Leader<T> {
    pub(super) const fn key(&self) -> &CacheKey {
        &self.key
    }

    /// Marks the run as the leader, so that runs started in it do not wait for it (5).
    pub(super) fn begin(&self, ctx: &RunContext) {
        // Keep only flights that are still led: a run may lead a flight for each attempt, and the list must not grow
        // with each attempt.
        let mut led: Vec<_> =
            ctx.extension().iter().flat_map(|above: &Arc<LedFlights>| above.still_led().cloned()).collect();
        led.push(LedFlight { id: self.id, alive: Arc::downgrade(&self.alive) });
        ctx.set_extension(LedFlights(led));
    }

    /// Returns `true` unless the flight was detached.
    pub(super) fn is_attached(&self) -> bool {
        self.flights.0.lock().get(&self.key).is_some_and(|flight| flight.id == self.id)
    }

    /// Ends the flight with a result for its followers.
    pub(super) fn complete(self, result: Result<T, Error>) {
        self.completion.send_replace(Some(Arc::new(result)));
    }
}

impl<T> Drop for Leader<T> {
    fn drop(&mut self) {
        let mut flights = self.flights.0.lock();
        // After a detachment, the key may belong to another leader's flight: remove only this leader's flight.
        let own = flights.get(&self.key).is_some_and(|flight| flight.id == self.id);
        let removed = own.then(|| flights.remove(&self.key));
        drop(flights);
        // `removed` may hold the last handle to a result, whose drop may call user code (6).
        drop(removed);
    }
}

impl<T: Clone> Follower<T> {
    /// Waits for the result. Returns `None` if the leader left without a result.
    pub(super) async fn wait(mut self) -> Option<Result<T, Error>> {
        let completion = self.completion.wait_for(Option::is_some).await.ok()?.clone();
        completion.as_deref().cloned()
    }
}

/// The flights led by a run and the runs above it, as an extension of the run. The list may contain flights that have
/// ended.
struct LedFlights(Vec<LedFlight>);

#[derive(Clone)]
struct LedFlight {
    id: u64,
    alive: Weak<()>,
}

impl LedFlights {
    /// Returns the flights that are still led.
    fn still_led(&self) -> impl Iterator<Item = &LedFlight> {
        self.0.iter().filter(|led| led.alive.strong_count() > 0)
    }

    /// Returns the ids of the flights led by a run and by the runs above it.
    fn ids_at(ctx: &RunContext) -> Vec<u64> {
        ctx.extension().iter().flat_map(|leading: &Arc<Self>| leading.still_led().map(|led| led.id)).collect()
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<T> Clone for Flights<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}
