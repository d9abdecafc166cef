//! The results of a turn's calls, once all calls have settled.

use emitree_runtime::{Error, Interrupt, Result};
use futures_core::future::BoxFuture;
use serde_json::{Value, json};

use crate::agent::calls::questions::{Asked, BATCH, is_question, report, report_answers};
use crate::agent::calls::settle::{Outcome, Settled, has_result_hooks};
use crate::agent::events::{QuestionAsked, ToolResponse};
use crate::agent::steps::{Loop, PAUSED};
use crate::message::arguments::is_too_deep;
use crate::model::emit;
use crate::place::action::{CallResult, How};
use crate::session::fold::turn::NOT_EXECUTED;
use crate::session::turn::TurnHandle;
use crate::typed::shortened;
use crate::{ToolCall, ToolOutput, ToolResult};

/// Passes all results through `tool.result` in call order, and returns the results or the strongest error.
pub(super) async fn finish(agent: &Loop<'_>, turn: &TurnHandle<'_>, settled: Vec<Settled>) -> Result<Vec<CallResult>> {
    let (mut pending, mut errors, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    let (mut results, is_checked) = (turn.earlier_results(), has_result_hooks(agent));
    for Settled { position, how } in settled {
        let (mut result, stays_open) = match how {
            Outcome::Result(result) => (result, false),
            Outcome::Ends(result, error) => {
                errors.push(error);
                (result, false)
            }
            Outcome::Stopped(result, error) => {
                errors.push(error);
                (result, true)
            }
            Outcome::Interrupted(call, asked) => {
                report_question(agent, turn, position, &asked).await;
                pending.push(json!({"call": call, "interrupt": asked.question}));
                continue;
            }
            Outcome::Interjected(call) => {
                skipped.push(call.clone());
                (CallResult { call, how: How::Skipped, output: ToolOutput::error(NOT_EXECUTED) }, false)
            }
            Outcome::NotExecuted => continue,
        };
        if turn.is_resumed() {
            report_answers(agent, turn, position, !stays_open).await;
        }
        // An error ends the run only after all results have passed through the hooks, because every result is part of
        // the history.
        let hooks = agent.chains().flat_map(|chains| &chains.results);
        if let Err(error) = result.pass(hooks, agent.ctx).await {
            // The hook did not let the result pass, so neither the history nor a listener receives it.
            errors.push(error);
            continue;
        }
        // Without hooks, the call has its result already.
        if is_checked && !stays_open {
            turn.settle(position, &result, &answer(&result));
        }
        if agent.ctx.has_listeners() {
            let mut response = ToolResponse { call: result.call.clone(), result: answer(&result) };
            errors.extend(Box::pin(async { emit(agent.ctx, &mut response).await }).await.err());
        }
        results.push((position, result));
    }
    if !skipped.is_empty() {
        errors.extend(report_skipped(agent, skipped).await.err());
    }
    if !pending.is_empty() {
        errors.push(interrupted(agent, &pending));
    }
    // Among errors of the same rank, `min_by_key` returns the first.
    if let Some(error) = errors.into_iter().min_by_key(rank) {
        return Err(error);
    }
    if turn.is_resumed() {
        results.sort_by_key(|(position, _)| *position);
    }
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Returns the error of interrupted calls: a pause if all of them were paused, or else an interrupt with all questions.
fn interrupted(agent: &Loop<'_>, pending: &[Value]) -> Error {
    if pending.iter().all(|waiting| waiting["interrupt"]["kind"] == PAUSED) {
        return agent.pause();
    }
    Error::interrupted(Interrupt::new(BATCH, json!({ "pending": pending }))).detail("waiting", questions(pending))
}

/// Reports the question that has interrupted a call, and the answers that the call has taken before.
fn report_question<'a>(
    agent: &'a Loop<'_>,
    turn: &'a TurnHandle<'_>,
    position: usize,
    asked: &'a Asked,
) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        report_answers(agent, turn, position, false).await;
        let Asked { question: Interrupt { id, kind, .. }, by } = asked;
        if is_question(kind) {
            report(agent, QuestionAsked { id: id.clone(), kind: kind.clone(), by: by.clone() }).await;
        }
    })
}

/// Calls the hooks of `steer.skip`.
fn report_skipped<'a>(agent: &'a Loop<'_>, mut skipped: Vec<ToolCall>) -> BoxFuture<'a, Result<()>> {
    Box::pin(async move {
        for chains in agent.chains() {
            chains.skip.apply(&mut skipped, agent.ctx).await?;
        }
        Ok(())
    })
}

/// Returns the name of each interrupted call, with the kind of its interrupt. The arguments are left out, because
/// explanations are printed and logged. For the calls of a sub-agent, the name of the call that runs the sub-agent
/// comes first.
fn questions(pending: &[Value]) -> Vec<String> {
    let of_call = |waiting: &Value| {
        let [name, kind] =
            [&waiting["call"]["name"], &waiting["interrupt"]["kind"]].map(|text| text.as_str().unwrap_or_default());
        match waiting["interrupt"]["data"]["pending"].as_array() {
            Some(inner) if kind == BATCH => questions(inner).iter().map(|inner| format!("{name} > {inner}")).collect(),
            _ => vec![format!("{}: {kind}", shortened(name))],
        }
    };
    pending.iter().flat_map(of_call).collect()
}

pub(super) fn answer(result: &CallResult) -> ToolResult {
    let output = &result.output;
    // A result that is nested too deeply enters the history as text, because otherwise a stored session could not be
    // read again.
    let response = if is_too_deep(&output.content) { output.text().into() } else { output.content.clone() };
    ToolResult { id: result.call.id.clone(), response, parts: output.parts.clone(), is_error: output.is_error }
}

/// Ranks an error of a turn; the strongest error has rank 0. The order is halt, fatal error, abort, interrupt, request
/// for a retry, any other error.
pub(super) fn rank(error: &Error) -> u8 {
    let is = [error.is_halted(), error.is_fatal(), error.is_aborted(), error.is_interrupted(), error.is_retry()];
    is.into_iter().zip(0..).find_map(|(is, rank)| is.then_some(rank)).unwrap_or(u8::MAX)
}
