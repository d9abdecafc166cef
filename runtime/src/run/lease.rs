//! Who has a run's lease: whoever has it brings the run to its end, or gives it up again (R13).
//!
//! 1. Whoever takes a run's steps has taken its lease; nobody else touches them meanwhile.
//! 2. Nothing is polled under the lock.
//! 3. A lease is `Over` once, for good: after the run has ended.
//! 4. Once somebody else has asked for the lease, the run's own future does not get it again; once the run is supervised,
//!    neither does the run above. Whoever cannot have it is woken when it can, or when the run is over.

use std::task::Waker;

use crate::sync::Mutex;

/// With steps of a run `S` in it, and in the end its result `T`.
pub(crate) struct DriverLease<S, T>(Mutex<Inner<S, T>>);

struct Inner<S, T> {
    state: LeaseState<S, T>,
    /// Who gets it at least.
    lowest: Driver,
    waiting: Vec<Waiter>,
}

/// Who is woken when the run is over, if not before, when the lease is free.
struct Waiter {
    who: Driver,
    for_seat: bool,
    waker: Waker,
}

impl<S, T> Inner<S, T> {
    fn wait(&mut self, who: Driver, for_seat: bool, waker: &Waker) {
        // Of the run's own future, the last waker counts.
        let same = |waiting: &&mut Waiter| waiting.who == who && (who == Driver::Own || waiting.waker.will_wake(waker));
        match self.waiting.iter_mut().find(same) {
            Some(waiting) => {
                waiting.for_seat |= for_seat;
                waiting.waker.clone_from(waker);
            }
            None => self.waiting.push(Waiter { who, for_seat, waker: waker.clone() }),
        }
    }
}

enum LeaseState<S, T> {
    Leased,
    Free(S),
    /// With the result, if nobody has fetched it.
    Over(Option<T>),
}

/// Who asks for the lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Driver {
    /// The run's own future.
    Own,
    /// The run above, which ends.
    Parent,
    /// The task that ends it, or whoever has no more patience.
    Supervisor,
}

pub(crate) enum Acquired<S, T> {
    Steps(S),
    ByOther,
    Over(Option<T>),
}

impl<S, T> DriverLease<S, T> {
    /// Taken by who makes the run.
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

    /// Gives the lease up, with the run not over.
    pub(crate) fn park(&self, step: S, who: Driver, waker: &Waker) {
        let woken: Vec<_> = {
            let mut inner = self.0.lock();
            inner.state = LeaseState::Free(step);
            let woken = inner.waiting.extract_if(.., |waiting| waiting.for_seat).collect();
            inner.wait(who, false, waker);
            woken
        };
        woken.into_iter().for_each(|waiting: Waiter| waiting.waker.wake());
    }

    /// Gives the lease up for good.
    pub(crate) fn over(&self, result: Option<T>) {
        let woken = {
            let mut inner = self.0.lock();
            inner.state = LeaseState::Over(result);
            std::mem::take(&mut inner.waiting)
        };
        woken.into_iter().for_each(|waiting| waiting.waker.wake());
    }

    /// Whether it has a result that nobody has fetched.
    pub(crate) fn has_result(&mut self) -> bool {
        matches!(self.0.get_mut().state, LeaseState::Over(Some(_)))
    }

    /// From now on a task brings the run to its end.
    pub(crate) fn supervised(&self) {
        self.0.lock().lowest = Driver::Supervisor;
    }
}
