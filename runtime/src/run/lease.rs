//! Who has a run's seat: whoever has it brings the run to its end, or gives it up again (R13).
//!
//! 1. Whoever takes a run's steps has taken its seat; nobody else touches them meanwhile.
//! 2. Nothing is polled under the lock.
//! 3. A seat is `Over` once, for good: after the run has ended.
//! 4. Once somebody else has asked for the seat, the run's own future does not get it again; once the run is supervised,
//!    neither does the run above. Whoever cannot have it is woken when it can, or when the run is over.

use std::task::Waker;

use crate::sync::Mutex;

/// With steps of a run `S` in it, and in the end its result `T`.
pub(crate) struct Seat<S, T>(Mutex<State<S, T>>);

struct State<S, T> {
    held: Held<S, T>,
    /// Who gets it at least.
    lowest: Who,
    waiting: Vec<Waiting>,
}

/// Who is woken when the run is over, if not before, when the seat is free.
struct Waiting {
    who: Who,
    for_seat: bool,
    waker: Waker,
}

impl<S, T> State<S, T> {
    fn wait(&mut self, who: Who, for_seat: bool, waker: &Waker) {
        // Of the run's own future, the last waker counts.
        let same = |waiting: &&mut Waiting| waiting.who == who && (who == Who::Own || waiting.waker.will_wake(waker));
        match self.waiting.iter_mut().find(same) {
            Some(waiting) => {
                waiting.for_seat |= for_seat;
                waiting.waker.clone_from(waker);
            }
            None => self.waiting.push(Waiting { who, for_seat, waker: waker.clone() }),
        }
    }
}

enum Held<S, T> {
    Taken,
    Free(S),
    /// With the result, if nobody has fetched it.
    Over(Option<T>),
}

/// Who asks for the seat.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// The run's own future.
    Own,
    /// The run above, which ends.
    Above,
    /// The task that ends it, or whoever has no more patience.
    Supervisor,
}

pub(crate) enum Taken<S, T> {
    Seat(S),
    ByOther,
    Over(Option<T>),
}

impl<S, T> Seat<S, T> {
    /// Taken by who makes the run.
    pub(crate) fn taken() -> Self {
        Self(Mutex::new(State { held: Held::Taken, lowest: Who::Own, waiting: Vec::new() }))
    }

    pub(crate) fn take(&self, who: Who, waker: &Waker) -> Taken<S, T> {
        let mut state = self.0.lock();
        let outranked = who < state.lowest;
        state.lowest = state.lowest.max(who.min(Who::Above));
        match std::mem::replace(&mut state.held, Held::Taken) {
            Held::Over(result) => Taken::Over(result),
            Held::Free(step) if !outranked => Taken::Seat(step),
            held => {
                state.held = held;
                state.wait(who, !outranked, waker);
                Taken::ByOther
            }
        }
    }

    /// Gives the seat up, with the run not over.
    pub(crate) fn park(&self, step: S, who: Who, waker: &Waker) {
        let woken: Vec<_> = {
            let mut state = self.0.lock();
            state.held = Held::Free(step);
            let woken = state.waiting.extract_if(.., |waiting| waiting.for_seat).collect();
            state.wait(who, false, waker);
            woken
        };
        woken.into_iter().for_each(|waiting: Waiting| waiting.waker.wake());
    }

    /// Gives the seat up for good.
    pub(crate) fn over(&self, result: Option<T>) {
        let woken = {
            let mut state = self.0.lock();
            state.held = Held::Over(result);
            std::mem::take(&mut state.waiting)
        };
        woken.into_iter().for_each(|waiting| waiting.waker.wake());
    }

    /// Whether it has a result that nobody has fetched.
    pub(crate) fn has_result(&mut self) -> bool {
        matches!(self.0.get_mut().held, Held::Over(Some(_)))
    }

    /// From now on a task brings the run to its end.
    pub(crate) fn supervised(&self) {
        self.0.lock().lowest = Who::Supervisor;
    }
}
