//! What is being executed, and who waits for it.
//!
//! 1. Of what is the same, one leads at a time; who comes later joins it.
//! 2. A leader that is dropped, for whatever reason, leaves no flight behind, and those who joined hear of it: one of
//!    them leads next.
//! 3. An answer is kept before its flight ends: who finds neither looks for the answer once more as the leader.
//! 4. What is detached is nobody's to join, and what it comes to is not kept.
//! 5. Nobody waits for itself, whatever way round (`deadlock.rs`).
//! 6. The lock is held over no user code: keys are compared by it, and bytes are all that they are.

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

/// What has come of a flight: nothing yet, or what those who joined get.
type Completion<T> = Option<Arc<Result<T, Error>>>;

/// All flights of a cache.
pub(super) struct Flights<T>(Arc<Mutex<HashMap<CacheKey, Flight<T>>>>);

struct Flight<T> {
    id: u64,
    began: Instant,
    completion: watch::Receiver<Completion<T>>,
}

/// What one does about a key.
pub(super) enum Role<T> {
    Leads(Leader<T>),
    Joins(Follower<T>),
    /// It would wait for itself: this run was started in the one that leads, or in one that that waits for.
    Recurses,
}

/// One that executes. Dropped, it leaves that to others.
pub(super) struct Leader<T> {
    id: u64,
    key: CacheKey,
    flights: Flights<T>,
    completion: watch::Sender<Completion<T>>,
    /// As long as it leads.
    alive: Arc<()>,
}

/// One that waits.
pub(super) struct Follower<T> {
    pub(super) began: Instant,
    completion: watch::Receiver<Completion<T>>,
    /// As long as it waits.
    _wait: Wait,
}

impl<T> Flights<T> {
    pub(super) fn enter(&self, key: &CacheKey, ctx: &RunContext) -> Role<T> {
        let mut flights = self.0.lock();
        match flights.entry(key.clone()) {
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

    /// From now on nobody joins those that are under way.
    #[expect(clippy::mutable_key_type, reason = "an emitter is hashed and compared by its identity")]
    pub(super) fn detach(&self) {
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

    /// Runs that are started in this one do not wait for it.
    pub(super) fn begin(&self, ctx: &RunContext) {
        // Those that are over are forgotten: a run may lead one for each attempt, or one after the other at a place.
        let mut led: Vec<_> =
            ctx.extension().iter().flat_map(|above: &Arc<LedFlights>| above.still_led().cloned()).collect();
        led.push(LedFlight { id: self.id, alive: Arc::downgrade(&self.alive) });
        ctx.set_extension(LedFlights(led));
    }

    /// Whether what it comes to may be kept.
    pub(super) fn is_attached(&self) -> bool {
        self.flights.0.lock().get(&self.key).is_some_and(|flight| flight.id == self.id)
    }

    /// Gives those who joined what it came to.
    pub(super) fn complete(self, result: Result<T, Error>) {
        self.completion.send_replace(Some(Arc::new(result)));
    }
}

impl<T> Drop for Leader<T> {
    fn drop(&mut self) {
        let mut flights = self.flights.0.lock();
        let own = flights.get(&self.key).is_some_and(|flight| flight.id == self.id);
        let removed = own.then(|| flights.remove(&self.key));
        drop(flights);
        // A result may have its last handle here, and its drop is user code.
        drop(removed);
    }
}

impl<T: Clone> Follower<T> {
    /// What those who joined get; none if whoever led has left.
    pub(super) async fn wait(mut self) -> Option<Result<T, Error>> {
        let completion = self.completion.wait_for(Option::is_some).await.ok()?.clone();
        completion.as_deref().cloned()
    }
}

/// The flights that a run, and those above it, lead, or have led.
struct LedFlights(Vec<LedFlight>);

#[derive(Clone)]
struct LedFlight {
    id: u64,
    alive: Weak<()>,
}

impl LedFlights {
    /// Those that are led still.
    fn still_led(&self) -> impl Iterator<Item = &LedFlight> {
        self.0.iter().filter(|led| led.alive.strong_count() > 0)
    }

    /// The flights that are led there, or above.
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
