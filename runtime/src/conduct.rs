//! The sequence of a run (R4): bind → `start` → work → `success` or `error` → `finish`.
//!
//! 1. After `start` has been emitted, exactly one of `success` and `error` is, and then exactly one `finish`.
//! 2. The payload of the event at hand lives in the run's [`Guard`]; its parts move on from one to the next.
//! 3. Work, middlewares and listeners are user code: their panics are caught, and are errors like others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context as TaskContext, Poll};

use emitree_emitter::{EmitError, Facet};
use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::lifecycle::{Data, Facets, Failure, Finish, Start, Success};
use crate::middleware::Inherited;
use crate::plan::Plan;
use crate::{Error, Outcome, Result, RunContext, Runnable, Stage, Status};

/// Begins a run. Nothing has been emitted yet.
pub(crate) fn conduct<R: Runnable>(mut plan: Plan<'_, R>) -> Result<Conducted<'_, R::Output>> {
    let ctx = calm(|| plan.begin())?;
    Ok(Conducted { work: Some(Box::pin(run(plan, ctx.clone()))), ctx })
}

/// A run that has begun: polled, and dropped, inside of itself (R9, R12).
pub(crate) struct Conducted<'a, O> {
    ctx: RunContext,
    work: Option<BoxFuture<'a, Result<O>>>,
}

impl<O> Conducted<'_, O> {
    pub(crate) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<O>> {
        let Self { ctx, work } = self;
        ctx.inside(|| {
            let Some(running) = work else { return Poll::Pending };
            let polled = running.as_mut().poll(cx);
            if polled.is_ready() {
                *work = None;
            }
            polled
        })
    }
}

impl<O> Drop for Conducted<'_, O> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.ctx.inside(|| drop(work));
            // They hold the run's context: nobody else would end them.
            drop(self.ctx.tasks().close());
        }
    }
}

async fn run<R: Runnable>(plan: Plan<'_, R>, ctx: RunContext) -> Result<R::Output> {
    if let Err(error) = bind_middlewares(&plan, &ctx) {
        return give_up(&ctx, error).await;
    }
    let Plan { runnable, input, .. } = plan;
    let mut guard = Guard { ctx, payload: Start { input, output: None } };
    let result = match guard.emit(Stage::Start, Facets::<R>::START).await {
        Ok(()) => guard.work(&*runnable).await,
        Err(error) => Err(error.into()),
    };
    if let Some(tasks) = guard.ctx.tasks().close() {
        end(tasks).await;
    }
    match result {
        Ok(output) => guard.succeed::<R>(output).await,
        Err(error) => guard.fail::<R>(error).await,
    }
}

/// Aborts the tasks that a run has spawned, and waits for them.
async fn end(mut tasks: JoinSet<()>) {
    tasks.shutdown().await;
}

/// Ends a run that has not started: what was bound may have spawned tasks, or made runs.
async fn give_up<O>(ctx: &RunContext, error: Error) -> Result<O> {
    if let Some(tasks) = ctx.tasks().close() {
        end(tasks).await;
    }
    ctx.span().record("outcome", Outcome::<()>::of_error(&error).status().as_str());
    ctx.end();
    Err(error)
}

fn bind_middlewares<R: Runnable>(plan: &Plan<'_, R>, ctx: &RunContext) -> Result<()> {
    // As the run found them: what is bound below adds to those of the runs in it.
    let inherited = ctx.extension::<Inherited>();
    let inherited = inherited.iter().flat_map(|inherited| &inherited.0);
    calm(|| inherited.chain(plan.middlewares()).try_for_each(|middleware| middleware.bind(ctx)))
}

/// Calls user code; a panic is an error like others.
fn calm<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(Error::of_panic(&*panic)))
}

/// A run that has started, with the payload of the event that it is at.
struct Guard<P> {
    ctx: RunContext,
    payload: P,
}

impl<P: Serialize + Send + Sync + 'static> Guard<P> {
    async fn emit(&mut self, stage: Stage, facet: &Facet) -> Result<(), EmitError> {
        self.ctx.emitter().emit_with(stage.event_name(), &mut self.payload, facet).await
    }

    /// Emits what can no longer change how the run ends: a failure is logged (R10).
    async fn announce(&mut self, stage: Stage, facet: &Facet) {
        if let Err(error) = self.emit(stage, facet).await {
            tracing::warn!(error = %error, "a listener of a run's `{}` failed", stage.as_str());
        }
    }
}

impl<I: Data, O: Data> Guard<Start<I, O>> {
    /// An output that is set answers the run; otherwise the work does (R5).
    async fn work<R: Runnable<Input = I, Output = O>>(&mut self, runnable: &R) -> Result<O> {
        if let Some(output) = self.payload.output.take() {
            return Ok(output);
        }
        let work = AssertUnwindSafe(async { runnable.execute(&self.payload.input, &self.ctx).await });
        work.catch_unwind().await.unwrap_or_else(|panic| Err(Error::of_panic(&*panic)))
    }

    /// A listener of `success` that fails makes the run fail, without an `error` after the `success` (R10).
    async fn succeed<R: Runnable<Input = I, Output = O>>(self, output: O) -> Result<O> {
        let payload = Success { input: self.payload.input, output };
        let mut guard = Guard { ctx: self.ctx, payload };
        let emitted = guard.emit(Stage::Success, Facets::<R>::SUCCESS).await;
        let Guard { ctx, payload: Success { input, output } } = guard;
        match emitted {
            Ok(()) => finish::<R>(ctx, input, Ok(output)).await,
            Err(error) => finish::<R>(ctx, input, Err(error.into())).await,
        }
    }

    async fn fail<R: Runnable<Input = I, Output = O>>(self, error: Error) -> Result<O> {
        let mut guard = Guard { ctx: self.ctx, payload: Failure { error } };
        guard.announce(Stage::Error, Facets::<R>::ERROR).await;
        finish::<R>(guard.ctx, self.payload.input, Err(guard.payload.error)).await
    }
}

/// Emits `finish`, and gives the run's result.
async fn finish<R: Runnable>(ctx: RunContext, input: R::Input, result: Result<R::Output>) -> Result<R::Output> {
    let status = result.as_ref().map_or_else(|error| Outcome::<()>::of_error(error).status(), |_| Status::Success);
    ctx.span().record("outcome", status.as_str());
    // Nobody listening, nothing happens: not even a look at the clock (E15).
    let result = if ctx.emitter().is_heard() { announce_finish::<R>(&ctx, input, result).await } else { result };
    ctx.end();
    result
}

async fn announce_finish<R: Runnable>(
    ctx: &RunContext,
    input: R::Input,
    result: Result<R::Output>,
) -> Result<R::Output> {
    let (outcome, error) = match result {
        Ok(output) => (Outcome::Success { output }, None),
        Err(error) => (Outcome::of_error(&error), Some(error)),
    };
    let payload = Finish { input, outcome, duration: ctx.elapsed() };
    let mut guard = Guard { ctx: ctx.clone(), payload };
    guard.announce(Stage::Finish, Facets::<R>::FINISH).await;
    match (guard.payload.outcome, error) {
        (Outcome::Success { output }, _) => Ok(output),
        (_, Some(error)) => Err(error),
        (outcome, None) => Err(Error::new(format!("the run ended as {}", outcome.status().as_str()))),
    }
}
