//! The runs of one key, and the lanes of all keys.
//!
//! 1. A run passes at once only if nobody waits in its lane: who comes later does not overtake.
//! 2. Who waits has the lane's turn, in the order of coming; the first in line sleeps until a run may pass and asks
//!    again. Who leaves gives the turn on and has taken nothing.
//! 3. A lane is let go when it is as good as new and nobody holds it; handles are made under the lock of the lanes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{NotUntil, Quota, RateLimiter};
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Mutex as Turn;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::clock::TokioClock;
use crate::key::{Found, Owned};

/// When there are fewer keys, none is let go.
const FEW: usize = 64;

pub(super) struct Lane {
    limiter: RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<Nanos>>,
    waiting: AtomicUsize,
    turn: Turn<()>,
}

/// Why a run cannot pass at once.
pub(super) enum Told {
    /// Nobody waits, and it may pass then.
    NotUntil(Instant),
    /// Others wait.
    Queue,
}

/// It could not wait long enough: when it may come again.
pub(super) struct TooLate(pub(super) Instant);

impl Lane {
    fn new(quota: Quota, clock: TokioClock) -> Self {
        let limiter = RateLimiter::direct_with_clock(quota, clock);
        Self { limiter, waiting: AtomicUsize::new(0), turn: Turn::new(()) }
    }

    #[inline]
    fn ask(&self) -> Result<(), Told> {
        if self.waiting.load(Ordering::Acquire) > 0 {
            return Err(Told::Queue);
        }
        self.check().map_err(Told::NotUntil)
    }

    #[inline]
    fn check(&self) -> Result<(), Instant> {
        let at = |not: NotUntil<Nanos>| self.limiter.clock().instant(not.earliest_possible());
        self.limiter.check().map_err(at)
    }

    /// Waits for its turn, and then until it may pass; no longer than the deadline, and not at all if it is known that
    /// that would be in vain.
    pub(super) async fn wait(&self, deadline: Option<Instant>, quota: Quota) -> Result<(), TooLate> {
        let place = Waiting::new(&self.waiting);
        let turn = match deadline {
            Some(deadline) => timeout_at(deadline, self.turn.lock()).await,
            None => Ok(self.turn.lock().await),
        };
        // Those in front pass first: at least as many intervals as there are of them.
        let Ok(_turn) = turn else {
            let after = quota.replenish_interval().saturating_mul(place.ahead);
            return Err(TooLate(Instant::now().checked_add(after).unwrap_or_else(Instant::now)));
        };
        while let Err(until) = self.check() {
            if deadline.is_some_and(|deadline| deadline < until) {
                return Err(TooLate(until));
            }
            sleep_until(until).await;
        }
        Ok(())
    }

    /// Whether it is as one that nobody has passed. It may take what it has: only to be asked when it is let go.
    fn is_as_new(&self, quota: Quota) -> bool {
        matches!(self.limiter.check_n(quota.burst_size()), Ok(Ok(())))
    }
}

/// Somebody who waits.
struct Waiting<'a> {
    count: &'a AtomicUsize,
    ahead: u32,
}

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        let ahead = count.fetch_add(1, Ordering::AcqRel);
        Self { count, ahead: u32::try_from(ahead).unwrap_or(u32::MAX).max(1) }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The lanes of all keys.
pub(super) struct Lanes {
    quota: Quota,
    clock: TokioClock,
    /// That of all who have the same key, found without a look into the map.
    common: Arc<Lane>,
    keyed: Mutex<Keyed>,
}

struct Keyed {
    lanes: HashMap<Owned, Arc<Lane>>,
    /// At how many keys those that are as new are let go.
    sweep_at: usize,
}

impl Lanes {
    pub(super) fn new(quota: Quota) -> Self {
        let (clock, keyed) = (TokioClock::start(), Keyed { lanes: HashMap::new(), sweep_at: FEW });
        Self { quota, clock, common: Arc::new(Lane::new(quota, clock)), keyed: Mutex::new(keyed) }
    }

    /// Asks the lane of a key; gives the lane if the run cannot pass at once.
    #[inline]
    pub(super) fn ask(&self, key: Found<'_>) -> Option<(Told, Arc<Lane>)> {
        match key {
            Found::All => asked(&self.common),
            key => self.ask_keyed(key),
        }
    }

    fn ask_keyed(&self, key: Found<'_>) -> Option<(Told, Arc<Lane>)> {
        let mut keyed = self.keyed.lock();
        if let Some(lane) = keyed.lanes.get(&key) {
            return asked(lane);
        }
        let gone = keyed.sweep(self.quota);
        let told = asked(keyed.add(key, || Lane::new(self.quota, self.clock)));
        drop(keyed);
        // A key may hold the last handle of an instance, whose drop is user code.
        drop(gone);
        told
    }

    pub(super) fn len(&self) -> usize {
        self.keyed.lock().lanes.len()
    }
}

impl Keyed {
    /// Takes out what is as new, if there are many.
    fn sweep(&mut self, quota: Quota) -> Vec<(Owned, Arc<Lane>)> {
        if self.lanes.len() < self.sweep_at {
            return Vec::new();
        }
        let is_idle = |lane: &Arc<Lane>| Arc::strong_count(lane) == 1 && lane.is_as_new(quota);
        let gone = self.lanes.extract_if(|_, lane| is_idle(lane)).collect();
        self.sweep_at = FEW.max(self.lanes.len().saturating_mul(2));
        gone
    }

    fn add(&mut self, key: Found<'_>, new: impl FnOnce() -> Lane) -> &Arc<Lane> {
        self.lanes.entry(key.to_owned()).or_insert_with(|| Arc::new(new()))
    }
}

#[inline]
fn asked(lane: &Arc<Lane>) -> Option<(Told, Arc<Lane>)> {
    lane.ask().err().map(|told| (told, Arc::clone(lane)))
}
