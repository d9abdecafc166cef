//! The tool calls of one turn.

use emitree_runtime::{Error, Interrupt, Layer, Middleware, Next, Phase, Result, Run, RunContext, Runnable, Stack};
use futures_core::future::BoxFuture;
use futures_util::future::{join_all, ready};
use serde_json::{Value, json};

use crate::agent::events::{ToolCallIdentified, ToolResponse};
use crate::agent::steps::Loop;
use crate::agent::turn::{DISCARDED, LoopState};
use crate::message::arguments::{MAX_NESTING, is_too_deep};
use crate::model::emit;
use crate::place::action::{CallResult, How};
use crate::place::batch::{Batch, GatedCall, Verdict};
use crate::session::open_turn::{NOT_EXECUTED, OpenTurn};
use crate::tool::started::WorkStarted;
use crate::tool::{shortened, too_late};
use crate::{Arguments, CallId, Tool, ToolCall, ToolOutput, ToolResult, ToolSpec};

/// The kind of the interrupt that combines the interrupts of a turn's calls.
const BATCH: &str = "agent.batch";

/// The name of [`Begins`].
const BEGINS: &str = "agent.begins";

/// A call that has settled.
enum Settled {
    /// The call has a result for the model.
    Result(CallResult),
    /// The call was interrupted, and waits for an answer.
    Interrupted(ToolCall, Interrupt),
    /// The call failed with an error that ends the agent's run. The history keeps the result.
    Ends(CallResult, Error),
    /// The user interjected before the call had begun.
    Interjected(ToolCall),
    /// The call was still waiting when another call ended the run. The end of the turn adds its result.
    NotExecuted,
}

impl Settled {
    /// Returns `true` if the agent's run ends because of this call.
    const fn ends_the_run(&self) -> bool {
        matches!(self, Self::Interrupted(..) | Self::Ends(..))
    }

    /// Replaces an outcome that does not end the run, because an interjection had closed the call.
    fn interjected(self) -> Self {
        match self {
            Self::Result(CallResult { call, .. }) | Self::Interrupted(call, _) => Self::Interjected(call),
            other => other,
        }
    }
}

/// Executes the calls of a turn, and returns their results in call order.
///
/// The hooks of `tool.result` are called only after all calls have settled. If there are several errors, [`rank`]
/// determines which error is returned.
pub(crate) fn run_batch<'a>(agent: &'a Loop<'_>, turn: &'a OpenTurn<'_>) -> BoxFuture<'a, Result<Vec<CallResult>>> {
    Box::pin(async move {
        let calls: Vec<_> = turn.response().tool_calls().cloned().collect();
        agent.turn().change(|turn| turn.tool_calls += u32::try_from(calls.len()).unwrap_or(u32::MAX));
        turn.listen(agent.ctx);
        let mut batch = Batch(Vec::with_capacity(calls.len()));
        for mut call in calls {
            let is_rewritten = resolve(agent, &mut call).await?;
            if agent.ctx.has_listeners() {
                Box::pin(async { emit(agent.ctx, &mut ToolCallIdentified { call: call.clone() }).await }).await?;
            }
            // The call is checked before the gate, so that nobody is asked to approve a call that cannot be executed.
            let fault = if is_rewritten { None } else { not_offered(agent, &call) };
            let fault = fault.or_else(|| check_call(agent, &call).err());
            batch.0.push(GatedCall::new(call, fault));
        }
        // A call is checked again only if there are gates, because only gates change it after the first check.
        let is_gated = agent.chains().any(|chains| !chains.gates.is_empty());
        if is_gated {
            pass_gates(agent, turn, &mut batch).await?;
        }
        let mut spawned = agent.agent.spawn_tools.then(|| Spawned { ctx: agent.ctx, attempt: Some(turn.attempt()) });
        let calls = batch.0.into_iter().enumerate();
        let settled = if has_exclusive_tools(agent) {
            settle_in_groups(agent, turn, calls, is_gated).await
        } else {
            join_all(calls.map(|(position, gated)| settle(agent, turn, position, gated, is_gated))).await
        };
        spawned.iter_mut().for_each(Spawned::settle);
        finish(agent, turn, settled).await
    })
}

/// Passes the calls through all gates. An interjection ends the wait, and closes all calls.
fn pass_gates<'a>(agent: &'a Loop<'_>, turn: &'a OpenTurn<'_>, batch: &'a mut Batch) -> BoxFuture<'a, Result<()>> {
    Box::pin(async move {
        let gates = agent.chains().flat_map(|chains| &chains.gates);
        let calls: Vec<_> = batch.calls().map(|gated| gated.call.clone()).collect();
        if let Some(passed) = turn.until_interjected(batch.pass_gates(gates, agent.ctx)).await {
            return passed;
        }
        // A gate that was left may have removed calls.
        batch.0 = calls.into_iter().map(|call| GatedCall::new(call, None)).collect();
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

/// Returns an error text for the model if it calls a tool that its request did not offer.
fn not_offered(agent: &Loop<'_>, call: &ToolCall) -> Option<String> {
    let offered = agent.offered.as_ref()?;
    let is_offered = offered.iter().any(|spec| spec.name == call.name);
    (!is_offered && agent.tools.find(&call.name).is_some())
        .then(|| format!("`{}` was not offered in this turn", call.name))
}

fn has_exclusive_tools(agent: &Loop<'_>) -> bool {
    !agent.agent.parallel_tools || agent.tools.tools().iter().any(Tool::is_exclusive)
}

/// Returns `true` if no other call may run while this call runs. A call that the gate has decided on runs no tool.
fn is_exclusive(agent: &Loop<'_>, gated: &GatedCall) -> bool {
    let is_exclusive = |tool: &Tool| !agent.agent.parallel_tools || tool.is_exclusive();
    gated.is_open() && agent.tools.find(&gated.call.name).is_some_and(is_exclusive)
}

/// A call that waits for its group.
struct Waiting<'a> {
    is_open: bool,
    is_exclusive: bool,
    settled: BoxFuture<'a, Settled>,
}

/// Executes the calls in groups, one group after the other (A4). An exclusive call is a group of its own, and so are
/// all calls between two exclusive calls. After a group with a call that ends the run, no tool runs.
fn settle_in_groups<'a>(
    agent: &'a Loop<'_>,
    turn: &'a OpenTurn<'_>,
    calls: impl ExactSizeIterator<Item = (usize, GatedCall)> + Send + 'a,
    is_gated: bool,
) -> BoxFuture<'a, Vec<Settled>> {
    Box::pin(async move {
        let mut waiting = Vec::with_capacity(calls.len());
        for (position, gated) in calls {
            let (is_open, is_exclusive) = (gated.is_open(), is_exclusive(agent, &gated));
            let mut settled = settle(agent, turn, position, gated, is_gated);
            if !is_open {
                // The result does not wait, so that the history has it even if the run is dropped.
                settled = Box::pin(ready(settled.await));
            }
            waiting.push(Waiting { is_open, is_exclusive, settled });
        }
        let mut settled = Vec::with_capacity(waiting.len());
        let mut has_ended = false;
        for group in waiting.chunk_by_mut(|call, next| !call.is_exclusive && !next.is_exclusive) {
            for call in group.iter_mut().filter(|call| has_ended && call.is_open) {
                call.settled = Box::pin(ready(Settled::NotExecuted));
            }
            let group = join_all(group.iter_mut().map(|call| &mut call.settled)).await;
            has_ended |= group.iter().any(Settled::ends_the_run);
            settled.extend(group);
        }
        settled
    })
}

/// Executes one call, and sets its result in the turn.
fn settle<'a>(
    agent: &'a Loop<'_>,
    turn: &'a OpenTurn<'_>,
    position: usize,
    gated: GatedCall,
    is_gated: bool,
) -> BoxFuture<'a, Settled> {
    Box::pin(async move {
        let mut settled = if turn.is_interjected(position) {
            Settled::Interjected(gated.call)
        } else {
            execute(agent, turn, position, gated, is_gated).await
        };
        if turn.is_interjected(position) {
            settled = settled.interjected();
        }
        // The result is set immediately, so that the history has this result even if the run ends while other calls are
        // running. If hooks have to let it pass first, the history has only that the call was executed.
        match &settled {
            Settled::Result(_) | Settled::Ends(..) if has_result_hooks(agent) => turn.withhold(position),
            Settled::Result(result) | Settled::Ends(result, _) => turn.answer(position, answer(result)),
            Settled::Interrupted(..) => turn.interrupt(position),
            Settled::Interjected(_) => turn.answer(position, ToolResult::error("", NOT_EXECUTED)),
            Settled::NotExecuted => {}
        }
        settled
    })
}

async fn execute(agent: &Loop<'_>, turn: &OpenTurn<'_>, position: usize, gated: GatedCall, is_gated: bool) -> Settled {
    let (call, verdict, fault) = gated.into_parts();
    let (how, output) = match (verdict, fault) {
        (Some(Verdict::Answer(output)), _) => (How::Answered, output),
        (Some(Verdict::Skip(reason)), _) => (How::Skipped, ToolOutput::new(reason)),
        (Some(Verdict::Deny { by, reason }), _) => {
            (How::Denied, ToolOutput::error(Error::denied(by, reason).explain()))
        }
        (Some(Verdict::Interrupt(interrupt)), _) => return Settled::Interrupted(call, interrupt),
        (None, Some(fault)) => (How::Failed, ToolOutput::error(fault)),
        // A gate may have changed the call, so its name and arguments are checked again.
        (None, None) => match if is_gated { check_call(agent, &call) } else { find_tool(agent, &call) } {
            Err(fault) => (How::Failed, ToolOutput::error(fault)),
            Ok((tool, arguments)) => {
                let (id, started) = (CallId(call.id.clone()), turn.work_started(position));
                match ToolRun::new(agent, arguments.clone(), id, started).execute(agent, tool).await {
                    Ok(output) => (How::Executed, output),
                    Err(error) => return by_error(agent, call, error, || turn.stop(position)),
                }
            }
        },
    };
    Settled::Result(CallResult { call, how, output })
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

/// The arguments, extensions and layers for the run of a tool.
struct ToolRun {
    arguments: Value,
    id: CallId,
    started: WorkStarted,
    layers: Vec<Stack<Tool>>,
    /// `true` if the agent's run hands down middlewares to the run.
    is_bound_from_above: bool,
}

impl ToolRun {
    fn new(agent: &Loop<'_>, arguments: Value, id: CallId, started: WorkStarted) -> Self {
        let layers = agent.installed().iter().map(|installed| &installed.hooks.tool_call);
        let layers = layers.filter(|stack| !stack.is_empty()).cloned().collect();
        Self { arguments, id, started, layers, is_bound_from_above: agent.ctx.binds_nested() }
    }

    fn execute<'a>(self, agent: &Loop<'a>, tool: &'a Tool) -> BoxFuture<'a, Result<ToolOutput>> {
        if !agent.agent.spawn_tools {
            return Box::pin(self.bind(tool));
        }
        // A task of `ctx.spawn` ends before the agent's run does, and the tool's run is nested in the agent's run.
        let tool = tool.clone();
        let task = agent.ctx.spawn(async move { self.bind(&tool).await });
        Box::pin(async move { task.await? })
    }

    fn bind(self, tool: &Tool) -> Run<'_, Tool> {
        // Runs that the tool starts are not calls of this agent, so they must not inherit these extensions.
        let run = tool.run(self.arguments).own_extension(self.id).own_extension(self.started.clone());
        // A middleware, such as a fallback, may do the work in a run below.
        let has_middlewares = self.is_bound_from_above || tool.has_middlewares() || !self.layers.is_empty();
        let run = run.middleware(BeginsBelow { started: self.started.clone(), has_middlewares });
        let begins = begins(&self.layers, self.started);
        begins.into_iter().chain(self.layers).fold(run, |run, stack| run.middleware(stack))
    }
}

/// Aborts the runs of spawned calls if the attempt is dropped before all calls of the turn have settled (A7).
struct Spawned<'a> {
    ctx: &'a RunContext,
    /// `None` once all calls have settled.
    attempt: Option<u32>,
}

impl Spawned<'_> {
    const fn settle(&mut self) {
        self.attempt = None;
    }
}

impl Drop for Spawned<'_> {
    fn drop(&mut self) {
        let Some(attempt) = self.attempt else { return };
        let is_of_turn = |call: &WorkStarted| call.attempt() == attempt;
        for run in self.ctx.children() {
            if run.own_extension::<WorkStarted>().is_some_and(|call| is_of_turn(&call)) {
                run.abort(DISCARDED);
            }
        }
    }
}

/// Returns a layer outside all layers of `tool.call` that are not guards, or `None` if there are only guards.
fn begins(layers: &[Stack<Tool>], started: WorkStarted) -> Option<Stack<Tool>> {
    let is_used = |phase: &Phase| layers.iter().any(|stack| !stack.in_phase(*phase).is_empty());
    let phase = [Phase::Observe, Phase::Retry, Phase::Transform].into_iter().find(is_used)?;
    Some(Stack::builder().layer_in(phase, Begins(started)).build())
}

/// Marks the call as started before a layer is entered, or a run below is started, that may do the work itself (A1).
#[derive(Debug)]
struct Begins(WorkStarted);

impl Middleware for Begins {
    fn bind(&self, _: &RunContext) -> Result<()> {
        if self.0.start() { Ok(()) } else { Err(too_late()) }
    }

    fn name(&self) -> &'static str {
        BEGINS
    }
}

/// Binds [`Begins`] to the runs below a tool's run, and refuses the tool's run if another attempt has begun (A7).
#[derive(Debug)]
struct BeginsBelow {
    started: WorkStarted,
    /// `true` if the run has middlewares, which may start runs before the function is called.
    has_middlewares: bool,
}

impl Middleware for BeginsBelow {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        // Another attempt first counts itself, and then looks for runs of tools. So either it finds this run, or this run
        // sees that it is too late.
        let is_current = |state: &LoopState| state.session.attempt() == self.started.attempt();
        // The same holds for an interjection, which first closes the call.
        let is_late = self.started.is_closed() || !ctx.extension::<LoopState>().is_some_and(|state| is_current(&state));
        if is_late {
            return Err(too_late());
        }
        if self.has_middlewares {
            ctx.bind_nested(Begins(self.started.clone()));
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        BEGINS
    }
}

impl Layer<Tool> for Begins {
    async fn call(&self, arguments: &Value, _: &RunContext, next: Next<'_, Tool>) -> Result<ToolOutput> {
        if !self.0.start() {
            return Err(too_late());
        }
        next.run(arguments).await
    }

    fn name(&self) -> &'static str {
        BEGINS
    }
}

fn unknown(offered: &[ToolSpec], call: &ToolCall) -> String {
    let names: Vec<_> = offered.iter().map(|spec| format!("`{}`", spec.name)).collect();
    let name = shortened(&call.name);
    match names.as_slice() {
        [] => format!("there is no tool `{name}`; no tools are available"),
        names => format!("there is no tool `{name}`; available tools: {}", names.join(", ")),
    }
}

/// Turns the error of a tool's run into a result, an interrupted call, or the end of the agent's run. If the agent's
/// run was aborted, `stopped` closes the call, and returns the text of the result.
fn by_error(agent: &Loop<'_>, call: ToolCall, error: Error, stopped: impl FnOnce() -> &'static str) -> Settled {
    if error.is_interrupted()
        && let Some(interrupt) = error.interrupt().cloned()
    {
        return Settled::Interrupted(call, interrupt);
    }
    // If only the tool's run was aborted, the agent's run continues.
    let is_aborted = error.is_aborted() && agent.ctx.is_aborted();
    let (how, text) = if is_aborted {
        (How::Failed, stopped().to_owned())
    } else if error.is_denied() {
        (How::Denied, error.explain())
    } else {
        (How::Failed, error.to_string())
    };
    let result = CallResult { call, how, output: ToolOutput::error(text) };
    if error.is_halted() || error.is_fatal() || is_aborted {
        Settled::Ends(result, error)
    } else {
        Settled::Result(result)
    }
}

fn has_result_hooks(agent: &Loop<'_>) -> bool {
    agent.chains().any(|chains| !chains.results.is_empty())
}

/// Passes all results through `tool.result` in call order, and returns the results or the strongest error.
async fn finish(agent: &Loop<'_>, turn: &OpenTurn<'_>, settled: Vec<Settled>) -> Result<Vec<CallResult>> {
    let (mut results, mut pending, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    let mut skipped = Vec::new();
    for (position, settled) in settled.into_iter().enumerate() {
        let mut result = match settled {
            Settled::Result(result) => result,
            Settled::Ends(result, error) => {
                errors.push(error);
                result
            }
            Settled::Interrupted(call, interrupt) => {
                pending.push(json!({"call": call, "interrupt": interrupt}));
                continue;
            }
            Settled::Interjected(call) => {
                skipped.push(call.clone());
                CallResult { call, how: How::Skipped, output: ToolOutput::error(NOT_EXECUTED) }
            }
            Settled::NotExecuted => continue,
        };
        // An error ends the run only after all results have passed through the hooks, because every result is part of
        // the history.
        let hooks = agent.chains().flat_map(|chains| &chains.results);
        if let Err(error) = result.pass(hooks, agent.ctx).await {
            // The hook did not let the result pass, so neither the history nor a listener receives it.
            errors.push(error);
            continue;
        }
        turn.answer(position, answer(&result));
        if agent.ctx.has_listeners() {
            let mut response = ToolResponse { call: result.call.clone(), result: answer(&result) };
            errors.extend(Box::pin(async { emit(agent.ctx, &mut response).await }).await.err());
        }
        results.push(result);
    }
    if !skipped.is_empty() {
        errors.extend(report_skipped(agent, skipped).await.err());
    }
    if !pending.is_empty() {
        let waiting = questions(&pending);
        errors
            .push(Error::interrupted(Interrupt::new(BATCH, json!({ "pending": pending }))).detail("waiting", waiting));
    }
    // Among errors of the same rank, `min_by_key` returns the first.
    errors.into_iter().min_by_key(rank).map_or(Ok(results), Err)
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

fn answer(result: &CallResult) -> ToolResult {
    let output = &result.output;
    // A result that is nested too deeply enters the history as text, because otherwise a stored session could not be
    // read again.
    let response = if is_too_deep(&output.content) { output.text().into() } else { output.content.clone() };
    ToolResult { id: result.call.id.clone(), response, is_error: output.is_error }
}

/// Ranks an error of a turn; the strongest error has rank 0. The order is halt, fatal error, abort, interrupt, request
/// for a retry, any other error.
fn rank(error: &Error) -> u8 {
    let is = [error.is_halted(), error.is_fatal(), error.is_aborted(), error.is_interrupted(), error.is_retry()];
    is.into_iter().zip(0..).find_map(|(is, rank)| is.then_some(rank)).unwrap_or(u8::MAX)
}
