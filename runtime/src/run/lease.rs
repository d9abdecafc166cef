//! The lease of a run. The holder of the lease, the *driver*, advances the run through its steps until the run is over,
//! or until the driver parks the current step and thereby releases the lease (R13).
//!
//! 1. Only the driver touches a run's steps.
//! 2. No future is polled while the lock is held.
//! 3. A lease becomes `Over` after the run has ended. From then on, no driver receives steps. Fetching
//!    the result leaves the lease `Leased`. If another driver may be waiting, the driver that fetched the result sets
//!    the lease back to `Over`, which wakes the waiting driver.
//! 4. Once the parent or a supervisor has requested the lease, the run's own future cannot acquire it again. Once the
//!    run is supervised, the parent cannot acquire it either. A refused driver is woken when it can acquire the lease,
//!    or when the run is over.

use std::task::Waker;

use crate::sync::Mutex;

/// A lease that keeps the parked step `S` of a run, and in the end its result `T`.
pub(crate) struct DriverLease<S, T>(Mutex<Inner<S, T>>);

struct Inner<S, T> {
    state: LeaseState<S, T>,
    /// The lowest-ranked driver that may still acquire the lease.
    lowest: Driver,
    waiting: Vec<Waiter>,
}

/// A driver that waits for the end of the run, and possibly for the lease.
struct Waiter {
    who: Driver,
    for_lease: bool,
    waker: Waker,
}

impl<S, T> Inner<S, T> {
    fn wait(&mut self, who: Driver, for_lease: bool, waker: &Waker) {
        // The run's own future may move between tasks: only its last waker is kept. Other drivers have one waker for
        // each task.
        let same = |waiting: &&mut Waiter| waiting.who == who && (who == Driver::Own || waiting.waker.will_wake(waker));
        match self.waiting.iter_mut().find(same) {
            Some(waiting) => {
                waiting.for_lease |= for_lease;
                waiting.waker.clone_from(waker);
            }
            None => self.waiting.push(Waiter { who, for_lease, waker: waker.clone() }),
        }
    }
}

enum LeaseState<S, T> {
    Leased,
    Free(S),
    /// The run is over. Contains the result until it is fetched.
    Over(Option<T>),
}

/// The drivers that can acquire a lease, in ascending rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Driver {
    /// The run's own future.
    Own,
    /// The parent of the run, when the parent ends.
    Parent,
    /// A task that ends the run after the run's future was dropped, or code that ends the run at once.
    Supervisor,
}

pub(crate) enum Acquired<S, T> {
    Steps(S),
    ByOther,
    Over(Option<T>),
}

impl<S, T> DriverLease<S, T> {
    /// Returns a lease that the caller holds.
    pub(crate) fn taken() -> Self {
        Self(Mutex::new(Inner { state: LeaseState::Leased, lowest: Driver::Own, waiting: Vec::new() }))
    }

    pub(crate) fn acquire(&self, who: Driver, waker: &Waker) -> Acquired<S, T> {
        let mut inner = self.0.lock();
        let outranked = who < inner.lowest;
        inner.lowest = inner.lowest.max(who.min(Driver::Parent));
        match std::mem::replace(&mut inner.state, LeaseState::Leased) {
            LeaseState::Over(result) => Acquired::Over(result),
            LeaseState::Free(step) if !outranked => Acquired::Steps(step),
            state => {
                inner.state = state;
                inner.wait(who, !outranked, waker);
                Acquired::ByOther
            }
        }
    }

    /// Releases the lease before the run is over, and registers the driver's waker for the end of the run.
    pub(crate) fn park(&self, step: S, who: Driver, waker: &Waker) {
        let woken: Vec<_> = {
            let mut inner = self.0.lock();
            inner.state = LeaseState::Free(step);
            let woken = inner.waiting.extract_if(.., |waiting| waiting.for_lease).collect();
            inner.wait(who, false, waker);
            woken
        };
        woken.into_iter().for_each(|waiting: Waiter| waiting.waker.wake());
    }

    /// Releases the lease after the run has ended, and wakes all waiting drivers.
    pub(crate) fn over(&self, result: Option<T>) {
        let woken = {
            let mut inner = self.0.lock();
            inner.state = LeaseState::Over(result);
            std::mem::take(&mut inner.waiting)
        };
        woken.into_iter().for_each(|waiting| waiting.waker.wake());
    }

    /// Returns `true` if the run is over. Otherwise registers a waker for the end of the run.
    pub(crate) fn is_over(&self, waker: &Waker) -> bool {
        let mut inner = self.0.lock();
        let is_over = matches!(inner.state, LeaseState::Over(_));
        if !is_over {
            // The rank of a parent keeps the wakers of several tasks apart. No lease is requested, so no other driver
            // is refused.
            inner.wait(Driver::Parent, false, waker);
        }
        is_over
    }

    /// Returns `true` if there is a result that was not fetched.
    pub(crate) fn has_result(&mut self) -> bool {
        matches!(self.0.get_mut().state, LeaseState::Over(Some(_)))
    }

    /// Reserves the lease for supervisors.
    pub(crate) fn supervised(&self) {
        self.0.lock().lowest = Driver::Supervisor;
    }
}
