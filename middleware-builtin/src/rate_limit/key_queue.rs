//! The runs of one key, and the queues of all keys.
//!
//! 1. A run passes at once only if nobody waits in its queue: who comes later does not overtake.
//! 2. Who waits has the queue's turn, in the order of coming; the first in line sleeps until a run may pass and asks
//!    again. Who leaves gives the turn on and has taken nothing.
//! 3. A queue is let go when it is as good as new and nobody holds it; handles are made under the lock of the queues.

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
use crate::shared::key::{KeyRef, OwnedKey};

/// When there are fewer keys, none is let go.
const FEW: usize = 64;

pub(super) struct KeyQueue {
    limiter: RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<Nanos>>,
    waiting: AtomicUsize,
    turn: Turn<()>,
}

/// Why a run cannot pass at once.
pub(super) enum NotYet {
    /// Nobody waits, and it may pass then.
    Until(Instant),
    /// Others wait.
    Queued,
}

/// It could not wait long enough: when it may come again.
pub(super) struct TooLate(pub(super) Instant);

impl KeyQueue {
    fn new(quota: Quota, clock: TokioClock) -> Self {
        let limiter = RateLimiter::direct_with_clock(quota, clock);
        Self { limiter, waiting: AtomicUsize::new(0), turn: Turn::new(()) }
    }

    #[inline]
    fn ask(&self) -> Result<(), NotYet> {
        if self.waiting.load(Ordering::Acquire) > 0 {
            return Err(NotYet::Queued);
        }
        self.check().map_err(NotYet::Until)
    }

    #[inline]
    fn check(&self) -> Result<(), Instant> {
        let at = |not: NotUntil<Nanos>| self.limiter.clock().instant(not.earliest_possible());
        self.limiter.check().map_err(at)
    }

    /// Waits for its turn, and then until it may pass; no longer than the deadline, and not at all if it is known that
    /// that would be in vain.
    pub(super) async fn wait(&self, deadline: Option<Instant>, quota: Quota) -> Result<(), TooLate> {
        let waiter = Waiter::new(&self.waiting);
        let turn = match deadline {
            Some(deadline) => timeout_at(deadline, self.turn.lock()).await,
            None => Ok(self.turn.lock().await),
        };
        // Those in front pass first: at least as many intervals as there are of them.
        let Ok(_turn) = turn else {
            let after = quota.replenish_interval().saturating_mul(waiter.ahead);
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
struct Waiter<'a> {
    count: &'a AtomicUsize,
    ahead: u32,
}

impl<'a> Waiter<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        let ahead = count.fetch_add(1, Ordering::AcqRel);
        Self { count, ahead: u32::try_from(ahead).unwrap_or(u32::MAX).max(1) }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The queues of all keys.
pub(super) struct KeyQueues {
    quota: Quota,
    clock: TokioClock,
    /// That of all who have the same key, found without a look into the map.
    common: Arc<KeyQueue>,
    keyed: Mutex<KeyedQueues>,
}

struct KeyedQueues {
    queues: HashMap<OwnedKey, Arc<KeyQueue>>,
    /// At how many keys those that are as new are let go.
    sweep_at: usize,
}

impl KeyQueues {
    pub(super) fn new(quota: Quota) -> Self {
        let (clock, keyed) = (TokioClock::start(), KeyedQueues { queues: HashMap::new(), sweep_at: FEW });
        Self { quota, clock, common: Arc::new(KeyQueue::new(quota, clock)), keyed: Mutex::new(keyed) }
    }

    /// Asks the queue of a key; gives the queue if the run cannot pass at once.
    #[inline]
    pub(super) fn ask(&self, key: KeyRef<'_>) -> Option<(NotYet, Arc<KeyQueue>)> {
        match key {
            KeyRef::All => asked(&self.common),
            key => self.ask_keyed(key),
        }
    }

    fn ask_keyed(&self, key: KeyRef<'_>) -> Option<(NotYet, Arc<KeyQueue>)> {
        let mut keyed = self.keyed.lock();
        if let Some(queue) = keyed.queues.get(&key) {
            return asked(queue);
        }
        let gone = keyed.sweep(self.quota);
        let not_yet = asked(keyed.add(key, || KeyQueue::new(self.quota, self.clock)));
        drop(keyed);
        // A key may hold the last handle of an instance, whose drop is user code.
        drop(gone);
        not_yet
    }

    pub(super) fn len(&self) -> usize {
        self.keyed.lock().queues.len()
    }
}

impl KeyedQueues {
    /// Takes out what is as new, if there are many.
    fn sweep(&mut self, quota: Quota) -> Vec<(OwnedKey, Arc<KeyQueue>)> {
        if self.queues.len() < self.sweep_at {
            return Vec::new();
        }
        let is_idle = |queue: &Arc<KeyQueue>| Arc::strong_count(queue) == 1 && queue.is_as_new(quota);
        let gone = self.queues.extract_if(|_, queue| is_idle(queue)).collect();
        self.sweep_at = FEW.max(self.queues.len().saturating_mul(2));
        gone
    }

    fn add(&mut self, key: KeyRef<'_>, new: impl FnOnce() -> KeyQueue) -> &Arc<KeyQueue> {
        self.queues.entry(key.to_owned()).or_insert_with(|| Arc::new(new()))
    }
}

#[inline]
fn asked(queue: &Arc<KeyQueue>) -> Option<(NotYet, Arc<KeyQueue>)> {
    queue.ask().err().map(|not_yet| (not_yet, Arc::clone(queue)))
}
