//! How a middleware registers its hooks.

use std::any::{TypeId, type_name};
use std::fmt;
use std::future::ready;
use std::mem::take;
use std::ops::ControlFlow;
use std::sync::Arc;

use emitree_runtime::{
    Error, Filter, Filters, IntoMiddleware, Middleware, Op, Result, RunContext, Stack, StackBuilder,
};
use futures_core::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::IntoTool;
use crate::message::history::History;
use crate::model::chunks::AsyncChunkStage;
use crate::place::Chains;
use crate::place::action::{CallResult, Messages, TurnAction, TurnEnd};
use crate::place::batch::{Batch, GatedCall};
use crate::place::built::{Built, Gate, ToolSource, kinds_of};
use crate::place::compaction::Compacted;
use crate::place::filters::{
    AsyncHook, CONTINUE, Contribution, Observer, Resolver, StopCheck, SyncHook, add, resolved,
};
use crate::place::request::ModelRequest;
use crate::place::restore::OpenCall;
use crate::place::state::State;
use crate::place::values::{ReadValue, WriteValue};
use crate::{Agent, ChatModel, ChunkStage, Message, Place, Tool, ToolCall};

/// A return type for hooks and for closures that register hooks: `()` or `Result<()>`.
///
/// The methods of [`Hooks`] that register hooks return `&mut Hooks`, so a closure whose last expression calls such a
/// method does not compile. End the call with `;`:
///
/// ```
/// let polite = emitree_agent::hooks_fn("polite", |hooks| {
///     hooks.prompt(|_| Ok("Be polite.".to_owned()));
/// });
/// ```
///
/// ```compile_fail
/// let polite = emitree_agent::hooks_fn("polite", |hooks| {
///     hooks.prompt(|_| Ok("Be polite.".to_owned()))
/// });
/// ```
// The fix is part of the message, because the compiler leaves out the label and notes for `&mut Hooks`.
#[diagnostic::on_unimplemented(
    message = "the closure returns `{Self}`, but must return nothing or a `Result<()>`: end its last call with `;`",
    label = "expected `()` or `Result<()>`"
)]
pub trait HookResult {
    /// Converts the value into a `Result`.
    ///
    /// # Errors
    ///
    /// Returns the error of the hook or of the closure.
    fn into_result(self) -> Result<()>;
}

impl HookResult for () {
    fn into_result(self) -> Result<()> {
        Ok(())
    }
}

impl HookResult for Result<()> {
    fn into_result(self) -> Self {
        self
    }
}

/// The hooks of one middleware.
///
/// [`AgentMiddleware::install`](crate::AgentMiddleware::install) registers the hooks. The hooks of one middleware for
/// one place are called in the order of registration, except that layers are ordered by phase first. Hooks of several
/// middlewares are called in the order of the middlewares: first the agent's middlewares, then the middlewares of runs
/// above, then the run's own middlewares.
///
/// An async hook returns a boxed future: `hooks.on_context_async(|messages, ctx| Box::pin(async move { Ok(()) }))`.
///
/// If a hook fails or panics, the agent's run ends, unless the method that registers the hook documents another effect.
/// The history stays valid. The name of the hook, `<id>.<place>`, is added to its error as the detail `by`, unless the
/// error is a denial or a halt, or already has this detail.
pub struct Hooks {
    owner: String,
    agent_run: StackBuilder<Agent>,
    model_call: StackBuilder<ChatModel>,
    tool_call: StackBuilder<Tool>,
    values_read: StackBuilder<ReadValue>,
    values_write: StackBuilder<WriteValue>,
    chains: Chains,
    tools: Vec<Tool>,
    sources: Vec<ToolSource>,
    middlewares: Vec<Arc<dyn Middleware>>,
    /// The types of the values for which handles were requested.
    states: Vec<(TypeId, &'static str)>,
    /// The first error of a tool.
    failure: Option<Error>,
}

/// Defines a sync and an async method for a chain place. `$put` adds the filter to the list of the place.
macro_rules! chain {
    ($(#[$doc:meta])* $on:ident, $on_async:ident: $value:ty, $place:ident, |$hooks:ident, $filter:ident| $put:expr) => {
        $(#[$doc])*
        pub fn $on<Out: HookResult>(
            &mut self,
            hook: impl Fn(&mut $value, &RunContext) -> Out + Send + Sync + 'static,
        ) -> &mut Self {
            let $filter = self.sync(Place::$place, hook);
            let $hooks = &mut *self;
            $put;
            self
        }

        #[doc = concat!("The async form of [`", stringify!($on), "`](Self::", stringify!($on), ").")]
        pub fn $on_async(
            &mut self,
            hook: impl for<'a> Fn(&'a mut $value, &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
        ) -> &mut Self {
            let $filter = AsyncHook { name: self.name(Place::$place), hook };
            let $hooks = &mut *self;
            $put;
            self
        }
    };
}

impl Hooks {
    pub(crate) fn new(owner: &str) -> Self {
        Self {
            owner: owner.to_owned(),
            agent_run: Stack::builder(),
            model_call: Stack::builder(),
            tool_call: Stack::builder(),
            values_read: Stack::builder(),
            values_write: Stack::builder(),
            chains: Chains::default(),
            tools: Vec::new(),
            sources: Vec::new(),
            middlewares: Vec::new(),
            states: Vec::new(),
            failure: None,
        }
    }

    /// Returns the first error of a tool, or an error if the middleware keeps values of two types.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        let Some((first, others)) = self.states.split_first() else { return Ok(()) };
        match others.iter().find(|other| other.0 != first.0) {
            None => Ok(()),
            Some(other) => Err(Error::new(format!(
                "the middleware `{}` keeps values of two types, `{}` and `{}`: keep one struct with both",
                self.owner, first.1, other.1
            ))),
        }
    }

    pub(crate) fn build(self) -> Built {
        let [agent_run, model_call, tool_call] =
            [Place::AgentRun, Place::ModelCall, Place::ToolCall].map(|place| self.name(place));
        let [read, write] = [ReadValue::name(), WriteValue::name()].map(|op| format!("{}.{op}", self.owner));
        let model_call = self.model_call.errors_by(model_call).build();
        Built {
            owner: self.owner,
            agent_run: self.agent_run.errors_by(agent_run).build(),
            guards_replies: kinds_of(&model_call)[1],
            model_call,
            tool_call: self.tool_call.errors_by(tool_call).build(),
            values_read: self.values_read.errors_by(read).build(),
            values_write: self.values_write.errors_by(write).build(),
            chains: self.chains,
            tools: self.tools,
            sources: self.sources,
            middlewares: self.middlewares,
        }
    }

    fn gate<T: Send + 'static>(&mut self, gate: impl FnOnce(String, Filters<T>) -> Gate, filter: impl Filter<T>) {
        self.chains.gates.push(gate(self.owner.clone(), Filters::new().with(filter)));
    }

    fn name(&self, place: Place) -> String {
        format!("{}.{place}", self.owner)
    }

    fn sync<T: Send + 'static, Out: HookResult>(
        &self,
        place: Place,
        hook: impl Fn(&mut T, &RunContext) -> Out + Send + Sync + 'static,
    ) -> impl Filter<T> {
        let hook = move |value: &mut T, ctx: &RunContext| hook(value, ctx).into_result().map(|()| CONTINUE);
        SyncHook { name: self.name(place), hook }
    }

    /// Returns a handle to the value that the middleware keeps for a session. All handles of a middleware share the
    /// value.
    ///
    /// A middleware keeps only one value, because a stored session identifies values by the middleware's id alone. If a
    /// middleware requests handles of two types, [`AgentBuilder::build`](crate::AgentBuilder::build) fails. If such a
    /// middleware is bound to a run, the run fails.
    pub fn state<T: Default + Serialize + DeserializeOwned + Send + 'static>(&mut self) -> State<T> {
        self.states.push((TypeId::of::<T>(), type_name::<T>()));
        State::new(&self.owner)
    }

    /// Adds a tool to the agent. If the tool could not be made, its error is returned as an error of
    /// [`install`](crate::AgentMiddleware::install) is.
    pub fn tool(&mut self, tool: impl IntoTool) -> &mut Self {
        match tool.into_tool() {
            Ok(tool) => self.tools.push(tool),
            Err(error) => _ = self.failure.get_or_insert(error.into()),
        }
        self
    }

    /// Adds a function that is asked for further tools before each model call, and before a resumed run makes open calls,
    /// for tools that come and go. A failure of the function ends the run. If two tools of a turn have the same name, the
    /// run fails with an error that names both origins.
    pub fn tools(&mut self, ask: impl Fn(&RunContext) -> Result<Vec<Tool>> + Send + Sync + 'static) -> &mut Self {
        self.tools_async(move |ctx| Box::pin(ready(ask(ctx))))
    }

    /// The async form of [`tools`](Self::tools).
    pub fn tools_async(
        &mut self,
        ask: impl for<'a> Fn(&'a RunContext) -> BoxFuture<'a, Result<Vec<Tool>>> + Send + Sync + 'static,
    ) -> &mut Self {
        self.sources.push(ToolSource::new(format!("{}.tools", self.owner), ask));
        self
    }

    /// Binds a [`Middleware`] to each run of the agent: a function, a built-in or a stack. `explain()` lists its layers
    /// under the id of this middleware.
    pub fn middleware<Sort>(&mut self, middleware: impl IntoMiddleware<Sort>) -> &mut Self {
        self.middlewares.push(Arc::new(middleware.into_middleware()));
        self
    }

    /// Adds layers around the agent's run.
    pub fn agent_run(&mut self, build: impl FnOnce(StackBuilder<Agent>) -> StackBuilder<Agent>) -> &mut Self {
        self.agent_run = build(std::mem::replace(&mut self.agent_run, Stack::builder()));
        self
    }

    /// Adds layers around each model call, from its request to its response. A layer that calls the model again makes
    /// another attempt in the same run.
    ///
    /// # Replies that a layer returns
    ///
    /// A reply that reaches a listener, the history or the caller of an agent has passed the agent's stages and its
    /// guards at this place, no matter which layer answered:
    ///
    /// - A reply that the layers of a model call return is compared with the replies that have left the stages. If it
    ///   is not one of them, it passes the stages as a whole. If the guards have not let it pass, the `check_output` of
    ///   each guard of the call is called with it, and a denial is the result of the call. A reply that nobody changed
    ///   passes once. Listeners that change pieces or the reply count as well.
    /// - A reply that a layer of `Phase::Observe` or a listener of the run's `success` sets passes the agent's stages
    ///   and guards before it enters the history.
    /// - If the agent has stages or guards at this place, the run of a model below the run of its model fails, unless a
    ///   tool or another agent is between them, or a stage awaits it. An alternative ([`ChatModel::or`]) is asked in
    ///   the run itself.
    ///
    /// Tokens of a stream have passed the stages, but reach listeners before the guards have checked the reply.
    pub fn model_call(&mut self, build: impl FnOnce(StackBuilder<ChatModel>) -> StackBuilder<ChatModel>) -> &mut Self {
        self.model_call = build(std::mem::replace(&mut self.model_call, Stack::builder()));
        self
    }

    /// Adds layers around each tool call, from its arguments to its output. The id of the call is not part of the
    /// arguments: it is the run's own extension [`CallId`](crate::CallId). The error of a layer becomes the result of
    /// the call, as an error of the tool does.
    ///
    /// The call has begun once its function is called, or a run below it starts. The work of a layer before it calls
    /// `next` does not count: if the run then ends, the call is "not executed", and a resume may enter the layer again. A
    /// layer whose effect must not happen twice starts a run for it.
    pub fn tool_call(&mut self, build: impl FnOnce(StackBuilder<Tool>) -> StackBuilder<Tool>) -> &mut Self {
        self.tool_call = build(std::mem::replace(&mut self.tool_call, Stack::builder()));
        self
    }

    /// Adds layers around each read of a value from the agent's store ([`Values::read`](crate::values::Values::read)),
    /// from a key to its value. This is not a step of the loop, so it has no [`Place`], and the builder's layers
    /// replace no others. `explain()` lists the layers as `<id>.values.read`.
    ///
    /// A layer that answers without calling `next`, such as a cache, bypasses the guards inside, unless it passes the
    /// value to [`Next::check_output`](emitree_runtime::Next::check_output).
    pub fn values_read(&mut self, build: impl FnOnce(StackBuilder<ReadValue>) -> StackBuilder<ReadValue>) -> &mut Self {
        self.values_read = build(std::mem::replace(&mut self.values_read, Stack::builder()));
        self
    }

    /// Adds layers around each write and each removal of a value in the agent's store
    /// ([`Values::write`](crate::values::Values::write)), as [`values_read`](Self::values_read) does around reads. The
    /// store gets the change that the layers pass on. A layer that returns
    /// [`Written::Skipped`](crate::values::Written::Skipped) without calling `next` drops the change, which is no
    /// error.
    ///
    /// ```
    /// use emitree_agent::hooks_fn;
    /// use emitree_agent::values::{WriteValue, Written};
    /// use emitree_runtime::Next;
    ///
    /// let no_drafts = hooks_fn("no_drafts", |hooks| {
    ///     hooks.values_write(|stack| {
    ///         stack.layer_fn("no_drafts", |change, _, next: Next<'_, WriteValue>| {
    ///             let is_draft = change.key.segments()[0] == "draft";
    ///             Box::pin(async move { if is_draft { Ok(Written::Skipped) } else { next.run(change).await } })
    ///         })
    ///     });
    /// });
    /// ```
    pub fn values_write(
        &mut self,
        build: impl FnOnce(StackBuilder<WriteValue>) -> StackBuilder<WriteValue>,
    ) -> &mut Self {
        self.values_write = build(std::mem::replace(&mut self.values_write, Stack::builder()));
        self
    }

    /// Adds a hook that is called once for each session and process: before the first turn of the first run that uses
    /// the session in this process. So it is called when a conversation begins, and when a stored session is used again.
    /// A run [without a session](crate::AgentRun::session) has a new one.
    ///
    /// If the hook fails or panics, the error is logged, the state of the middleware is as it was before its hooks of
    /// this place, and the run goes on. If the run is dropped meanwhile, the next run calls the hooks of the middleware
    /// again. Another run that uses the session at the same time does not wait for the hook.
    ///
    /// ```
    /// use emitree_agent::hooks_fn;
    ///
    /// let visits = hooks_fn("visits", |hooks| {
    ///     let visits = hooks.state::<u32>();
    ///     hooks.on_start(move |ctx| visits.with(ctx, |visits| *visits += 1));
    /// });
    /// ```
    pub fn on_start<Out: HookResult>(
        &mut self,
        hook: impl Fn(&RunContext) -> Out + Send + Sync + 'static,
    ) -> &mut Self {
        let filter = self.sync(Place::AgentStart, move |(): &mut (), ctx| hook(ctx));
        add(&mut self.chains.start, filter);
        self
    }

    /// The async form of [`on_start`](Self::on_start).
    pub fn on_start_async(
        &mut self,
        hook: impl for<'a> Fn(&'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
    ) -> &mut Self {
        let hook = AsyncHook { name: self.name(Place::AgentStart), hook: by_context(hook) };
        add(&mut self.chains.start, hook);
        self
    }

    /// Adds a hook for the messages that [`Session::send`](crate::Session::send) sends to this middleware, which are `T`s
    /// as JSON. It is called before a model call, once for each message, in the order in which they were sent.
    ///
    /// If the message is no `T`, or if the hook fails or panics, the error is logged, the event `message_dropped`
    /// ([`MessageDropped`](crate::steering::MessageDropped)) reports it, the state of the middleware is as it was before
    /// the message, and the run goes on. If the middleware has several of these hooks, each is called with every
    /// message; for messages of several types, use an enum. A hook of the builder replaces no others at this place: it
    /// receives the messages to `builder`.
    ///
    /// ```
    /// use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session, hooks_fn};
    /// use serde::Deserialize;
    /// use serde_json::json;
    ///
    /// #[derive(Deserialize)]
    /// struct Opened {
    ///     page: u32,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let editor = hooks_fn("editor", |hooks| {
    ///     let page = hooks.state::<u32>();
    ///     let now = page.clone();
    ///     hooks.on_message(move |opened: Opened, ctx| now.with(ctx, |now| *now = opened.page));
    ///     hooks.prompt(move |ctx| page.with(ctx, |page| format!("The user reads page {page}.")));
    /// });
    /// let script = ScriptedModel::new("test").text("A fine page.");
    /// let agent = Agent::builder("reader", ChatModel::new(script.clone())?).with(editor).build()?;
    /// let session = Session::new();
    /// session.send("editor", json!({"page": 7}))?;
    /// agent.ask("What do you think?").session(&session).await?;
    /// assert_eq!(script.requests()[0].system.as_deref(), Some("The user reads page 7."));
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_message<T: DeserializeOwned + 'static, Out: HookResult>(
        &mut self,
        hook: impl Fn(T, &RunContext) -> Out + Send + Sync + 'static,
    ) -> &mut Self {
        let hook = move |message: &mut Value, ctx: &RunContext| hook(read(message)?, ctx).into_result();
        let filter = self.sync(Place::AgentMessage, hook);
        add(&mut self.chains.message, filter);
        self
    }

    /// The async form of [`on_message`](Self::on_message).
    pub fn on_message_async<T: DeserializeOwned + 'static>(
        &mut self,
        hook: impl for<'a> Fn(T, &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
    ) -> &mut Self {
        let hook = AsyncHook { name: self.name(Place::AgentMessage), hook: by_message(hook) };
        add(&mut self.chains.message, hook);
        self
    }

    chain! {
        /// Adds a hook that changes or removes the messages of [`Session::steer`](crate::Session::steer) and its
        /// siblings that are about to enter the history. If the hook halts, these messages are dropped, with a warning
        /// in [`AgentOutput::warnings`](crate::AgentOutput::warnings), and the run goes on. After any other failure,
        /// the messages wait for the next run.
        on_inject, on_inject_async: Vec<Message>, SteerInject, |hooks, filter| add(&mut hooks.chains.inject, filter)
    }

    chain! {
        /// Adds a hook that changes the history before each model call. The changes stay in the session. If another run
        /// of the session rewrites the history at the same time, all hooks of this place are called again with the new
        /// history.
        on_state, on_state_async: History, ModelState, |hooks, filter| add(&mut hooks.chains.state, filter)
    }

    chain! {
        /// Adds a hook that is called before a middleware of the agent replaces older messages of the history, with
        /// these messages. The middleware reads them as the hooks leave them. If the hook returns a halt, the messages
        /// stay in the history, no later hook is called, and the run continues. See
        /// [`Compaction`](crate::hook::Compaction).
        on_compact, on_compact_async: Messages, ContextCompact, |hooks, filter| add(&mut hooks.chains.compact, filter)
    }

    /// Adds a hook that is called after a middleware of the agent has replaced older messages of the history.
    pub fn on_compacted<Out: HookResult>(
        &mut self,
        hook: impl Fn(&Compacted, &RunContext) -> Out + Send + Sync + 'static,
    ) -> &mut Self {
        let filter = self.sync(Place::ContextCompact, move |compacted: &mut Compacted, ctx| hook(compacted, ctx));
        add(&mut self.chains.compacted, filter);
        self
    }

    /// The async form of [`on_compacted`](Self::on_compacted).
    pub fn on_compacted_async(
        &mut self,
        hook: impl for<'a> Fn(&'a Compacted, &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
    ) -> &mut Self {
        let hook = AsyncHook { name: self.name(Place::ContextCompact), hook: by_ref(hook) };
        add(&mut self.chains.compacted, hook);
        self
    }

    chain! {
        /// Adds a hook that changes the messages of one model call, but not the history. The system prompt is not one
        /// of the messages.
        on_context, on_context_async: Messages, ModelContext, |hooks, filter| add(&mut hooks.chains.context, filter)
    }

    chain! {
        /// Adds a hook that changes the system prompt of one model call, after its parts have been joined.
        on_prompt, on_prompt_async: String, ModelPrompt, |hooks, filter| add(&mut hooks.chains.prompt, filter)
    }

    chain! {
        /// Adds a hook that changes the whole request of one model call, and may choose another model for it. See
        /// [`ModelRequest`]. It is called after the hook of `model.wire`.
        on_request, on_request_async: ModelRequest, ModelRequest, |hooks, filter| add(&mut hooks.chains.request, filter)
    }

    chain! {
        /// Adds a hook that decides how a turn continues after a response. See [`TurnAction`].
        ///
        /// If the hook fails, panics or returns an interrupt, the run ends. The history then keeps the response as the
        /// hooks before left it, with "not executed" as the result of each call. If the hook returns a denial or a
        /// halt, the history keeps "(withheld by \<name\>)" in place of the response.
        on_action, on_action_async: TurnAction, TurnAction,
        |hooks, filter| hooks.chains.action.push(Filters::new().with(filter))
    }

    chain! {
        /// Adds a hook that changes the result of a call. When all calls of a turn have settled, the hook is called for
        /// each call, in call order. It is also called for calls that were answered, skipped or denied, and for calls
        /// that failed, but not for interrupted calls.
        ///
        /// If the hook fails or panics, its error becomes the result of the call, and later hooks receive that result.
        /// A halt, an abort, an interrupt, a fatal error or a request for a retry ends the run instead.
        on_result, on_result_async: CallResult, ToolResult,
        |hooks, filter| hooks.chains.results.push(Filters::new().with(filter))
    }

    chain! {
        /// Adds a hook that may refuse a call which an earlier run has left open, before a
        /// [resumed](crate::Agent::resume) run makes it again. See [`OpenCall`]. If the hook fails or panics, the call
        /// is refused. A halt, an abort, a request for a retry or a fatal error ends the run.
        on_restore, on_restore_async: OpenCall, ToolRestore, |hooks, filter| add(&mut hooks.chains.restore, filter)
    }

    chain! {
        /// Adds a hook that is called when the run is about to end. If the hook adds messages, another round begins; an
        /// attempt that needs more than 100 additional rounds fails.
        on_end, on_end_async: Vec<Message>, RunEnd, |hooks, filter| add(&mut hooks.chains.end, filter)
    }

    /// Adds a part to the system prompt of each model call. Parts are joined with blank lines, and empty parts are left
    /// out.
    pub fn prompt(&mut self, contribute: impl Fn(&RunContext) -> Result<String> + Send + Sync + 'static) -> &mut Self {
        let append = move |texts: &mut Vec<String>, ctx: &RunContext| contribute(ctx).map(|text| texts.push(text));
        let filter = self.sync(Place::ModelPrompt, append);
        add(&mut self.chains.contributions, filter);
        self
    }

    /// The async form of [`prompt`](Self::prompt).
    pub fn prompt_async(
        &mut self,
        contribute: impl for<'a> Fn(&'a RunContext) -> BoxFuture<'a, Result<String>> + Send + Sync + 'static,
    ) -> &mut Self {
        let filter = Contribution { name: self.name(Place::ModelPrompt), contribute };
        add(&mut self.chains.contributions, filter);
        self
    }

    chain! {
        /// Sets the hook that changes the final messages of a model call. The first of these messages is the system
        /// prompt, if there is one. If several middlewares set this hook, only the hook of the last middleware is
        /// called.
        on_wire, on_wire_async: Messages, ModelWire, |hooks, filter| hooks.chains.wire = Filters::new().with(filter)
    }

    /// Adds a stage for the pieces of each reply (see [`ModelRun::chunks`](crate::ModelRun::chunks)). `make` is called
    /// for each attempt.
    pub fn chunks<S: ChunkStage + 'static>(&mut self, make: impl Fn() -> S + Send + Sync + 'static) -> &mut Self {
        self.chains.chunks = take(&mut self.chains.chunks).with(make).named(&self.name(Place::ModelChunk));
        self
    }

    /// Adds a stage that may await, as [`chunks`](Self::chunks) adds a stage. Sync and async stages are called in the
    /// order in which they were added.
    pub fn chunks_async<S: AsyncChunkStage + 'static>(
        &mut self,
        make: impl Fn() -> S + Send + Sync + 'static,
    ) -> &mut Self {
        self.chains.chunks = take(&mut self.chains.chunks).with_async(make).named(&self.name(Place::ModelChunk));
        self
    }

    /// Adds a hook of `model.request` that is called after the hooks of all middlewares. It writes the request in another
    /// form, for example the tools as text for a model without tool calls. Tools that it removes count as offered.
    pub fn encode(
        &mut self,
        hook: impl for<'a> Fn(&'a mut ModelRequest, &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
    ) -> &mut Self {
        let filter = AsyncHook { name: self.name(Place::ModelRequest), hook };
        add(&mut self.chains.writes, filter);
        self
    }

    /// Adds a stage of `model.chunk` before the stages of all middlewares. It reads a provider's reply in the form that
    /// [`encode`](Self::encode) asked for. Replies that layers return, and answers of tools, do not pass it.
    pub fn decode<S: AsyncChunkStage + 'static>(&mut self, make: impl Fn() -> S + Send + Sync + 'static) {
        self.chains.reads = take(&mut self.chains.reads).with_async(make).named(&self.name(Place::ModelChunk));
    }

    /// Adds a hook that may replace a tool call by returning another call. If the hook returns a call, later hooks are
    /// not called. The id of the call stays the same, and the history keeps the call as the model wrote it.
    pub fn on_resolve(
        &mut self,
        hook: impl Fn(&ToolCall, &RunContext) -> Result<Option<ToolCall>> + Send + Sync + 'static,
    ) -> &mut Self {
        let name = self.name(Place::ToolResolve);
        // `Break` ends the chain, and names this hook as the reason.
        let by = name.clone();
        let hook = move |call: &mut ToolCall, ctx: &RunContext| {
            let other = hook(call, ctx)?;
            Ok(resolved(call, other, &by))
        };
        add(&mut self.chains.resolve, SyncHook { name, hook });
        self
    }

    /// The async form of [`on_resolve`](Self::on_resolve).
    pub fn on_resolve_async(
        &mut self,
        hook: impl for<'a> Fn(&'a ToolCall, &'a RunContext) -> BoxFuture<'a, Result<Option<ToolCall>>>
        + Send
        + Sync
        + 'static,
    ) -> &mut Self {
        let filter = Resolver { name: self.name(Place::ToolResolve), hook };
        add(&mut self.chains.resolve, filter);
        self
    }

    chain! {
        /// Adds a hook that decides on all calls of a turn together, and may [change](GatedCall::call) them. If the
        /// hook fails or panics, all open calls are denied; if it returns an interrupt, all open calls are interrupted.
        /// A halt, an abort, a fatal error or a request for a retry ends the run.
        ///
        /// [`Batch::open`] leaves out calls of unknown tools and calls with invalid arguments. The model receives an
        /// error for each of them.
        on_gate, on_gate_async: Batch, ToolGate, |hooks, filter| hooks.gate(Gate::Batch, filter)
    }

    chain! {
        /// Adds a hook that decides on each [open](Batch::open) call. If the hook fails or panics, this call is denied;
        /// if it returns an interrupt, this call is interrupted. A halt, an abort, a fatal error or a request for a
        /// retry ends the run.
        on_gate_each, on_gate_each_async: GatedCall, ToolGate, |hooks, filter| hooks.gate(Gate::Each, filter)
    }

    /// Adds a hook that receives the calls of a turn that were not executed because of
    /// [`Session::interject`](crate::Session::interject), in call order, after all results have passed through
    /// `tool.result`.
    pub fn on_skip<Out: HookResult>(
        &mut self,
        hook: impl Fn(&[ToolCall], &RunContext) -> Out + Send + Sync + 'static,
    ) -> &mut Self {
        let filter = self.sync(Place::SteerSkip, move |calls: &mut Vec<ToolCall>, ctx| hook(calls, ctx));
        add(&mut self.chains.skip, filter);
        self
    }

    /// The async form of [`on_skip`](Self::on_skip).
    pub fn on_skip_async(
        &mut self,
        hook: impl for<'a> Fn(&'a [ToolCall], &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
    ) -> &mut Self {
        let filter = Observer { name: self.name(Place::SteerSkip), hook };
        add(&mut self.chains.skip, filter);
        self
    }

    /// Adds a hook that ends the loop after a turn by returning `true`. Later hooks of this place are then not called.
    /// Hooks of [`on_end`](Self::on_end) are still called, and may start another round.
    pub fn on_stop(
        &mut self,
        hook: impl Fn(&TurnEnd, &RunContext) -> Result<bool> + Send + Sync + 'static,
    ) -> &mut Self {
        let name = self.name(Place::TurnStop);
        let by = name.clone();
        let hook = move |end: &mut TurnEnd, ctx: &RunContext| {
            Ok(if hook(end, ctx)? { ControlFlow::Break(by.clone()) } else { CONTINUE })
        };
        add(&mut self.chains.stop, SyncHook { name, hook });
        self
    }

    /// The async form of [`on_stop`](Self::on_stop).
    pub fn on_stop_async(
        &mut self,
        hook: impl for<'a> Fn(&'a TurnEnd, &'a RunContext) -> BoxFuture<'a, Result<bool>> + Send + Sync + 'static,
    ) -> &mut Self {
        let filter = StopCheck { name: self.name(Place::TurnStop), hook };
        add(&mut self.chains.stop, filter);
        self
    }
}

/// Makes an async hook that reads its value from one that may change it.
fn by_ref<T, F>(hook: F) -> impl for<'a> Fn(&'a mut T, &'a RunContext) -> BoxFuture<'a, Result<()>>
where
    F: for<'a> Fn(&'a T, &'a RunContext) -> BoxFuture<'a, Result<()>>,
{
    move |value, ctx| hook(value, ctx)
}

/// Makes an async hook from one that receives no value.
fn by_context<F>(hook: F) -> impl for<'a> Fn(&'a mut (), &'a RunContext) -> BoxFuture<'a, Result<()>>
where
    F: for<'a> Fn(&'a RunContext) -> BoxFuture<'a, Result<()>>,
{
    move |(), ctx| hook(ctx)
}

/// Makes an async hook from one that reads its message.
fn by_message<T, F>(hook: F) -> impl for<'a> Fn(&'a mut Value, &'a RunContext) -> BoxFuture<'a, Result<()>>
where
    T: DeserializeOwned + 'static,
    F: for<'a> Fn(T, &'a RunContext) -> BoxFuture<'a, Result<()>>,
{
    move |message, ctx| match read(message) {
        Ok(message) => hook(message, ctx),
        Err(error) => Box::pin(ready(Err(error))),
    }
}

fn read<T: DeserializeOwned>(message: &Value) -> Result<T> {
    serde_path_to_error::deserialize(message)
        .map_err(|error| Error::new(format!("the message is no `{}`: {error}", type_name::<T>())))
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("owner", &self.owner)
            .field("chains", &Place::ALL.iter().filter(|place| self.chains.is_used(**place)).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
