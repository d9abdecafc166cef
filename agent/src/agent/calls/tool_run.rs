//! The run of one tool call.

use std::sync::Arc;

use emitree_runtime::{Layer, Middleware, Next, Phase, Result, Run, RunContext, Runnable, Stack};
use futures_core::future::BoxFuture;
use serde_json::Value;

use crate::agent::calls::questions::required;
use crate::agent::steps::Loop;
use crate::agent::turn::{DISCARDED, LoopState};
use crate::session::keys::CallInTurn;
use crate::session::open_turn::OpenTurn;
use crate::tool::started::WorkStarted;
use crate::tool::too_late;
use crate::{CallId, Tool, ToolCall, ToolOutput};

/// The name of [`Begins`].
const BEGINS: &str = "agent.begins";

/// The arguments, extensions and layers for the run of a tool.
pub(super) struct ToolRun {
    arguments: Value,
    id: CallId,
    /// The call, if hooks have changed it.
    changed: Option<ToolCall>,
    place: CallInTurn,
    layers: Vec<Stack<Tool>>,
    /// `true` if the agent's run hands down middlewares to the run.
    is_bound_from_above: bool,
    has_listeners: bool,
}

impl ToolRun {
    pub(super) fn new(
        agent: &Loop<'_>,
        turn: &OpenTurn<'_>,
        position: usize,
        call: &ToolCall,
        arguments: Value,
    ) -> Self {
        let (id, calls) = (CallId(call.id.clone()), Arc::clone(turn.calls()));
        let known = calls.read(position, |open| (open.call.clone(), required(open, agent.answers())));
        let (changed, required) = known.unwrap_or_default();
        let place = CallInTurn { calls, position, started: turn.work_started(position), required };
        let layers = agent.installed().iter().map(|installed| &installed.hooks.tool_call);
        let layers = layers.filter(|stack| !stack.is_empty()).cloned().collect();
        let (is_bound_from_above, has_listeners) = (agent.ctx.binds_nested(), agent.ctx.has_listeners());
        Self { arguments, id, changed, place, layers, is_bound_from_above, has_listeners }
    }

    pub(super) fn execute<'a>(self, agent: &Loop<'a>, tool: &'a Tool) -> BoxFuture<'a, Result<ToolOutput>> {
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
        let (started, of_key, changed) = (self.place.started.clone(), self.place.clone(), self.changed);
        let of_begin = self.place.clone();
        let mut run = tool.run(self.arguments);
        if self.has_listeners {
            // The tool's own `start` has the id too, but a call that is denied does not reach it.
            run = run.start_fact("call_id", self.id.0.clone());
        }
        let run = run.own_extension(self.id).own_extension(self.place);
        let run = run.key_with(move || of_key.key(changed.as_ref()));
        // A middleware, such as a fallback, may do the work in a run below.
        let has_middlewares = self.is_bound_from_above || tool.has_middlewares() || !self.layers.is_empty();
        let run = run.middleware(BeginsBelow { started, has_middlewares });
        let begins = begins(&self.layers, of_begin, has_middlewares);
        begins.into_iter().chain(self.layers).fold(run, |run, stack| run.middleware(stack))
    }
}

/// Aborts the runs of spawned calls if the attempt is dropped before all calls of the turn have settled (A7).
pub(super) struct Spawned<'a> {
    ctx: &'a RunContext,
    /// `None` once all calls have settled.
    attempt: Option<u32>,
}

impl<'a> Spawned<'a> {
    pub(super) const fn of(ctx: &'a RunContext, attempt: u32) -> Self {
        Self { ctx, attempt: Some(attempt) }
    }

    pub(super) const fn settle(&mut self) {
        self.attempt = None;
    }
}

impl Drop for Spawned<'_> {
    fn drop(&mut self) {
        let Some(attempt) = self.attempt else { return };
        let is_of_turn = |call: &CallInTurn| call.started.attempt() == attempt;
        for run in self.ctx.children() {
            if run.own_extension::<CallInTurn>().is_some_and(|call| is_of_turn(&call)) {
                run.abort(DISCARDED);
            }
        }
    }
}

/// Returns a layer outside all layers of `tool.call` that are not guards, or `None` if there are only guards.
fn begins(layers: &[Stack<Tool>], call: CallInTurn, has_middlewares: bool) -> Option<Stack<Tool>> {
    // The middlewares of the run may start runs before the function is called, and these cannot wait for a store.
    let stores_first = has_middlewares && call.is_stored();
    let is_used = |phase: &Phase| layers.iter().any(|stack| !stack.in_phase(*phase).is_empty());
    let used = || [Phase::Observe, Phase::Retry, Phase::Transform].into_iter().find(is_used);
    let phase = if stores_first { Some(Phase::Observe) } else { used() }?;
    Some(Stack::builder().layer_in(phase, BeginsHere { call, starts: used().is_some() }).build())
}

/// Marks the call as started before a layer is entered that may do the work itself (A1), and stores this (A25).
#[derive(Debug)]
struct BeginsHere {
    call: CallInTurn,
    /// `false` if there is no such layer.
    starts: bool,
}

/// Marks the call as started before a run below is started that may do the work itself (A1).
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

impl Layer<Tool> for BeginsHere {
    async fn call(&self, arguments: &Value, ctx: &RunContext, next: Next<'_, Tool>) -> Result<ToolOutput> {
        if let Some(begins) = self.call.store_begin(ctx) {
            begins.await?;
        }
        if self.starts && !self.call.started.start() {
            return Err(too_late());
        }
        next.run(arguments).await
    }

    fn name(&self) -> &'static str {
        BEGINS
    }
}
