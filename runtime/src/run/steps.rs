//! The steps of a run and their events (R4). `start` comes first. When the work is over and all runs below have ended,
//! `success` or `error` follows, and then `finish`.
//!
//! 1. After `start`, exactly one of `success` and `error` is emitted, and then exactly one `finish`. User code is called
//!    through `panic`, so no panic of user code interrupts a step.
//! 2. An emit that has begun is always finished, possibly by another driver. The delivery mode of the run determines how
//!    long listeners are awaited.
//! 3. When `finish` is emitted, every run that was started in this run has ended (R13).
//! 4. A step that does not have to wait leads to the next step directly, without a future.

use std::task::{Context as TaskContext, Poll};

use emitree_emitter::EmitError;
use emitree_emitter::rt::{Emitted, EventStamp};
use futures_core::future::BoxFuture;
use serde::Serialize;
use tracing::Span;

use crate::abort::{AbortNode, Stop};
use crate::context::TypedRun;
use crate::lifecycle::subscribers::Recipients;
use crate::lifecycle::{Failure, Finish, Input, Measured, Start, Success};
use crate::run::StartFact;
use crate::run::cleanup::{Cleanup, Deferred};
use crate::run::panic::{discard, isolated};
use crate::runnable::value::Data;
use crate::{Error, Outcome, Result, Stage, Status};

/// A step of a run, with the emit or cleanup that the run waits for in this step.
pub(crate) enum Step<I: 'static, O> {
    Starting(Emitting<Start<I, O>>),
    /// Contains the answer that was set at `start`, if any, until the work begins.
    Working(Option<O>),
    /// The run's tasks and the runs below are being ended.
    CleaningUp(Box<Cleanup<O>>),
    Succeeding(Emitting<Success<I, O>>),
    Failing(Emitting<Failure>),
    /// Runs that listeners of `success` or `error` have started are being ended.
    Closing(Box<Cleanup<O>>),
    Finishing(Emitting<Finish<I, O>>, Option<Error>),
    Over(Result<O>),
}

/// A run without listeners skips `start` and begins with its work.
impl<I, O> Default for Step<I, O> {
    fn default() -> Self {
        Self::Working(None)
    }
}

/// An emit with a listener that has to be awaited.
pub(crate) type Emitting<P> = BoxFuture<'static, Delivered<P>>;
type Delivered<P> = (P, Result<(), EmitError>);

/// Emits `start`, or sets the input at once if there are no recipients.
pub(crate) fn begin<I: Data, O: Data>(run: &TypedRun<I, O>, input: I) -> Step<I, O> {
    let Some(recipients) = run.recipients() else {
        run.core().set_input(input);
        return Step::Working(None);
    };
    match emit(run, recipients, Stage::Start, Start { input, output: None }) {
        Ok(delivered) => on_started(run, delivered),
        Err(emitting) => Step::Starting(emitting),
    }
}

/// Ends a run that has not started. Middlewares may have spawned tasks or started runs, which end first.
pub(crate) fn give_up<I: Data, O: Data>(run: &TypedRun<I, O>, error: Error) -> Step<I, O> {
    let error = run.node().state.settle().map_or_else(Stop::error, |()| error);
    let result = Err(run.exit_error(error));
    Step::CleaningUp(Box::new(Cleanup::new(run, result)))
}

impl<I: Data, O: Data> Step<I, O> {
    /// Polls the emit or cleanup that the run waits for, and returns the next step. If `below` is `Some`, children that
    /// have to end first are added to that list.
    pub(crate) fn poll(&mut self, run: &TypedRun<I, O>, below: Deferred<'_>, cx: &mut TaskContext<'_>) -> Poll<Self> {
        match self {
            Self::Starting(emitting) => emitting.as_mut().poll(cx).map(|delivered| on_started(run, delivered)),
            Self::Succeeding(emitting) => emitting.as_mut().poll(cx).map(|delivered| on_succeeded(run, delivered)),
            Self::Failing(emitting) => emitting.as_mut().poll(cx).map(|delivered| on_failed(run, delivered)),
            Self::CleaningUp(cleanup) => cleanup.poll(run, below, cx).map(|result| on_children_ended(run, result)),
            Self::Closing(cleanup) => cleanup.poll(run, below, cx).map(|result| finish(run, result, None)),
            Self::Finishing(emitting, error) => {
                emitting.as_mut().poll(cx).map(|delivered| on_finished(run, delivered, error.take()))
            }
            Self::Working(_) | Self::Over(_) => Poll::Pending,
        }
    }
}

/// Continues after `start`, whose listeners may have changed the input, or set the output (R5).
fn on_started<I: Data, O: Data>(run: &TypedRun<I, O>, (start, delivered): Delivered<Start<I, O>>) -> Step<I, O> {
    run.core().set_input(start.input);
    match delivered {
        Ok(()) => Step::Working(start.output),
        Err(error) => {
            discard(start.output);
            on_work_done(run, Err(error.into()))
        }
    }
}

/// Continues after the work is over or was skipped. If the run was stopped before this call, it ends with the reason
/// for the stop, even if the work returned an output (R7).
pub(crate) fn on_work_done<I: Data, O: Data>(run: &TypedRun<I, O>, result: Result<O>) -> Step<I, O> {
    let AbortNode { state, below, .. } = run.node();
    let exit = |result: Result<O>| result.map_err(|error| run.exit_error(error));
    if state.is_settled() {
        // Only a panic of this crate itself, in the middle of a step, can lead here (invariant 1). The step is lost:
        // end the run without further events, so that no event is emitted twice.
        return end(run, exit(result));
    }
    let recipients = run.recipients();
    // Close the run only if nothing has to end before it: tasks, children and listeners may still begin runs below this
    // run (R13).
    let settled = if recipients.is_some() || !below.is_empty() { state.settle() } else { state.settle_and_close() };
    let result = exit(match settled {
        Ok(()) => result,
        Err(stop) => {
            discard(result);
            Err(stop.error())
        }
    });
    if state.has_tasks() || !below.is_empty() {
        return Step::CleaningUp(Box::new(Cleanup::new(run, result)));
    }
    match recipients {
        Some(recipients) => emit_end(run, recipients, result),
        None => end(run, result),
    }
}

/// Continues after tasks and runs below have ended.
fn on_children_ended<I: Data, O: Data>(run: &TypedRun<I, O>, result: Result<O>) -> Step<I, O> {
    match run.recipients() {
        Some(recipients) if run.has_started() => emit_end(run, recipients, result),
        _ => close(run, result, None),
    }
}

fn emit_end<I: Data, O: Data>(run: &TypedRun<I, O>, recipients: Recipients<'_>, result: Result<O>) -> Step<I, O> {
    match result {
        Ok(output) => match emit(run, recipients, Stage::Success, Success { input: Input::of(run), output }) {
            Ok(delivered) => on_succeeded(run, delivered),
            Err(emitting) => Step::Succeeding(emitting),
        },
        Err(error) => match emit(run, recipients, Stage::Error, Failure { error }) {
            Ok(delivered) => on_failed(run, delivered),
            Err(emitting) => Step::Failing(emitting),
        },
    }
}

/// Continues after `success`. A listener of `success` that fails makes the run fail, without an `error` after the
/// `success` (R10).
fn on_succeeded<I: Data, O: Data>(run: &TypedRun<I, O>, (success, delivered): Delivered<Success<I, O>>) -> Step<I, O> {
    let Success { input, output } = success;
    let result = match delivered {
        Ok(()) => Ok(output),
        Err(error) => {
            discard(output);
            Err(run.exit_error(error.into()))
        }
    };
    close(run, result, Some(input))
}

/// Continues after `error`. Failures of its listeners were isolated where the listeners were called, so the emit does
/// not fail (R10).
fn on_failed<I: Data, O: Data>(run: &TypedRun<I, O>, (failure, _): Delivered<Failure>) -> Step<I, O> {
    close(run, Err(failure.error), None)
}

/// Closes the run: a run that is made in it from now on does not become its child. Runs that its listeners have started
/// end before `finish` (R13).
fn close<I: Data, O: Data>(run: &TypedRun<I, O>, result: Result<O>, input: Option<Input<I>>) -> Step<I, O> {
    let AbortNode { state, below, .. } = run.node();
    state.close();
    match below.is_empty() {
        true => finish(run, result, input),
        false => Step::Closing(Box::new(Cleanup::new(run, result))),
    }
}

fn finish<I: Data, O: Data>(run: &TypedRun<I, O>, result: Result<O>, input: Option<Input<I>>) -> Step<I, O> {
    // Without recipients there is no event, and the clock is not read (E15).
    let recipients = match run.recipients() {
        Some(recipients) if run.has_started() => recipients,
        _ => return end(run, result),
    };
    record_outcome(run.span(), &result);
    let (outcome, error) = match result {
        Ok(output) => (Outcome::Success { output }, None),
        Err(error) => (Outcome::of_error(&error), Some(error)),
    };
    let input = input.unwrap_or_else(|| Input::of(run));
    // Measure the duration now if there are listeners, because they may be awaited. Otherwise, it is measured when a
    // subscriber reads it.
    let duration = match recipients {
        Recipients::Listeners(_) => Measured::now(run),
        Recipients::Subscribers => Measured::later(),
    };
    match emit(run, recipients, Stage::Finish, Finish { input, outcome, duration }) {
        Ok(delivered) => on_finished(run, delivered, error),
        Err(emitting) => Step::Finishing(emitting, error),
    }
}

/// Continues after `finish`. Failures of its listeners were isolated where the listeners were called (R10).
fn on_finished<I: Data, O: Data>(
    run: &TypedRun<I, O>,
    (finish, _): Delivered<Finish<I, O>>,
    error: Option<Error>,
) -> Step<I, O> {
    run.end(|| finish.outcome.status());
    Step::Over(match (finish.outcome, error) {
        (Outcome::Success { output }, _) => Ok(output),
        (_, Some(error)) => Err(error.leaving()),
        (outcome, None) => Err(Error::new(format!("the run ended with the status `{}`", outcome.status().as_str()))),
    })
}

/// Ends a run without `finish`, because it has no recipients or has not started.
fn end<I: Data, O: Data>(run: &TypedRun<I, O>, result: Result<O>) -> Step<I, O> {
    record_outcome(run.span(), &result);
    run.end(|| status_of(&result));
    Step::Over(result.map_err(Error::leaving))
}

/// Emits an event to the listeners, and then shows it to the subscribers. Returns the delivered event, or, as `Err`, a
/// future that delivers it.
fn emit<I: Data, O: Data, P>(
    run: &TypedRun<I, O>,
    recipients: Recipients<'_>,
    stage: Stage,
    mut payload: P,
) -> Result<Delivered<P>, Emitting<P>>
where
    P: Serialize + Send + Sync + 'static,
{
    let core = run.core();
    let stamp = EventStamp::new();
    let name = stage.event_name();
    let facet = core.stages.facets[stage as usize];
    if stage == Stage::Start {
        let (trace, fact) = (run.trace_facts(), run.own_extension::<StartFact>());
        if trace.is_some() || fact.is_some() {
            // Fix the context of this event alone (R16).
            stamp.context(|| {
                let mut context = facet.over(run.context());
                if let Some(fact) = fact {
                    context = context.with(fact.name, fact.value.clone());
                }
                match trace {
                    Some(trace) => context.with("trace", trace),
                    None => context,
                }
            });
        }
    }
    let emitted = match recipients {
        Recipients::Listeners(emitter) => emitter.emit_begin(name, &mut payload, facet, &core.delivery, &stamp),
        Recipients::Subscribers => Emitted::Done(Ok(())),
    };
    let waiting = match emitted {
        Emitted::Done(delivered) => {
            run.show(stage, &payload, &stamp);
            return Ok((payload, delivered));
        }
        Emitted::Waits(waiting) => waiting,
    };
    let run = run.clone();
    Err(Box::pin(async move {
        let delivery = &run.core().delivery;
        let delivered = run.emitter().emit_rest(waiting, name, &mut payload, facet, delivery, &stamp).await;
        run.show(stage, &payload, &stamp);
        (payload, delivered)
    }))
}

fn record_outcome<O>(span: &Span, result: &Result<O>) {
    if span.is_disabled() {
        return;
    }
    let status = status_of(result);
    // A `tracing` subscriber may panic.
    isolated(|| _ = span.record("outcome", status.as_str()));
}

fn status_of<O>(result: &Result<O>) -> Status {
    result.as_ref().map_or_else(|error| Outcome::<()>::of_error(error).status(), |_| Status::Success)
}
