//! The queue of a key, and the queues of all keys.
//!
//! 1. A run passes at once only if no other run waits in the queue of its key: runs do not overtake each other.
//! 2. Waiting runs get the turn, a lock, in the order of their arrival. The run that has the turn sleeps until the
//!    limit lets a run pass, and checks again. A run that stops waiting passes the turn on and uses no capacity.
//! 3. A queue is removed only when it equals a new queue and no run uses it. Runs get their queues under the lock of
//!    the map, so no run can get a queue that is being removed.

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

/// Below this number of keys, no queue is removed.
const FEW: usize = 64;

pub(super) struct KeyQueue {
    limiter: RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<Nanos>>,
    waiting: AtomicUsize,
    turn: Turn<()>,
}

/// The reason why a run cannot pass at once.
pub(super) enum NotYet {
    /// No run waits, and the next run may pass at this instant.
    Until(Instant),
    /// Other runs wait.
    Queued,
}

/// A run would have to wait longer than allowed. The run may be tried again at this instant at the earliest.
pub(super) struct TooLate(pub(super) Instant);

impl KeyQueue {
    fn new(quota: Quota, clock: TokioClock) -> Self {
        let limiter = RateLimiter::direct_with_clock(quota, clock);
        Self { limiter, waiting: AtomicUsize::new(0), turn: Turn::new(()) }
    }

    #[inline]
    fn check_in(&self) -> Result<(), NotYet> {
        // Do not check the limiter while runs wait: the check could let this run overtake them (1).
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

    /// Waits for the turn, and then until the limit lets the run pass. Returns [`TooLate`] at the deadline, or earlier
    /// if the deadline is certain to be missed.
    pub(super) async fn wait(&self, deadline: Option<Instant>, quota: Quota) -> Result<(), TooLate> {
        // The run counts as waiting until this future ends or is dropped, so that later runs queue behind it (1).
        let waiter = Waiter::new(&self.waiting);
        let turn = match deadline {
            Some(deadline) => timeout_at(deadline, self.turn.lock()).await,
            None => Ok(self.turn.lock().await),
        };
        // If the turn does not come in time, the run is too late. The runs ahead pass first, so a later try must wait
        // for at least one interval per run ahead.
        let Ok(_turn) = turn else {
            let after = quota.replenish_interval().saturating_mul(waiter.ahead);
            return Err(TooLate(Instant::now().checked_add(after).unwrap_or_else(Instant::now)));
        };
        // Check again after the sleep: only a successful check of `governor` lets the run pass, and a failed check uses
        // no capacity (2).
        while let Err(until) = self.check() {
            if deadline.is_some_and(|deadline| deadline < until) {
                return Err(TooLate(until));
            }
            sleep_until(until).await;
        }
        Ok(())
    }

    /// Returns `true` if the queue equals a new queue. In that case, the check has used up the burst, so the queue must
    /// be removed.
    fn is_as_new(&self, quota: Quota) -> bool {
        matches!(self.limiter.check_n(quota.burst_size()), Ok(Ok(())))
    }
}

/// Counts a run as waiting until this value is dropped.
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
    /// The queue of [`KeyRef::All`], which needs no lookup.
    common: Arc<KeyQueue>,
    keyed: Mutex<KeyedQueues>,
}

struct KeyedQueues {
    queues: HashMap<OwnedKey, Arc<KeyQueue>>,
    /// Queues are removed when there are at least this many keys.
    sweep_at: usize,
}

impl KeyQueues {
    pub(super) fn new(quota: Quota) -> Self {
        let clock = TokioClock::start();
        let keyed = KeyedQueues { queues: HashMap::new(), sweep_at: FEW };
        Self { quota, clock, common: Arc::new(KeyQueue::new(quota, clock)), keyed: Mutex::new(keyed) }
    }

    /// Returns `None` if a run with this key may pass now; otherwise returns the reason for the delay, and the queue of
    /// the key.
    #[inline]
    pub(super) fn check_in(&self, key: KeyRef<'_>) -> Option<(NotYet, Arc<KeyQueue>)> {
        match key {
            KeyRef::All => checked_in(&self.common),
            key => self.check_in_keyed(key),
        }
    }

    fn check_in_keyed(&self, key: KeyRef<'_>) -> Option<(NotYet, Arc<KeyQueue>)> {
        let mut keyed = self.keyed.lock();
        if let Some(queue) = keyed.queues.get(&key) {
            return checked_in(queue);
        }
        let gone = keyed.sweep(self.quota);
        let not_yet = checked_in(keyed.add(key, || KeyQueue::new(self.quota, self.clock)));
        drop(keyed);
        // A removed key may own the last handle of an instance, whose drop calls user code: drop the keys without the
        // lock.
        drop(gone);
        not_yet
    }

    pub(super) fn len(&self) -> usize {
        self.keyed.lock().queues.len()
    }
}

impl KeyedQueues {
    /// Removes the queues that no run uses and that equal new queues, if there are many keys.
    fn sweep(&mut self, quota: Quota) -> Vec<(OwnedKey, Arc<KeyQueue>)> {
        if self.queues.len() < self.sweep_at {
            return Vec::new();
        }
        let is_idle = |queue: &Arc<KeyQueue>| Arc::strong_count(queue) == 1 && queue.is_as_new(quota);
        let gone = self.queues.extract_if(|_, queue| is_idle(queue)).collect();
        // Sweep again when the number has doubled, so that sweeps cost constant time per new key on average.
        self.sweep_at = FEW.max(self.queues.len().saturating_mul(2));
        gone
    }

    fn add(&mut self, key: KeyRef<'_>, new: impl FnOnce() -> KeyQueue) -> &Arc<KeyQueue> {
        self.queues.entry(key.to_owned()).or_insert_with(|| Arc::new(new()))
    }
}

#[inline]
fn checked_in(queue: &Arc<KeyQueue>) -> Option<(NotYet, Arc<KeyQueue>)> {
    queue.check_in().err().map(|not_yet| (not_yet, Arc::clone(queue)))
}
