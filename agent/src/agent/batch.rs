//! The tool calls of one turn.

use emitree_runtime::{Error, Interrupt, Result, RunContext, Runnable};
use futures_util::future::join_all;
use serde_json::json;

use crate::agent::events::{ToolCallIdentified, ToolResponse};
use crate::agent::steps::Loop;
use crate::message::history::OpenTurn;
use crate::model::tell;
use crate::place::action::{CallResult, How};
use crate::place::batch::{Batch, GatedCall, Verdict, ends_the_run};
use crate::place::hooks::Gate;
use crate::{Arguments, CallId, Tool, ToolCall, ToolOutput, ToolResult};

/// A call that has settled.
enum Settled {
    /// It has a result for the model.
    Result(CallResult),
    /// A question has to be answered first.
    Interrupted(ToolCall, Interrupt),
    /// It ends the agent's run.
    Ends(CallResult, Error),
}

/// Executes the calls of a turn, and returns their results in call order.
///
/// All calls settle before anything else happens. Then the first of these decides: a halt, an abort or a fatal error, an
/// interrupt, a failed hook.
pub(crate) async fn run_batch(agent: &Loop<'_>, turn: &mut OpenTurn) -> Result<Vec<CallResult>> {
    let calls: Vec<_> = turn.response().tool_calls().cloned().collect();
    agent.turn.change(|turn| turn.tool_calls += u32::try_from(calls.len()).unwrap_or(u32::MAX));
    let mut batch = Batch(Vec::with_capacity(calls.len()));
    for mut call in calls {
        resolve(agent, &mut call).await?;
        if agent.ctx.is_heard() {
            tell(agent.ctx, &mut ToolCallIdentified { call: call.clone() }).await?;
        }
        batch.0.push(GatedCall::new(call));
    }
    gate(agent, &mut batch).await?;
    let settled = join_all(batch.0.into_iter().map(|gated| settle(agent, gated))).await;
    finish(agent, turn, settled).await
}

async fn resolve(agent: &Loop<'_>, call: &mut ToolCall) -> Result<()> {
    for chains in agent.chains() {
        if chains.resolve.pass(call, agent.ctx).await?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Has all gates decide, before any call starts.
async fn gate(agent: &Loop<'_>, batch: &mut Batch) -> Result<()> {
    let ids: Vec<_> = batch.calls().map(|gated| gated.call.id.clone()).collect();
    for gate in agent.chains().flat_map(|chains| &chains.gates) {
        match gate {
            Gate::Batch(by, filters) => {
                if let Err(error) = filters.apply(batch, agent.ctx).await {
                    if ends_the_run(&error) || error.is_interrupted() {
                        return Err(error);
                    }
                    // What the gate has not decided, it would have: a failed gate lets nothing through.
                    batch.open().for_each(|gated| gated.deny(by, error.to_string()));
                }
            }
            Gate::Each(by, filters) => {
                for gated in batch.open() {
                    if let Err(error) = filters.apply(gated, agent.ctx).await {
                        gated.decide_by(by, error)?;
                    }
                }
            }
        }
        // Results belong to calls by their position and id, whatever a gate did to a call.
        for (gated, id) in batch.0.iter_mut().zip(&ids) {
            gated.call.id.clone_from(id);
        }
    }
    Ok(())
}

/// Brings one call to its result: by its verdict, or by running its tool.
async fn settle(agent: &Loop<'_>, gated: GatedCall) -> Settled {
    let (call, verdict) = gated.into_parts();
    let result = |how, output| CallResult { call: call.clone(), how, output };
    match verdict {
        Some(Verdict::Answer(output)) => return Settled::Result(result(How::Answered, output)),
        Some(Verdict::Skip(reason)) => return Settled::Result(result(How::Skipped, ToolOutput::new(reason))),
        Some(Verdict::Deny { by, reason }) => {
            let output = ToolOutput::error(Error::denied(by, reason).explain());
            return Settled::Result(result(How::Denied, output));
        }
        Some(Verdict::Interrupt(interrupt)) => return Settled::Interrupted(call, interrupt),
        None => {}
    }
    match run_tool(agent, &call).await {
        Ok(Ok(output)) => Settled::Result(result(How::Executed, output)),
        Ok(Err(error)) => by_error(call, error),
        Err(text) => Settled::Result(result(How::Failed, ToolOutput::error(text))),
    }
}

/// Runs a tool. The outer error is a text for the model: the call cannot be executed.
async fn run_tool(agent: &Loop<'_>, call: &ToolCall) -> Result<Result<ToolOutput>, String> {
    let tool =
        agent.tools.iter().find(|tool| tool.spec().name == call.name).ok_or_else(|| unknown(&agent.tools, call))?;
    let arguments = match &call.arguments {
        Arguments::Json(arguments) => arguments,
        Arguments::Malformed(text) => {
            let fault = serde_json::from_str::<serde::de::IgnoredAny>(text).err();
            let fault = fault.map_or_else(String::new, |fault| format!(": {fault}"));
            return Err(format!("the arguments of `{}` are not JSON{fault}", call.name));
        }
    };
    tool.check(arguments).map_err(|fault| format!("the arguments of `{}` do not fit: {fault}", call.name))?;
    let mut run = tool.run(arguments.clone()).own_extension(CallId(call.id.clone()));
    for installed in agent.installed() {
        if !installed.hooks.tool_call.is_empty() {
            run = run.middleware(installed.hooks.tool_call.clone());
        }
    }
    Ok(run.await)
}

fn unknown(tools: &[Tool], call: &ToolCall) -> String {
    let names: Vec<_> = tools.iter().map(|tool| format!("`{}`", tool.spec().name)).collect();
    match names.as_slice() {
        [] => format!("there is no tool `{}`, and no other tool either", call.name),
        names => format!("there is no tool `{}`; there are {}", call.name, names.join(", ")),
    }
}

/// Decides what becomes of the error of a tool's run.
fn by_error(call: ToolCall, error: Error) -> Settled {
    if error.is_interrupted()
        && let Some(interrupt) = error.interrupt().cloned()
    {
        return Settled::Interrupted(call, interrupt);
    }
    let how = if error.is_denied() { How::Denied } else { How::Failed };
    let text = if error.is_denied() { error.explain() } else { error.to_string() };
    let result = CallResult { call, how, output: ToolOutput::error(text) };
    // A tool that was aborted alone, or whose retries are spent, has failed like any other.
    if error.is_halted() || error.is_fatal() { Settled::Ends(result, error) } else { Settled::Result(result) }
}

/// Answers all calls in call order, and decides how the turn goes on.
async fn finish(agent: &Loop<'_>, turn: &mut OpenTurn, settled: Vec<Settled>) -> Result<Vec<CallResult>> {
    let (mut results, mut pending) = (Vec::new(), Vec::new());
    let (mut ends, mut failed) = (None, None);
    for (position, settled) in settled.into_iter().enumerate() {
        let mut result = match settled {
            Settled::Result(result) => result,
            Settled::Ends(result, error) => {
                ends.get_or_insert(error);
                result
            }
            Settled::Interrupted(call, interrupt) => {
                turn.answer(position, ToolResult::error(&call.id, "not executed: interrupted"));
                pending.push(json!({"call": call, "interrupt": interrupt}));
                continue;
            }
        };
        if let Err(error) = pass_result(agent.ctx, agent, &mut result).await {
            failed.get_or_insert(error);
        }
        let answer = ToolResult {
            id: result.call.id.clone(),
            response: result.output.content.clone(),
            is_error: result.output.is_error,
        };
        turn.answer(position, answer.clone());
        if agent.ctx.is_heard() {
            let mut response = ToolResponse { call: result.call.clone(), result: answer };
            if let Err(error) = tell(agent.ctx, &mut response).await {
                failed.get_or_insert(error);
            }
        }
        results.push(result);
    }
    if let Some(error) = ends {
        return Err(error);
    }
    if !pending.is_empty() {
        return Err(Error::interrupted(Interrupt::new("agent.batch", json!({ "pending": pending }))));
    }
    failed.map_or(Ok(results), Err)
}

/// Passes a result through `tool.result`. Its failure is the result then; control flow that ends the run is returned.
async fn pass_result(ctx: &RunContext, agent: &Loop<'_>, result: &mut CallResult) -> Result<()> {
    for hook in agent.chains().flat_map(|chains| &chains.results) {
        if let Err(error) = hook.apply(result, ctx).await {
            if ends_the_run(&error) || error.is_interrupted() {
                return Err(error);
            }
            result.how = if error.is_denied() { How::Denied } else { How::Failed };
            result.output = ToolOutput::error(error.to_string());
        }
    }
    Ok(())
}
