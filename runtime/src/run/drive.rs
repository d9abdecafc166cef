//! What a run is while it lasts, shared by all who may bring it to its end (R4, R8, R13).
//!
//! A run has two halves: its *work*, which only the run's own future has and polls, and what it tells, the [`Step`]s of
//! which anybody can take to the end without the work. So whoever ends a run, its own future, its drop, the run above or
//! a supervised task, goes through the same sequence.

use std::any::Any;
use std::mem::{needs_drop, replace, take};
use std::sync::OnceLock;
use std::task::{Context as TaskContext, Poll, Waker, ready};

use emitree_emitter::rt::Delivery;

use crate::context::TypedRun;
use crate::lifecycle::erased::LifecycleFacets;
use crate::run::cleanup::Deferred;
use crate::run::lease::{Acquired, Driver, DriverLease};
use crate::run::panic::discard;
use crate::run::steps::{Step, give_up, on_work_done};
use crate::runnable::value::Data;
use crate::{Error, Result, RunContext};

/// The part of a run that knows its types.
pub(crate) struct RunCore<I: 'static, O> {
    pub(crate) stages: &'static LifecycleFacets,
    /// As `start` left it: known before the work begins, or the run ends.
    input: Input<I>,
    pub(crate) delivery: Delivery,
    pub(crate) lease: DriverLease<Step<I, O>, Result<O>>,
}

enum Input<I> {
    /// Nobody was asked about it.
    Known(I),
    Later(OnceLock<I>),
}

/// What has come of ending a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driven {
    Over,
    Pending,
    /// Somebody else does it, and wakes who asked when there is something to do.
    Elsewhere,
}

impl<I: Data, O: Data> RunCore<I, O> {
    /// A run whose lease is taken by who makes it. Its input is known if nobody will be asked about it.
    pub(crate) fn new(stages: &'static LifecycleFacets, input: Option<I>) -> Self {
        Self {
            stages,
            input: input.map_or_else(|| Input::Later(OnceLock::new()), Input::Known),
            delivery: Delivery::new(),
            lease: DriverLease::taken(),
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

impl<I: Data, O: Data> TypedRun<I, O> {
    /// Goes on as far as it can, with `work` where the work is due. Gives the result, or waits at a step.
    pub(crate) fn advance(
        &self,
        step: &mut Step<I, O>,
        mut below: Deferred<'_>,
        cx: &mut TaskContext<'_>,
        mut work: impl FnMut(&mut TaskContext<'_>, &mut Option<O>) -> Poll<Result<O>>,
    ) -> Poll<Result<O>> {
        loop {
            let next = match &mut *step {
                Step::Working(early) => {
                    let result = ready!(work(cx, early));
                    discard(early.take());
                    on_work_done(self, result)
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

    /// Goes on with a step, whose lease is taken. If that panics, as who is told of spans may, the step is parked: the run ends
    /// all the same (R4).
    pub(crate) fn holding<T>(&self, step: &mut Step<I, O>, who: Driver, f: impl FnOnce(&mut Step<I, O>) -> T) -> T {
        let mut held = LeaseGuard { run: self, step, who, is_left: true };
        let done = f(held.step);
        held.is_left = false;
        done
    }

    /// Whether anything was told, or would have been if somebody had listened.
    pub(crate) fn has_started(&self) -> bool {
        self.core().input().is_some()
    }
}

struct LeaseGuard<'r, I: Data, O: Data> {
    run: &'r TypedRun<I, O>,
    step: &'r mut Step<I, O>,
    who: Driver,
    is_left: bool,
}

impl<I: Data, O: Data> Drop for LeaseGuard<'_, I, O> {
    fn drop(&mut self) {
        if !self.is_left {
            return;
        }
        let (run, lease) = (self.run, &self.run.core().lease);
        if run.has_ended() {
            return lease.over(None);
        }
        let step = match take(self.step) {
            // Nothing was told of it yet, nor will be.
            Step::Working(None) if !run.has_started() => give_up(run, Error::new("the run was left before it began")),
            step => step,
        };
        lease.park(step, self.who, Waker::noop());
    }
}

/// What can be done with a run whose types are not known.
pub(crate) trait ErasedRun: Any + Send + Sync {
    /// Brings the run to its end without its work: as far as that can be done now. Runs that have to end before it are driven to
    /// their ends as well, or are handed over.
    fn drive(&self, run: &RunContext, who: Driver, below: Deferred<'_>, cx: &mut TaskContext<'_>) -> Driven;

    /// From now on a task brings it to its end.
    fn supervised(&self);

    fn delivery(&self) -> &Delivery;

    fn stages(&self) -> &'static LifecycleFacets;

    /// What the work gets, if that is known yet.
    fn any_input(&self) -> Option<&dyn Any>;

    /// Whether it holds values whose drop may be user code.
    fn has_values(&mut self) -> bool;

    /// Drops them, when nobody has the run any more.
    fn drop_values(&mut self);
}

impl<I: Data, O: Data> ErasedRun for RunCore<I, O> {
    fn supervised(&self) {
        self.lease.supervised();
    }

    fn drive(&self, run: &RunContext, who: Driver, below: Deferred<'_>, cx: &mut TaskContext<'_>) -> Driven {
        let run: TypedRun<I, O> = run.clone().typed();
        let mut step = match self.lease.acquire(who, cx.waker()) {
            Acquired::Steps(step) => step,
            Acquired::ByOther => return Driven::Elsewhere,
            Acquired::Over(result) => {
                self.lease.over(result);
                return Driven::Over;
            }
        };
        let stopped = |_: &mut TaskContext<'_>, _: &mut Option<O>| {
            let error = run.node().state.stopped().map_or_else(|| Error::new("the run was left"), |stop| stop.error());
            Poll::Ready(Err(error))
        };
        match run.holding(&mut step, who, |step| run.advance(step, below, cx, stopped)) {
            Poll::Pending => {
                self.lease.park(step, who, cx.waker());
                Driven::Pending
            }
            Poll::Ready(result) => {
                self.lease.over(Some(result));
                Driven::Over
            }
        }
    }

    fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    fn stages(&self) -> &'static LifecycleFacets {
        self.stages
    }

    fn any_input(&self) -> Option<&dyn Any> {
        self.input().map(|input| input as &dyn Any)
    }

    fn has_values(&mut self) -> bool {
        // An error is a value as well.
        needs_drop::<I>() || needs_drop::<O>() || self.lease.has_result()
    }

    fn drop_values(&mut self) {
        discard(replace(&mut self.input, Input::Later(OnceLock::new())));
        discard(replace(&mut self.lease, DriverLease::taken()));
    }
}
