//! Each call of a turn until it has settled.

use emitree_runtime::Error;
use futures_core::future::BoxFuture;
use futures_util::future::{join_all, ready};
use serde_json::{Value, json};

use crate::agent::calls::finish::answer;
use crate::agent::calls::questions::{Asked, Edited, edit};
use crate::agent::calls::tool_run::ToolRun;
use crate::agent::calls::{check_call, find_tool, pass_gates};
use crate::agent::steps::Loop;
use crate::place::action::{CallResult, How};
use crate::place::batch::{Batch, GatedCall, Verdict};
use crate::session::commits::is_not_stored;
use crate::session::turn::TurnHandle;
use crate::{Tool, ToolCall, ToolOutput};

/// A call that was made, by its position in the turn.
pub(super) struct Settled {
    pub(super) position: usize,
    pub(super) how: Outcome,
}

/// The outcome of a call.
pub(super) enum Outcome {
    /// The call has a result for the model.
    Result(CallResult),
    /// The call was interrupted, and waits for an answer.
    Interrupted(ToolCall, Asked),
    /// The call failed with an error that ends the agent's run. The history keeps the result.
    Ends(CallResult, Error),
    /// The agent's run was aborted during the call, which stays open.
    Stopped(CallResult, Error),
    /// The user interjected before the call had begun.
    Interjected(ToolCall),
    /// The call was still waiting when another call ended the run. It stays open.
    NotExecuted,
}

impl Outcome {
    /// Returns `true` if the agent's run ends because of this call.
    const fn ends_the_run(&self) -> bool {
        matches!(self, Self::Interrupted(..) | Self::Ends(..) | Self::Stopped(..))
    }

    /// Replaces an outcome that does not end the run, because an interjection had closed the call.
    fn interjected(self) -> Self {
        match self {
            Self::Result(CallResult { call, .. }) | Self::Interrupted(call, _) => Self::Interjected(call),
            other => other,
        }
    }
}

pub(super) fn has_exclusive_tools(agent: &Loop<'_>) -> bool {
    !agent.agent.parallel_tools || agent.tools.tools().iter().any(Tool::is_exclusive)
}

/// Returns `true` if no other call may run while this call runs. A call that the gate has decided on runs no tool.
fn is_exclusive(agent: &Loop<'_>, gated: &GatedCall) -> bool {
    let is_exclusive = |tool: &Tool| !agent.agent.parallel_tools || tool.is_exclusive();
    gated.is_open() && agent.tools.find(&gated.call.name).is_some_and(is_exclusive)
}

/// A call that waits for its group.
struct Waiting<'a> {
    position: usize,
    is_open: bool,
    is_exclusive: bool,
    settled: BoxFuture<'a, Settled>,
}

/// Executes the calls in groups, one group after the other (A4). An exclusive call is a group of its own, and so are
/// all calls between two exclusive calls. After a group with a call that ends the run, no tool runs.
pub(super) fn settle_in_groups<'a>(
    agent: &'a Loop<'_>,
    turn: &'a TurnHandle<'_>,
    calls: Vec<GatedCall>,
    is_gated: bool,
) -> BoxFuture<'a, Vec<Settled>> {
    Box::pin(async move {
        let mut waiting = Vec::with_capacity(calls.len());
        for gated in calls {
            let (position, is_open, is_exclusive) = (gated.position, gated.is_open(), is_exclusive(agent, &gated));
            let mut settled = settle(agent, turn, gated, is_gated);
            if !is_open {
                // The result does not wait, so that the history has it even if the run is dropped.
                settled = Box::pin(ready(settled.await));
            }
            waiting.push(Waiting { position, is_open, is_exclusive, settled });
        }
        let mut settled = Vec::with_capacity(waiting.len());
        let mut has_ended = false;
        for group in waiting.chunk_by_mut(|call, next| !call.is_exclusive && !next.is_exclusive) {
            for call in group.iter_mut().filter(|call| has_ended && call.is_open) {
                call.settled = Box::pin(ready(Settled { position: call.position, how: Outcome::NotExecuted }));
            }
            let group = join_all(group.iter_mut().map(|call| &mut call.settled)).await;
            has_ended |= group.iter().any(|settled| settled.how.ends_the_run());
            settled.extend(group);
        }
        settled
    })
}

/// Executes one call, and sets its result in the turn.
pub(super) fn settle<'a>(
    agent: &'a Loop<'_>,
    turn: &'a TurnHandle<'_>,
    gated: GatedCall,
    is_gated: bool,
) -> BoxFuture<'a, Settled> {
    Box::pin(async move {
        let position = gated.position;
        let mut how = if turn.is_interjected(position) {
            Outcome::Interjected(gated.call)
        } else {
            execute(agent, turn, gated, is_gated).await
        };
        while let Outcome::Interrupted(call, asked) = &how
            && agent.answers().get(&asked.question.id).is_some()
        {
            how = execute_live_edit(agent, turn, position, call.clone(), asked, is_gated).await;
        }
        if turn.is_interjected(position) {
            how = how.interjected();
        }
        // The result is set immediately, so that the history has this result even if the run ends while other calls are
        // running. If hooks have to let it pass first, the history has only that the call was executed.
        match &how {
            Outcome::Result(_) | Outcome::Ends(..) if has_result_hooks(agent) => turn.withhold(position),
            Outcome::Result(result) | Outcome::Ends(result, _) => turn.settle(position, result, &answer(result)),
            Outcome::Interrupted(_, asked) => asked.keep(turn, position, agent.answers()),
            // The interjection has set the result.
            Outcome::Interjected(_) | Outcome::Stopped(..) | Outcome::NotExecuted => {}
        }
        // The last result of a turn is stored with the end of the turn.
        if let Outcome::Result(_) = &how
            && !turn.is_over()
            && let Some(commit) = agent.commit()
            && let Err(error) = commit.await
            && let Outcome::Result(result) = how
        {
            how = Outcome::Ends(result, error);
        }
        Settled { position, how }
    })
}

async fn execute(agent: &Loop<'_>, turn: &TurnHandle<'_>, gated: GatedCall, is_gated: bool) -> Outcome {
    let (position, asked_by) = (gated.position, gated.asked_by.clone());
    let (call, verdict, fault) = gated.into_parts();
    let (how, mut output) = match (verdict, fault) {
        (Some(Verdict::Answer(output)), _) => (How::Answered, output),
        (Some(Verdict::Skip(reason)), _) => (How::Skipped, ToolOutput::new(reason)),
        (Some(Verdict::Deny { by, reason }), _) => {
            (How::Denied, ToolOutput::error(Error::denied(by, reason).explain()))
        }
        (Some(Verdict::Interrupt(question)), _) => {
            return interrupt(
                agent,
                turn,
                position,
                call,
                Asked { by: asked_by.unwrap_or_else(|| question.kind.clone()), question },
            );
        }
        (None, Some(fault)) => (How::Failed, ToolOutput::error(fault)),
        // A gate may have changed the call, so its name and arguments are checked again.
        (None, None) => match if is_gated { check_call(agent, &call) } else { find_tool(agent, &call) } {
            Err(fault) => (How::Failed, ToolOutput::error(fault)),
            Ok((tool, arguments)) => {
                match ToolRun::new(agent, turn, position, &call, arguments.clone()).execute(agent, tool).await {
                    Ok(output) => (How::Executed, executed(turn, position, arguments, output)),
                    Err(error) => match Asked::of(&error) {
                        Some(asked) => return interrupt(agent, turn, position, call, asked),
                        None => return by_error(agent, call, error, || turn.stop(position)),
                    },
                }
            }
        },
    };
    output.check_parts();
    Outcome::Result(CallResult { call, how, output })
}

/// Adds the arguments to the output of a call that a person has edited, because the history has the call as the model
/// wrote it.
fn executed(turn: &TurnHandle<'_>, position: usize, arguments: &Value, mut output: ToolOutput) -> ToolOutput {
    if turn.calls().read(position, |call| call.is_edited) == Some(true) {
        output.content = json!({"executed_with": arguments, "result": output.content});
    }
    output
}

fn interrupt(agent: &Loop<'_>, turn: &TurnHandle<'_>, position: usize, call: ToolCall, asked: Asked) -> Outcome {
    let key = || turn.calls().key(position, Some(&call));
    match asked.identify(key, agent.answers()) {
        Ok(asked) => Outcome::Interrupted(call, asked),
        Err(text) => Outcome::Result(CallResult { call, how: How::Failed, output: ToolOutput::error(text) }),
    }
}

/// Executes the edit of a live approval, which has kept it as the answer to its question.
fn execute_live_edit<'a>(
    agent: &'a Loop<'_>,
    turn: &'a TurnHandle<'_>,
    position: usize,
    call: ToolCall,
    asked: &'a Asked,
    is_gated: bool,
) -> BoxFuture<'a, Outcome> {
    Box::pin(async move {
        asked.keep_answered(turn, position, agent.answers());
        let edited = edit(agent, turn, position, &call).await;
        let failed = |text| {
            Outcome::Result(CallResult { call: call.clone(), how: How::Failed, output: ToolOutput::error(text) })
        };
        let edited = match edited {
            Some(Edited::Call(edited)) => edited,
            Some(Edited::Refused(Asked { question, by })) => {
                let reason = question.data["refused"]["reason"].as_str().unwrap_or_default();
                return failed(format!("not executed: the arguments from `{by}` are not valid: {reason}"));
            }
            None => return failed(format!("not executed: `{}` has not read its answer", asked.by)),
        };
        let mut batch = Batch(vec![GatedCall::new(position, edited, None)]);
        if is_gated && let Err(error) = pass_gates(agent, turn, &mut batch).await {
            let result = CallResult { call, how: How::Failed, output: ToolOutput::error(error.to_string()) };
            return Outcome::Ends(result, error);
        }
        match batch.0.pop() {
            Some(gated) => execute(agent, turn, gated, is_gated).await,
            None => Outcome::NotExecuted,
        }
    })
}

/// Turns the error of a tool's run into a result, or the end of the agent's run. If the agent's run was aborted,
/// `stopped` closes the call, and returns the text of the result.
fn by_error(agent: &Loop<'_>, call: ToolCall, error: Error, stopped: impl FnOnce() -> &'static str) -> Outcome {
    // If only the tool's run was aborted, the agent's run continues.
    let is_aborted = (error.is_aborted() && agent.ctx.is_aborted()) || is_not_stored(&error);
    let (how, text) = if is_aborted {
        (How::Failed, stopped().to_owned())
    } else if error.is_denied() {
        (How::Denied, error.explain())
    } else {
        (How::Failed, error.to_string())
    };
    let result = CallResult { call, how, output: ToolOutput::error(text) };
    if is_aborted {
        Outcome::Stopped(result, error)
    } else if error.is_halted() || error.is_fatal() {
        Outcome::Ends(result, error)
    } else {
        Outcome::Result(result)
    }
}

pub(super) fn has_result_hooks(agent: &Loop<'_>) -> bool {
    agent.chains().any(|chains| !chains.results.is_empty())
}
