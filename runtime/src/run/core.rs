//! What a run is while it lasts, shared by all who may bring it to its end (R4, R8, R13).
//!
//! A run has two halves: its *work*, which only the run's own future has and polls, and what it tells, the [`Step`]s of
//! which anybody can take to the end without the work. So whoever ends a run, its own future, its drop, the run above or
//! a supervised task, goes through the same sequence.

use std::any::Any;
use std::mem::{needs_drop, replace, take};
use std::sync::OnceLock;
use std::task::{Context as TaskContext, Poll, Waker, ready};

use emitree_emitter::Delivery;

use crate::context::Typed;
use crate::lifecycle::erased::Stages;
use crate::run::cleanup::HandedOver;
use crate::run::lease::{Seat, Taken, Who};
use crate::run::panic::discard;
use crate::run::steps::{Step, give_up, worked};
use crate::runnable::value::Data;
use crate::{Error, Result, RunContext};

/// The part of a run that knows its types.
pub(crate) struct Life<I: 'static, O> {
    pub(crate) stages: &'static Stages,
    /// As `start` left it: known before the work begins, or the run ends.
    input: Input<I>,
    pub(crate) delivery: Delivery,
    pub(crate) seat: Seat<Step<I, O>, Result<O>>,
}

enum Input<I> {
    /// Nobody was asked about it.
    Known(I),
    Later(OnceLock<I>),
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
            seat: Seat::taken(),
        }
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
    /// Goes on as far as it can, with `work` where the work is due. Gives the result, or waits at a step.
    pub(crate) fn advance(
        &self,
        step: &mut Step<I, O>,
        mut below: HandedOver<'_>,
        cx: &mut TaskContext<'_>,
        mut work: impl FnMut(&mut TaskContext<'_>, &mut Option<O>) -> Poll<Result<O>>,
    ) -> Poll<Result<O>> {
        loop {
            let next = match &mut *step {
                Step::Working(early) => {
                    let result = ready!(work(cx, early));
                    discard(early.take());
                    worked(self, result)
                }
                Step::Over(_) => take(step),
                waiting => ready!(waiting.poll(self, below.as_deref_mut(), cx)),
            };
            match next {
                Step::Over(result) => return Poll::Ready(result),
                next => *step = next,
            }
        }
    }

    /// Goes on with a step, whose seat is taken. If that panics, as who is told of spans may, the step is parked: the run ends
    /// all the same (R4).
    pub(crate) fn holding<T>(&self, step: &mut Step<I, O>, who: Who, f: impl FnOnce(&mut Step<I, O>) -> T) -> T {
        let mut held = Held { run: self, step, who, is_left: true };
        let done = f(held.step);
        held.is_left = false;
        done
    }

    /// Whether anything was told, or would have been if somebody had listened.
    pub(crate) fn has_started(&self) -> bool {
        self.typed_life().input().is_some()
    }
}

struct Held<'r, I: Data, O: Data> {
    run: &'r Typed<I, O>,
    step: &'r mut Step<I, O>,
    who: Who,
    is_left: bool,
}

impl<I: Data, O: Data> Drop for Held<'_, I, O> {
    fn drop(&mut self) {
        if !self.is_left {
            return;
        }
        let (run, seat) = (self.run, &self.run.typed_life().seat);
        if run.has_ended() {
            return seat.over(None);
        }
        let step = match take(self.step) {
            // Nothing was told of it yet, nor will be.
            Step::Working(None) if !run.has_started() => give_up(run, Error::new("the run was left before it began")),
            step => step,
        };
        seat.park(step, self.who, Waker::noop());
    }
}

/// What can be done with a run whose types are not known.
pub(crate) trait AnyLife: Any + Send + Sync {
    /// Brings the run to its end without its work: as far as that can be done now. Runs that have to end before it are driven to
    /// their ends as well, or are handed over.
    fn drive(&self, run: &RunContext, who: Who, below: HandedOver<'_>, cx: &mut TaskContext<'_>) -> Drive;

    /// From now on a task brings it to its end.
    fn supervised(&self);

    fn delivery(&self) -> &Delivery;

    fn stages(&self) -> &'static Stages;

    /// What the work gets, if that is known yet.
    fn any_input(&self) -> Option<&dyn Any>;

    /// Whether it holds values whose drop may be user code.
    fn has_values(&mut self) -> bool;

    /// Drops them, when nobody has the run any more.
    fn drop_values(&mut self);
}

impl<I: Data, O: Data> AnyLife for Life<I, O> {
    fn supervised(&self) {
        self.seat.supervised();
    }

    fn drive(&self, run: &RunContext, who: Who, below: HandedOver<'_>, cx: &mut TaskContext<'_>) -> Drive {
        let run: Typed<I, O> = run.clone().typed();
        let mut step = match self.seat.take(who, cx.waker()) {
            Taken::Seat(step) => step,
            Taken::ByOther => return Drive::Elsewhere,
            Taken::Over(result) => {
                self.seat.over(result);
                return Drive::Over;
            }
        };
        let stopped = |_: &mut TaskContext<'_>, _: &mut Option<O>| {
            let error = run.node().stopped().map_or_else(|| Error::new("the run was left"), |stop| stop.error());
            Poll::Ready(Err(error))
        };
        match run.holding(&mut step, who, |step| run.advance(step, below, cx, stopped)) {
            Poll::Pending => {
                self.seat.park(step, who, cx.waker());
                Drive::Pending
            }
            Poll::Ready(result) => {
                self.seat.over(Some(result));
                Drive::Over
            }
        }
    }

    fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    fn stages(&self) -> &'static Stages {
        self.stages
    }

    fn any_input(&self) -> Option<&dyn Any> {
        self.input().map(|input| input as &dyn Any)
    }

    fn has_values(&mut self) -> bool {
        // An error is a value as well.
        needs_drop::<I>() || needs_drop::<O>() || self.seat.has_result()
    }

    fn drop_values(&mut self) {
        discard(replace(&mut self.input, Input::Later(OnceLock::new())));
        discard(replace(&mut self.seat, Seat::taken()));
    }
}
