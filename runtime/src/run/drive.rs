//! Drives a run through its steps to its end, with or without its work (R4, R8, R13).
//!
//! A run has two halves: its *work*, which only the run's own future holds and polls, and its [`Step`]s, which any
//! driver can execute to the end without the work. So a run goes through the same sequence whether it is ended by its
//! own future, by the drop of that future, by its parent, or by a supervisor.

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

/// The part of a run that depends on its types.
pub(crate) struct RunCore<I: 'static, O> {
    pub(crate) stages: &'static LifecycleFacets,
    /// The input as the listeners of `start` left it. Set when the run has started.
    input: InputSlot<I>,
    pub(crate) delivery: Delivery,
    pub(crate) lease: DriverLease<Step<I, O>, Result<O>>,
}

enum InputSlot<I> {
    /// The input of a run without listeners, subscribers and bindings: nothing can change it.
    Known(I),
    Later(OnceLock<I>),
}

/// The result of driving a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driven {
    Over,
    Pending,
    /// Another driver holds the lease. This driver is woken when it can continue.
    Elsewhere,
}

impl<I: Data, O: Data> RunCore<I, O> {
    /// Returns the core of a run whose lease the caller holds.
    pub(crate) fn new(stages: &'static LifecycleFacets, input: Option<I>) -> Self {
        Self {
            stages,
            input: input.map_or_else(|| InputSlot::Later(OnceLock::new()), InputSlot::Known),
            delivery: Delivery::new(),
            lease: DriverLease::taken(),
        }
    }

    /// Returns the input of the work, once it is set.
    pub(crate) fn input(&self) -> Option<&I> {
        match &self.input {
            InputSlot::Known(input) => Some(input),
            InputSlot::Later(input) => input.get(),
        }
    }

    /// Sets the input of the work; only the first call has an effect.
    pub(crate) fn set_input(&self, input: I) {
        if let InputSlot::Later(later) = &self.input {
            later.set(input).ok();
        }
    }
}

impl<I: Data, O: Data> TypedRun<I, O> {
    /// Executes steps until the run is over or has to wait. Calls `work` in `Step::Working`.
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

    /// Calls `f` with a step, as the holder of the lease. If `f` panics, for example in a `tracing` subscriber, the
    /// step is parked, so that the run still ends (R4).
    pub(crate) fn holding<T>(&self, step: &mut Step<I, O>, who: Driver, f: impl FnOnce(&mut Step<I, O>) -> T) -> T {
        let mut held = LeaseGuard { run: self, step, who, is_left: true };
        let done = f(held.step);
        held.is_left = false;
        done
    }

    /// Returns `true` once the run has passed `start`, with or without listeners.
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
        let run = self.run;
        let lease = &self.run.core().lease;
        if run.has_ended() {
            return lease.over(None);
        }
        let step = match take(self.step) {
            // `start` was not emitted, so no other event may be emitted (R4).
            Step::Working(None) if !run.has_started() => {
                give_up(run, Error::new("the run was abandoned before it began"))
            }
            step => step,
        };
        lease.park(step, self.who, Waker::noop());
    }
}

/// The core of a run with erased types.
pub(crate) trait ErasedRun: Any + Send + Sync {
    /// Drives the run toward its end without its work, until it has to wait. Children have to end first: they are added
    /// to `below`, or driven as well if `below` is `None`.
    fn drive(&self, run: &RunContext, who: Driver, below: Deferred<'_>, cx: &mut TaskContext<'_>) -> Driven;

    /// Reserves the lease for supervisors.
    fn supervised(&self);

    /// Returns `true` if the run is over. Otherwise registers a waker for the end of the run.
    fn is_over(&self, waker: &Waker) -> bool;

    fn delivery(&self) -> &Delivery;

    fn stages(&self) -> &'static LifecycleFacets;

    /// Returns the input of the work, once it is set.
    fn any_input(&self) -> Option<&dyn Any>;

    /// Returns `true` if the core has values whose drop may run user code.
    fn has_values(&mut self) -> bool;

    /// Drops the values, when the last handle of the run is gone.
    fn drop_values(&mut self);
}

impl<I: Data, O: Data> ErasedRun for RunCore<I, O> {
    fn supervised(&self) {
        self.lease.supervised();
    }

    fn is_over(&self, waker: &Waker) -> bool {
        self.lease.is_over(waker)
    }

    fn drive(&self, run: &RunContext, who: Driver, below: Deferred<'_>, cx: &mut TaskContext<'_>) -> Driven {
        let run: TypedRun<I, O> = run.clone().typed();
        let mut step = match self.lease.acquire(who, cx.waker()) {
            Acquired::Steps(step) => step,
            Acquired::ByOther => return Driven::Elsewhere,
            // Put the result back: it is for the run's own future.
            Acquired::Over(result) => {
                self.lease.over(result);
                return Driven::Over;
            }
        };
        let stopped = |_: &mut TaskContext<'_>, _: &mut Option<O>| {
            let error =
                run.node().state.stopped().map_or_else(|| Error::new("the run was abandoned"), |stop| stop.error());
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
        // A result that was not fetched may be an error, which is a user value as well.
        needs_drop::<I>() || needs_drop::<O>() || self.lease.has_result()
    }

    fn drop_values(&mut self) {
        discard(replace(&mut self.input, InputSlot::Later(OnceLock::new())));
        discard(replace(&mut self.lease, DriverLease::taken()));
    }
}
