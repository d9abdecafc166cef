//! The tool calls of one turn.

mod finish;
mod questions;
mod restore;
mod settle;
mod tool_run;

use std::sync::Arc;

use emitree_runtime::Result;
use futures_core::future::BoxFuture;
use futures_util::future::join_all;
use serde_json::Value;

pub(crate) use crate::agent::calls::questions::report;

use crate::agent::calls::finish::finish;
use crate::agent::calls::restore::restore;
use crate::agent::calls::settle::{has_exclusive_tools, settle, settle_in_groups};
use crate::agent::calls::tool_run::Spawned;
use crate::agent::events::ToolCallIdentified;
use crate::agent::steps::Loop;
use crate::message::arguments::MAX_NESTING;
use crate::model::emit;
use crate::place::action::CallResult;
use crate::place::batch::{Asks, Batch, GatedCall};
use crate::session::record::Fact;
use crate::session::turn::TurnHandle;
use crate::typed::shortened;
use crate::{Arguments, Tool, ToolCall, ToolSpec};

/// The result of a call that had begun in an earlier run, and that an interjection keeps from being made again.
const INTERJECTED: &str = "not executed again: the user interjected; it may have had effects";

/// Executes the calls of a turn, and returns their results in call order. If the turn was left open by an earlier run,
/// only the calls that have no result yet are executed.
///
/// The hooks of `tool.result` are called only after all calls have settled. If there are several errors,
/// [`rank`](finish::rank) determines which error is returned.
pub(crate) fn run_batch<'a>(agent: &'a Loop<'_>, turn: &'a TurnHandle<'_>) -> BoxFuture<'a, Result<Vec<CallResult>>> {
    Box::pin(async move {
        turn.listen();
        let mut batch = if turn.is_resumed() { restore(agent, turn).await? } else { begin(agent, turn).await? };
        turn.calls().resolve();
        // A call is checked again only if there are gates, because only gates change it after the first check.
        let is_gated = agent.chains().any(|chains| !chains.gates.is_empty());
        if is_gated {
            pass_gates(agent, turn, &mut batch).await?;
        }
        let mut spawned = agent.agent.spawn_tools.then(|| Spawned::of(agent.ctx, turn.attempt()));
        let settled = if has_exclusive_tools(agent) {
            settle_in_groups(agent, turn, batch.0, is_gated).await
        } else {
            join_all(batch.0.into_iter().map(|gated| settle(agent, turn, gated, is_gated))).await
        };
        spawned.iter_mut().for_each(Spawned::settle);
        finish(agent, turn, settled).await
    })
}

/// Passes the calls of a response through `tool.resolve`, and checks them.
async fn begin(agent: &Loop<'_>, turn: &TurnHandle<'_>) -> Result<Batch> {
    let calls: Vec<_> = turn.response().tool_calls().cloned().collect();
    if agent.offered.is_some() {
        // A resume does not know which tools the request offered.
        let refused = calls.iter().enumerate().filter(|(_, call)| was_not_offered(agent, call));
        refused.for_each(|(position, _)| turn.calls().note(position, Fact::NotOffered));
    }
    let mut batch = Batch(Vec::with_capacity(calls.len()));
    for (position, call) in calls.into_iter().enumerate() {
        batch.0.push(identify(agent, turn, position, call).await?);
    }
    Ok(batch)
}

/// Passes a call through `tool.resolve`, and checks it before the gate, so that nobody is asked to approve a call that
/// cannot be executed.
async fn identify(agent: &Loop<'_>, turn: &TurnHandle<'_>, position: usize, mut call: ToolCall) -> Result<GatedCall> {
    let is_rewritten = resolve(agent, &mut call).await?;
    if agent.chains().any(|chains| !chains.resolve.is_empty()) {
        turn.calls().note_all(position, |known| turn.calls().change_to(known, position, &call, false));
    }
    if agent.ctx.has_listeners() {
        Box::pin(async { emit(agent.ctx, &mut ToolCallIdentified { call: call.clone() }).await }).await?;
    }
    let was_refused = || turn.calls().read(position, |call| call.not_offered) == Some(true);
    let fault = (!is_rewritten && was_refused()).then(|| format!("`{}` was not offered in this turn", call.name));
    let fault = fault.or_else(|| check_call(agent, &call).err());
    Ok(GatedCall::new(position, call, fault))
}

/// Passes the calls through all gates. An interjection ends the wait, and closes all calls.
fn pass_gates<'a>(agent: &'a Loop<'_>, turn: &'a TurnHandle<'_>, batch: &'a mut Batch) -> BoxFuture<'a, Result<()>> {
    Box::pin(async move {
        let gates = agent.chains().flat_map(|chains| &chains.gates);
        let of = |gated: &GatedCall| (gated.position, gated.call.clone(), gated.fault.clone());
        let calls: Vec<_> = batch.0.iter().map(of).collect();
        let asks = Asks::of_turn(agent.answers(), agent.ctx, turn.calls());
        if let Some(passed) = turn.until_interjected(batch.pass_gates(gates, agent.ctx, asks)).await {
            return passed;
        }
        // A gate that was left may have removed calls.
        let closed = |(position, call, fault): (usize, ToolCall, Option<String>)| {
            // A call that had begun in an earlier run is not closed, and has not passed the gates of this one.
            let fault = fault.or_else(|| (!turn.is_interjected(position)).then(|| INTERJECTED.to_owned()));
            GatedCall::new(position, call, fault)
        };
        batch.0 = calls.into_iter().map(closed).collect();
        Ok(())
    })
}

/// Returns `true` if a hook has replaced the call.
async fn resolve(agent: &Loop<'_>, call: &mut ToolCall) -> Result<bool> {
    for chains in agent.chains() {
        if chains.resolve.pass(call, agent.ctx).await?.is_break() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns `true` if the request of the turn did not offer the tool.
fn was_not_offered(agent: &Loop<'_>, call: &ToolCall) -> bool {
    let is_offered = |offered: &Arc<Vec<ToolSpec>>| offered.iter().any(|spec| spec.name == call.name);
    !agent.offered.as_ref().is_none_or(is_offered) && agent.tools.find(&call.name).is_some()
}

/// Returns the tool and the arguments of a call, or an error text for the model if the call cannot be executed.
fn check_call<'a>(agent: &'a Loop<'_>, call: &'a ToolCall) -> Result<(&'a Tool, &'a Value), String> {
    let (tool, arguments) = find_tool(agent, call)?;
    tool.check(arguments).map_err(|fault| format!("the arguments of `{}` are invalid: {fault}", call.name))?;
    Ok((tool, arguments))
}

/// Returns the tool and the arguments of a call, without checking the arguments against the tool's schema. If the tool
/// does not exist or the arguments are malformed, returns an error text for the model.
fn find_tool<'a>(agent: &'a Loop<'_>, call: &'a ToolCall) -> Result<(&'a Tool, &'a Value), String> {
    let offered = agent.offered.as_ref().unwrap_or_else(|| agent.tools.specs());
    let tool = agent.tools.find(&call.name).ok_or_else(|| unknown(offered, call))?;
    let arguments = match &call.arguments {
        Arguments::Json(arguments) => arguments,
        Arguments::Malformed(text) => {
            // Valid JSON is `Malformed` only if it is nested too deeply, and `IgnoredAny` parses it at any depth.
            let fault = match serde_json::from_str::<serde::de::IgnoredAny>(text) {
                Ok(_) => format!("nested too deeply: at most {MAX_NESTING} levels are allowed"),
                Err(fault) => format!("not JSON: {fault}"),
            };
            return Err(format!("the arguments of `{}` are {fault}", call.name));
        }
    };
    Ok((tool, arguments))
}

fn unknown(offered: &[ToolSpec], call: &ToolCall) -> String {
    let names: Vec<_> = offered.iter().map(|spec| format!("`{}`", spec.name)).collect();
    let name = shortened(&call.name);
    match names.as_slice() {
        [] => format!("there is no tool `{name}`; no tools are available"),
        names => format!("there is no tool `{name}`; available tools: {}", names.join(", ")),
    }
}
