//! What a run tells, in order (R4): `start`; then, when the work is over and all below it has ended, `success` or
//! `error`, and `finish`.
//!
//! 1. After `start` has been emitted, exactly one of `success` and `error` is, and then exactly one `finish`.
//! 2. An emit that has begun is polled to its end, whoever polls it: losing patience is a matter of its delivery.
//! 3. No run that was started in this one is alive when `finish` is emitted (R13).

use std::future::poll_fn;
use std::task::Poll;

use emitree_emitter::EmitError;
use serde::Serialize;

use crate::abort::Stop;
use crate::context::Typed;
use crate::life::{Drive, Who};
use crate::lifecycle::{Data, Failure, Finish, Input, Start, Success};
use crate::{Error, Outcome, Result, Stage, Status};

/// The whole of it, for a run that is heard from the start on.
pub(crate) async fn lifecycle<I: Data, O: Data>(run: Typed<I, O>, input: I) -> Result<O> {
    let result = match start(&run, input).await {
        Ok(early) => run.typed_life().work(early).await,
        Err(error) => Err(error),
    };
    end(run, result).await
}

/// Listeners may change the input, or set the output (R5).
async fn start<I: Data, O: Data>(run: &Typed<I, O>, input: I) -> Result<Option<O>> {
    let mut payload = Start { input, output: None };
    let emitted = emit(run, Stage::Start, &mut payload).await;
    let Start { input, output } = payload;
    run.typed_life().set_input(input);
    emitted?;
    Ok(output)
}

/// Ends a run that nobody hears and that nothing is left of; gives the result back if there is something to do.
pub(crate) fn end_unheard<I: Data, O: Data>(run: &Typed<I, O>, result: Result<O>) -> Result<Result<O>, Result<O>> {
    if run.emitter().is_heard() || !run.tasks().close_if_none() {
        return Err(result);
    }
    let result = run.node().fate().settle_and_close().map_err(Stop::error).and(result);
    if !run.node().below().is_empty() {
        return Err(result);
    }
    record_outcome(run, &result);
    run.end();
    Ok(result.map_err(Error::leaving))
}

/// From the end of the work, or of a start that failed, to the end of the run.
pub(crate) async fn end<I: Data, O: Data>(run: Typed<I, O>, result: Result<O>) -> Result<O> {
    let result = settle(&run, result);
    end_tasks(&run).await;
    end_below(&run).await;
    let result = match result {
        Ok(output) => succeed(&run, output).await,
        Err(error) => Err(fail(&run, error).await),
    };
    run.node().fate().close();
    end_below(&run).await;
    let result = finish(&run, result).await;
    run.end();
    result.map_err(Error::leaving)
}

/// Ends a run that has not started: what was bound may have spawned tasks, or made runs.
pub(crate) async fn give_up<I: Data, O: Data>(run: Typed<I, O>, error: Error) -> Result<O> {
    end_tasks(&run).await;
    // Why it was stopped is not what it ends with: it has not started.
    run.node().fate().settle_and_close().ok();
    end_below(&run).await;
    let result = Err(error.leaving());
    record_outcome(&run, &result);
    run.end();
    result
}

/// Whatever the work came to: if the run was aborted before, that is how it ended (R7).
fn settle<I, O>(run: &Typed<I, O>, result: Result<O>) -> Result<O> {
    run.node().fate().settle().map_err(Stop::error).and(result)
}

/// Aborts the tasks that the run has spawned, and waits for them.
async fn end_tasks<I: Data, O: Data>(run: &Typed<I, O>) {
    let Some(mut tasks) = run.tasks().close() else { return };
    tasks.abort_all();
    poll_fn(|cx| {
        loop {
            match tasks.poll_join_next(cx) {
                _ if run.typed_life().delivery.is_cut() => return Poll::Ready(()),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Ready(Some(_)) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}

/// Ends the runs that were started in this one and have not ended: whoever holds their futures (R13).
async fn end_below<I: Data, O: Data>(run: &Typed<I, O>) {
    if run.node().below().is_empty() {
        return;
    }
    for child in run.node().below().runs() {
        child.abort("the run that it was started in has ended");
        poll_fn(|cx| {
            let who = match run.typed_life().delivery.is_cut() {
                true => {
                    child.delivery().cut();
                    Who::Supervisor
                }
                false => Who::Above,
            };
            match child.drive(who, cx) {
                Drive::Over => Poll::Ready(()),
                Drive::Pending | Drive::Elsewhere => Poll::Pending,
            }
        })
        .await;
    }
}

/// A listener of `success` that fails makes the run fail, without an `error` after the `success` (R10).
async fn succeed<I: Data, O: Data>(run: &Typed<I, O>, output: O) -> Result<O> {
    let mut payload = Success { input: Input::of(run), output };
    emit(run, Stage::Success, &mut payload).await?;
    Ok(payload.output)
}

async fn fail<I: Data, O: Data>(run: &Typed<I, O>, error: Error) -> Error {
    let mut payload = Failure { error };
    announce(run, Stage::Error, &mut payload).await;
    payload.error
}

async fn finish<I: Data, O: Data>(run: &Typed<I, O>, result: Result<O>) -> Result<O> {
    record_outcome(run, &result);
    // Nobody listening, nothing happens: not even a look at the clock (E15).
    if !run.emitter().is_heard() {
        return result;
    }
    let (outcome, error) = match result {
        Ok(output) => (Outcome::Success { output }, None),
        Err(error) => (Outcome::of_error(&error), Some(error)),
    };
    let mut payload = Finish { input: Input::of(run), outcome, duration: run.elapsed() };
    announce(run, Stage::Finish, &mut payload).await;
    match (payload.outcome, error) {
        (Outcome::Success { output }, _) => Ok(output),
        (_, Some(error)) => Err(error),
        (outcome, None) => Err(Error::new(format!("the run ended as {}", outcome.status().as_str()))),
    }
}

fn record_outcome<I, O>(run: &Typed<I, O>, result: &Result<O>) {
    if run.span().is_disabled() {
        return;
    }
    let status = result.as_ref().map_or_else(|error| Outcome::<()>::of_error(error).status(), |_| Status::Success);
    run.span().record("outcome", status.as_str());
}

/// Emits what can no longer change how the run ends: a failure is logged (R10).
async fn announce<I: Data, O: Data, P>(run: &Typed<I, O>, stage: Stage, payload: &mut P)
where
    P: Serialize + Send + Sync + 'static,
{
    if let Err(error) = emit(run, stage, payload).await {
        tracing::warn!(error = %error, "a listener of a run's `{}` failed", stage.as_str());
    }
}

async fn emit<I: Data, O: Data, P>(run: &Typed<I, O>, stage: Stage, payload: &mut P) -> Result<(), EmitError>
where
    P: Serialize + Send + Sync + 'static,
{
    let (facet, delivery) = (run.typed_life().stages.facet(stage), &run.typed_life().delivery);
    run.emitter().emit_delivered(stage.event_name(), payload, facet, delivery).await
}
