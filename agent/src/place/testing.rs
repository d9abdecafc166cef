//! Calls hooks without an agent, for tests.

use std::future::ready;
use std::sync::Arc;

use emitree_middleware::values::KeyValues;
use emitree_runtime::{Error, Filters, Op, Result, RunContext, Runnable, Stack, runnable_fn};
use parking_lot::Mutex;
use serde_json::Value;

use crate::agent::middleware::Installed;
use crate::agent::own_hooks::OwnHooks;
use crate::agent::turn::LoopState;
use crate::message::history::History;
use crate::place::Chains;
use crate::place::action::{CallResult, Messages, TurnAction, TurnEnd};
use crate::place::batch::{Asks, Batch, GatedCall};
use crate::place::compaction::{Compacted, is_skipped};
use crate::place::request::ModelRequest;
use crate::place::restore::OpenCall;
use crate::place::values::LayeredValues;
use crate::{
    AgentInput, AgentMiddleware, AgentOutput, ChatRequest, ChatResponse, Delta, Message, Session, Tool, ToolCall,
    ToolOutput, Turn,
};

/// Calls the hooks of one middleware without an agent, for unit tests. Each async method calls the hooks of one place.
///
/// Calls of these methods never share a run. They share a [`Session`], so the [`State`](crate::State) of the middleware
/// is kept between calls, and a key-value store.
///
/// ```
/// use emitree_agent::{HookTest, ToolCall, Verdict, hooks_fn};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let no_deletion = hooks_fn("no_deletion", |hooks| {
///     hooks.on_gate_each(|gated, _| {
///         if gated.call.name == "delete" {
///             gated.deny("no_deletion", "nothing is deleted here");
///         }
///     });
/// });
/// let test = HookTest::new(&no_deletion)?;
/// let batch = test.gate([ToolCall::new("1", "read", json!({})), ToolCall::new("2", "delete", json!({}))]).await?;
/// let verdicts: Vec<_> = batch.calls().map(|gated| gated.verdict()).collect();
/// assert!(matches!(verdicts[..], [None, Some(Verdict::Deny { .. })]));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The async methods return the error of a hook as the agent's loop would receive it.
#[derive(Debug)]
pub struct HookTest {
    installed: Arc<Installed>,
    session: Session,
    turn: Turn,
    values: LayeredValues,
}

impl HookTest {
    /// Prepares a middleware as an agent does: calls [`init`](AgentMiddleware::init) and
    /// [`install`](AgentMiddleware::install).
    ///
    /// # Errors
    ///
    /// Returns the error of these methods, or an error if the middleware keeps values of two types.
    pub fn new(middleware: &impl AgentMiddleware) -> Result<Self> {
        let installed = Arc::new(Installed::new(middleware)?);
        let values = LayeredValues::default().with_layers([&installed.hooks]);
        Ok(Self { installed, session: Session::new(), turn: Turn::default(), values })
    }

    /// Sets the store behind [`AgentContext::values`](crate::AgentContext::values) in hooks, by default a
    /// [`MemoryValues`](emitree_middleware::values::MemoryValues). The layers of the middleware are around it.
    #[must_use]
    pub fn values(mut self, store: impl KeyValues) -> Self {
        self.values = LayeredValues::new(Arc::new(store), [&self.installed.hooks]);
        self
    }

    /// Sets the turn that [`AgentContext::turn`](crate::AgentContext::turn) returns in hooks.
    #[must_use]
    pub const fn turn(mut self, turn: Turn) -> Self {
        self.turn = turn;
        self
    }

    /// Calls the hooks of [`AgentStart`](crate::Place::AgentStart), each time.
    pub async fn start(&self) -> Result<()> {
        self.apply(&self.chains().start, ()).await
    }

    /// Calls the hooks of [`AgentMessage`](crate::Place::AgentMessage) with a message as JSON.
    pub async fn message(&self, message: impl Into<Value>) -> Result<()> {
        self.apply(&self.chains().message, message.into()).await.map(drop)
    }

    /// Calls the hooks of [`SteerInject`](crate::Place::SteerInject).
    pub async fn inject(&self, messages: impl IntoIterator<Item = Message>) -> Result<Vec<Message>> {
        self.apply(&self.chains().inject, messages.into_iter().collect()).await
    }

    /// Calls the hooks of [`ModelState`](crate::Place::ModelState).
    pub async fn state(&self, history: History) -> Result<History> {
        self.apply(&self.chains().state, history).await
    }

    /// Calls the hooks of [`ContextCompact`](crate::Place::ContextCompact) before a compaction. Returns `None` if a hook
    /// skips the compaction.
    pub async fn compact(&self, messages: impl IntoIterator<Item = Message>) -> Result<Option<Messages>> {
        let passed = self.apply(&self.chains().compact, shared(messages)).await;
        if is_skipped(&passed) { Ok(None) } else { passed.map(Some) }
    }

    /// Calls the hooks of [`ContextCompact`](crate::Place::ContextCompact) after a compaction.
    pub async fn compacted(&self, compacted: Compacted) -> Result<()> {
        self.apply(&self.chains().compacted, compacted).await.map(drop)
    }

    /// Calls the hooks of [`ModelContext`](crate::Place::ModelContext).
    pub async fn context(&self, messages: impl IntoIterator<Item = Message>) -> Result<Messages> {
        self.apply(&self.chains().context, shared(messages)).await
    }

    /// Appends the middleware's prompt parts to `base`, and passes the joined text through the hooks of
    /// [`ModelPrompt`](crate::Place::ModelPrompt). Returns the final prompt.
    pub async fn prompt(&self, base: impl Into<String>) -> Result<String> {
        let texts = self.apply(&self.chains().contributions, vec![base.into()]).await?;
        self.apply(&self.chains().prompt, join(texts)).await
    }

    /// Calls the hook of [`ModelWire`](crate::Place::ModelWire).
    pub async fn wire(&self, messages: impl IntoIterator<Item = Message>) -> Result<Messages> {
        self.apply(&self.chains().wire, shared(messages)).await
    }

    /// Calls the hooks of [`ModelRequest`](crate::Place::ModelRequest).
    pub async fn request(&self, call: ModelRequest) -> Result<ModelRequest> {
        self.apply(&self.chains().request, call).await
    }

    /// Returns the tools of the middleware: those that every turn has, and those that it is asked for.
    pub async fn tools(&self) -> Result<Vec<Tool>> {
        self.in_run(|it, ctx| async move {
            let mut tools = it.hooks.tools.clone();
            for source in &it.hooks.sources {
                tools.extend(source.ask(&ctx).await?);
            }
            Ok(tools)
        })
        .await
    }

    /// Calls the layers of [`ModelCall`](crate::Place::ModelCall) around a function that stands in for the
    /// model.
    pub async fn model_call(
        &self,
        request: ChatRequest,
        model: impl Fn(&ChatRequest) -> Result<ChatResponse> + Send + Sync + 'static,
    ) -> Result<ChatResponse> {
        self.call(&self.installed.hooks.model_call, request, model).await
    }

    /// Passes the pieces of a reply through the stages of [`ModelChunk`](crate::Place::ModelChunk). Calls the stages
    /// once for each list of pieces, and then once with `ended` set. Returns the pieces that leave the last stage.
    pub async fn chunks(&self, arrivals: impl IntoIterator<Item = Vec<Delta>>) -> Result<Vec<Delta>> {
        let arrivals: Vec<_> = arrivals.into_iter().collect();
        self.in_run(|it, ctx| async move {
            let mut stages = it.hooks.chains.chunks.begin();
            let mut passed = Vec::new();
            for deltas in arrivals {
                passed.append(&mut stages.pass(deltas, false, &ctx).await?);
            }
            passed.append(&mut stages.pass(Vec::new(), true, &ctx).await?);
            Ok(passed)
        })
        .await
    }

    /// Calls the hooks of [`TurnAction`](crate::Place::TurnAction).
    pub async fn action(&self, mut action: TurnAction) -> Result<TurnAction> {
        self.in_run(|it, ctx| async move {
            for hook in &it.hooks.chains.action {
                hook.apply(&mut action, &ctx).await?;
            }
            Ok(action)
        })
        .await
    }

    /// Calls the hooks of [`ToolRestore`](crate::Place::ToolRestore). A failure refuses the call, as in a resumed run.
    pub async fn restore(&self, mut open: OpenCall) -> Result<OpenCall> {
        self.in_run(|it, ctx| async move { open.pass(&it.hooks.chains.restore, &ctx).await.map(|()| open) }).await
    }

    /// Calls the hooks of [`ToolResolve`](crate::Place::ToolResolve).
    pub async fn resolve(&self, call: ToolCall) -> Result<ToolCall> {
        self.apply(&self.chains().resolve, call).await
    }

    /// Calls the hooks of [`ToolGate`](crate::Place::ToolGate).
    pub async fn gate(&self, calls: impl IntoIterator<Item = ToolCall>) -> Result<Batch> {
        let calls = calls.into_iter().enumerate();
        let mut batch = Batch(calls.map(|(position, call)| GatedCall::new(position, call, None)).collect());
        self.in_run(|it, ctx| async move {
            batch.pass_gates(it.hooks.chains.gates.iter(), &ctx, Asks::of_test(&ctx)).await?;
            Ok(batch)
        })
        .await
    }

    /// Calls the layers of [`ToolCall`](crate::Place::ToolCall) around a function that stands in for the tool.
    pub async fn tool_call(
        &self,
        arguments: Value,
        tool: impl Fn(&Value) -> Result<ToolOutput> + Send + Sync + 'static,
    ) -> Result<ToolOutput> {
        self.call(&self.installed.hooks.tool_call, arguments, tool).await
    }

    /// Calls the hooks of [`ToolResult`](crate::Place::ToolResult).
    pub async fn result(&self, mut result: CallResult) -> Result<CallResult> {
        self.in_run(|it, ctx| async move { result.pass(it.hooks.chains.results.iter(), &ctx).await.map(|()| result) })
            .await
    }

    /// Calls the hooks of [`SteerSkip`](crate::Place::SteerSkip).
    pub async fn skip(&self, calls: impl IntoIterator<Item = ToolCall>) -> Result<()> {
        self.apply(&self.chains().skip, calls.into_iter().collect()).await.map(drop)
    }

    /// Calls the hooks of [`TurnStop`](crate::Place::TurnStop). Returns `true` if a hook ends the loop.
    pub async fn stop(&self, mut end: TurnEnd) -> Result<bool> {
        self.in_run(|it, ctx| async move { Ok(it.hooks.chains.stop.pass(&mut end, &ctx).await?.is_break()) }).await
    }

    /// Calls the hooks of [`RunEnd`](crate::Place::RunEnd). Returns the messages that the hooks added.
    pub async fn end(&self) -> Result<Vec<Message>> {
        self.apply(&self.chains().end, Vec::new()).await
    }

    /// Calls the layers of [`AgentRun`](crate::Place::AgentRun) around a function that stands in for the
    /// agent.
    pub async fn agent_run(
        &self,
        input: AgentInput,
        agent: impl Fn(&AgentInput) -> Result<AgentOutput> + Send + Sync + 'static,
    ) -> Result<AgentOutput> {
        self.call(&self.installed.hooks.agent_run, input, agent).await
    }

    fn chains(&self) -> &Chains {
        &self.installed.hooks.chains
    }

    /// Passes a value through hooks in a new run, and returns the value.
    async fn apply<T: Send + 'static>(&self, hooks: &Filters<T>, mut value: T) -> Result<T> {
        let hooks = hooks.clone();
        self.in_run(|_, ctx| async move {
            hooks.apply(&mut value, &ctx).await?;
            Ok(value)
        })
        .await
    }

    /// Calls layers around a function in a new run.
    async fn call<O: Op>(
        &self,
        layers: &Stack<O>,
        input: O::In,
        work: impl Fn(&O::In) -> Result<O::Out> + Send + Sync + 'static,
    ) -> Result<O::Out> {
        let layers = layers.clone();
        self.in_run(|_, ctx| async move {
            layers.call_with(&input, &ctx, &work, |work, input, _| Box::pin(ready(work(input)))).await
        })
        .await
    }

    /// Executes a closure in a run that has the state of an agent's run.
    async fn in_run<T: Send + 'static, F: Future<Output = Result<T>> + Send>(
        &self,
        work: impl FnOnce(Arc<Installed>, RunContext) -> F + Send + 'static,
    ) -> Result<T> {
        let work = Mutex::new(Some(work));
        let installed = Arc::clone(&self.installed);
        // The value is stored here instead of in the run's output, because some values cannot be serialized.
        let output = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&output);
        let run = runnable_fn("hook_test", move |(): (), ctx: RunContext| {
            let installed = Arc::clone(&installed);
            let kept = Arc::clone(&kept);
            let work = work.lock().take();
            async move {
                let work = work.ok_or_else(|| Error::new("a hook test allows only one attempt"))?;
                let value = work(installed, ctx).await?;
                *kept.lock() = Some(value);
                Ok(())
            }
        });
        let turn = self.turn;
        let of_run = [Arc::clone(&self.installed)];
        let own = Arc::new(OwnHooks::of_values(self.values.clone()));
        let prepare = move |ctx: &RunContext| {
            LoopState::prepare(ctx, Arc::clone(&own))?;
            if let Some(state) = LoopState::of(ctx) {
                state.session.set_turn(turn);
                state.compacting.begin(&of_run);
            }
            Ok(())
        };
        run.run(()).own_extension(self.session.clone()).middleware(prepare).await?;
        let value = output.lock().take();
        value.ok_or_else(|| Error::new("the run of the hook test ended without executing its work"))
    }
}

/// Joins the non-empty parts of a system prompt with blank lines.
pub(crate) fn join(mut texts: Vec<String>) -> String {
    texts.retain(|text| !text.trim().is_empty());
    texts.join("\n\n")
}

fn shared(messages: impl IntoIterator<Item = Message>) -> Messages {
    messages.into_iter().map(Arc::new).collect()
}
