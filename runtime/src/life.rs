//! What a run is while it lasts, shared by all who may bring it to its end (R4, R8, R13).
//!
//! A run has two halves: its *work*, which only the run's own future has and polls, and what it tells, the [`Step`]s of
//! which anybody can take to the end without the work. So whoever ends a run, its own future, its drop, the run above or
//! a supervised task, goes through the same sequence.
//!
//! 1. Whoever takes a run's steps has taken its seat; nobody else touches them meanwhile.
//! 2. Nothing is polled under the lock.
//! 3. A seat is `Over` once, for good: after the run has ended.
//! 4. Once somebody else has asked for the seat, the run's own future does not get it again; once the run is supervised,
//!    neither does the run above. Whoever cannot have it is woken when it can, or when the run is over.

use std::any::Any;
use std::sync::OnceLock;
use std::task::{Context as TaskContext, Poll, Waker};

use emitree_emitter::Delivery;
use parking_lot::Mutex;

use crate::announce::{Step, worked};
use crate::context::Typed;
use crate::data::{Data, RunTypes};
use crate::discard::discard;
use crate::faces::Stages;
use crate::{Error, Result, RunContext};

/// The part of a run that knows its types.
pub(crate) struct Life<I: 'static, O> {
    pub(crate) stages: &'static Stages,
    /// As `start` left it: known before the work begins, or the run ends.
    input: Input<I>,
    pub(crate) delivery: Delivery,
    state: Mutex<State<I, O>>,
}

enum Input<I> {
    /// Nobody was asked about it.
    Known(I),
    Later(OnceLock<I>),
}

struct State<I: 'static, O> {
    seat: Seat<I, O>,
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

impl<I, O> State<I, O> {
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

enum Seat<I: 'static, O> {
    Taken,
    Free(Step<I, O>),
    /// With the result, if nobody has fetched it.
    Over(Option<Result<O>>),
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

pub(crate) enum Taken<I: 'static, O> {
    Seat(Step<I, O>),
    ByOther,
    Over(Option<Result<O>>),
}

/// What has come of ending a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drive {
    Over,
    Pending,
    /// Somebody else does it, and wakes who asked when there is something to do.
    Elsewhere,
}

impl<I: Data, O: Data> Life<I, O> {
    /// A run whose seat is taken by who makes it. Its input is known if nobody will be asked about it.
    pub(crate) fn new(stages: &'static Stages, input: Option<I>) -> Self {
        Self {
            stages,
            input: input.map_or_else(|| Input::Later(OnceLock::new()), Input::Known),
            delivery: Delivery::new(),
            state: Mutex::new(State { seat: Seat::Taken, lowest: Who::Own, waiting: Vec::new() }),
        }
    }

    pub(crate) fn take(&self, who: Who, waker: &Waker) -> Taken<I, O> {
        let mut state = self.state.lock();
        let outranked = who < state.lowest;
        state.lowest = state.lowest.max(who.min(Who::Above));
        match std::mem::replace(&mut state.seat, Seat::Taken) {
            Seat::Over(result) => Taken::Over(result),
            Seat::Free(step) if !outranked => Taken::Seat(step),
            seat => {
                state.seat = seat;
                state.wait(who, !outranked, waker);
                Taken::ByOther
            }
        }
    }

    /// Gives the seat up, with the run not over.
    pub(crate) fn park(&self, step: Step<I, O>, who: Who, waker: &Waker) {
        let woken: Vec<_> = {
            let mut state = self.state.lock();
            state.seat = Seat::Free(step);
            let woken = state.waiting.extract_if(.., |waiting| waiting.for_seat).collect();
            state.wait(who, false, waker);
            woken
        };
        woken.into_iter().for_each(|waiting: Waiting| waiting.waker.wake());
    }

    /// Gives the seat up for good.
    pub(crate) fn over(&self, result: Option<Result<O>>) {
        let woken = {
            let mut state = self.state.lock();
            state.seat = Seat::Over(result);
            std::mem::take(&mut state.waiting)
        };
        woken.into_iter().for_each(|waiting| waiting.waker.wake());
    }

    /// What the work gets; none before it is due.
    pub(crate) fn input(&self) -> Option<&I> {
        match &self.input {
            Input::Known(input) => Some(input),
            Input::Later(input) => input.get(),
        }
    }

    /// Says what the work gets, once.
    pub(crate) fn set_input(&self, input: I) {
        if let Input::Later(later) = &self.input {
            later.set(input).ok();
        }
    }
}

impl<I: Data, O: Data> Typed<I, O> {
    /// Goes on as far as it can, with `work` where the work is due. Gives the result, or parks.
    pub(crate) fn advance(
        &self,
        mut step: Step<I, O>,
        who: Who,
        cx: &mut TaskContext<'_>,
        mut work: impl FnMut(&mut TaskContext<'_>, &mut Option<O>) -> Poll<Result<O>>,
    ) -> Poll<Result<O>> {
        loop {
            let polled = match &mut step {
                Step::Over(_) => break,
                Step::Working(early) => match work(cx, early) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(result) => {
                        discard(early.take());
                        step = worked(self, result);
                        Poll::Ready(())
                    }
                },
                waiting => waiting.poll(self, cx),
            };
            if polled.is_pending() {
                break;
            }
        }
        match step {
            Step::Over(result) => Poll::Ready(result),
            step => {
                self.typed_life().park(step, who, cx.waker());
                Poll::Pending
            }
        }
    }

    /// Whether anything was told, or would have been if somebody had listened.
    pub(crate) fn has_started(&self) -> bool {
        self.typed_life().input().is_some()
    }
}

/// What can be done with a run whose types are not known.
pub(crate) trait AnyLife: Any + Send + Sync {
    /// Brings the run to its end without its work: as far as that can be done now.
    fn drive(&self, run: &RunContext, who: Who, cx: &mut TaskContext<'_>) -> Drive;

    /// From now on a task brings it to its end.
    fn supervised(&self);

    fn delivery(&self) -> &Delivery;

    fn types(&self) -> RunTypes;

    /// What the work gets, if that is known yet.
    fn any_input(&self) -> Option<&dyn Any>;
}

impl<I: Data, O: Data> AnyLife for Life<I, O> {
    fn supervised(&self) {
        self.state.lock().lowest = Who::Supervisor;
    }

    fn drive(&self, run: &RunContext, who: Who, cx: &mut TaskContext<'_>) -> Drive {
        let run: Typed<I, O> = run.clone().typed();
        let step = match self.take(who, cx.waker()) {
            Taken::Seat(step) => step,
            Taken::ByOther => return Drive::Elsewhere,
            Taken::Over(result) => {
                self.over(result);
                return Drive::Over;
            }
        };
        let stopped = |_: &mut TaskContext<'_>, _: &mut Option<O>| {
            let error = run.node().stopped().map_or_else(|| Error::new("the run was left"), |stop| stop.error());
            Poll::Ready(Err(error))
        };
        match run.advance(step, who, cx, stopped) {
            Poll::Pending => Drive::Pending,
            Poll::Ready(result) => {
                self.over(Some(result));
                Drive::Over
            }
        }
    }

    fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    fn types(&self) -> RunTypes {
        self.stages.types()
    }

    fn any_input(&self) -> Option<&dyn Any> {
        self.input().map(|input| input as &dyn Any)
    }
}
