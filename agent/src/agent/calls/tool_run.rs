//! The run of one tool call.

use std::sync::Arc;

use emitree_emitter::{AnyEvent, Options};
use emitree_runtime::{KeptValue, Middleware, Result, Run, RunContext, Runnable, Stack, Stage};
use futures_core::future::BoxFuture;
use serde_json::Value;

use crate::agent::steps::Loop;
use crate::agent::turn::{DISCARDED, LoopState};
use crate::session::turn::{CallInTurn, TurnHandle};
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
    /// The value that the call has kept with its question.
    kept: Option<KeptValue>,
    layers: Vec<Stack<Tool>>,
    /// `true` if the agent's run hands down middlewares to the run.
    is_bound_from_above: bool,
    has_listeners: bool,
}

impl ToolRun {
    pub(super) fn new(
        agent: &Loop<'_>,
        turn: &TurnHandle<'_>,
        position: usize,
        call: &ToolCall,
        arguments: Value,
    ) -> Self {
        let id = CallId(call.id.clone());
        let changed = turn.calls().is_changed(position, call).then(|| call.clone());
        let place = CallInTurn { turn: Arc::clone(turn.calls()), position, answers: agent.answers().clone() };
        let kept = || turn.calls().read(position, |call| call.kept.clone()).flatten();
        let kept = turn.is_resumed().then(kept).flatten();
        let layers = agent.installed().iter().map(|installed| &installed.hooks.tool_call);
        let layers = layers.filter(|stack| !stack.is_empty()).cloned().collect();
        let (is_bound_from_above, has_listeners) = (agent.ctx.binds_nested(), agent.ctx.has_listeners());
        Self { arguments, id, changed, place, kept, layers, is_bound_from_above, has_listeners }
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
        let (of_key, changed) = (self.place.clone(), self.changed);
        let of_below = self.place.clone();
        let mut run = tool.run(self.arguments);
        if self.has_listeners {
            // The tool's own `start` has the id too, but a call that is denied does not reach it.
            run = run.start_fact("call_id", self.id.0.clone());
        }
        let run = run.own_extension(self.id).own_extension(self.place);
        let run = match self.kept {
            Some(kept) => run.own_extension(kept),
            None => run,
        };
        let run = run.key_with(move || of_key.key(changed.as_ref()));
        // A middleware, such as a fallback, may do the work in a run below.
        let has_middlewares = self.is_bound_from_above || tool.has_middlewares() || !self.layers.is_empty();
        let run = run.middleware(BeginsBelow { call: of_below, has_middlewares });
        self.layers.into_iter().fold(run, |run, stack| run.middleware(stack))
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
        let is_of_turn = |call: &CallInTurn| call.attempt() == attempt;
        for run in self.ctx.children() {
            if run.own_extension::<CallInTurn>().is_some_and(|call| is_of_turn(&call)) {
                run.abort(DISCARDED);
            }
        }
    }
}

/// Notes that the call begins before a run below is started that may do the work itself (A1), and stores this (A25).
#[derive(Debug)]
struct Begins(CallInTurn);

impl Middleware for Begins {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if !self.0.is_stored() {
            return self.0.begin(false).map(drop);
        }
        let call = self.0.clone();
        ctx.emitter().with(Options::new().priority(i32::MAX)).on_async(
            Stage::Start,
            move |_: &mut dyn AnyEvent, _| {
                let (call, run) = (call.clone(), RunContext::current());
                Box::pin(async move {
                    match run {
                        Some(run) => Ok(call.store_begin(false, &run).await?),
                        None => Ok(call.begin(false).map(drop)?),
                    }
                })
            },
        )?;
        Ok(())
    }

    fn name(&self) -> &'static str {
        BEGINS
    }
}

/// Binds [`Begins`] to the runs below a tool's run, and refuses the tool's run if another attempt has begun (A7).
#[derive(Debug)]
struct BeginsBelow {
    call: CallInTurn,
    /// `true` if the run has middlewares, which may start runs before the function is called.
    has_middlewares: bool,
}

impl Middleware for BeginsBelow {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        // Another attempt first counts itself, and then looks for runs of tools. So either it finds this run, or this run
        // sees that it is too late.
        let is_current = |state: &LoopState| state.session.attempt() == self.call.attempt();
        // The same holds for an interjection, which first closes the call.
        let is_late = self.call.is_closed() || !ctx.extension::<LoopState>().is_some_and(|state| is_current(&state));
        if is_late {
            return Err(too_late());
        }
        if self.has_middlewares {
            ctx.bind_nested(Begins(self.call.clone()));
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        BEGINS
    }
}
