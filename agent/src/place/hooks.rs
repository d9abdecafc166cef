//! The hooks of a middleware, one list per place.

use std::fmt;
use std::mem::take;
use std::ops::ControlFlow;

use emitree_runtime::{Filter, Filters, Result, RunContext, Stack, StackBuilder};
use futures_core::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::message::history::History;
use crate::place::action::{CallResult, Messages, TurnAction, TurnEnd};
use crate::place::batch::{Batch, GatedCall};
use crate::place::filters::{AsyncHook, CONTINUE, Contribution, Resolver, StopCheck, SyncHook, add, resolved};
use crate::place::state::State;
use crate::{Agent, ChatModel, ChunkStage, ChunkStages, Message, Place, Tool, ToolCall};

/// The result of a hook: nothing, or a `Result`.
pub trait HookResult {
    /// Converts the value into a `Result`.
    ///
    /// # Errors
    ///
    /// Returns the hook's error.
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
/// [`AgentMiddleware::install`](crate::AgentMiddleware::install) registers them, once. Hooks of one place are called in the
/// order in which they were registered; hooks of several middlewares in the order of the middlewares: the agent's first,
/// then those bound by runs above, then the run's.
///
/// An async hook returns a boxed future: `hooks.on_context_async(|messages, ctx| Box::pin(async move { Ok(()) }))`.
///
/// The error of a hook ends the agent's run, if the method does not say otherwise. It has the name of the hook,
/// `<id>.<place>`, as its context value `by`. The history stays valid. A hook that panics ends the run as well.
pub struct Hooks {
    owner: String,
    agent_run: StackBuilder<Agent>,
    model_call: StackBuilder<ChatModel>,
    tool_call: StackBuilder<Tool>,
    chains: Chains,
}

/// The chain places of a middleware.
#[derive(Default)]
pub(crate) struct Chains {
    pub(crate) state: Filters<History>,
    pub(crate) context: Filters<Messages>,
    /// Each appends one contribution.
    pub(crate) contributions: Filters<Vec<String>>,
    pub(crate) prompt: Filters<String>,
    /// At most one hook: a slot.
    pub(crate) wire: Filters<Messages>,
    pub(crate) chunks: ChunkStages,
    pub(crate) action: Filters<TurnAction>,
    /// Breaks at the first answer.
    pub(crate) resolve: Filters<ToolCall>,
    pub(crate) gates: Vec<Gate>,
    /// One list for each hook: after a failure the others are still called.
    pub(crate) results: Vec<Filters<CallResult>>,
    /// Breaks at the first yes.
    pub(crate) stop: Filters<TurnEnd>,
    pub(crate) end: Filters<Vec<Message>>,
}

/// A hook at the gate, for all calls together or for each that is open, and its name.
pub(crate) enum Gate {
    Batch(String, Filters<Batch>),
    Each(String, Filters<GatedCall>),
}

/// The hooks of a middleware, built: the layers of its onion places, and its chains.
pub(crate) struct Built {
    pub(crate) owner: String,
    pub(crate) agent_run: Stack<Agent>,
    pub(crate) model_call: Stack<ChatModel>,
    pub(crate) tool_call: Stack<Tool>,
    pub(crate) chains: Chains,
}

/// Defines a sync and an async method for a chain place.
macro_rules! chain {
    ($(#[$doc:meta])* $on:ident, $on_async:ident, $field:ident: $value:ty, $place:ident) => {
        $(#[$doc])*
        pub fn $on<Out: HookResult>(
            &mut self,
            hook: impl Fn(&mut $value, &RunContext) -> Out + Send + Sync + 'static,
        ) -> &mut Self {
            let filter = self.sync(Place::$place, hook);
            add(&mut self.chains.$field, filter);
            self
        }

        #[doc = concat!("The async form of [`", stringify!($on), "`](Self::", stringify!($on), ").")]
        pub fn $on_async(
            &mut self,
            hook: impl for<'a> Fn(&'a mut $value, &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
        ) -> &mut Self {
            let filter = AsyncHook { name: self.name(Place::$place), hook };
            add(&mut self.chains.$field, filter);
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
            chains: Chains::default(),
        }
    }

    pub(crate) fn build(self) -> Built {
        Built {
            owner: self.owner,
            agent_run: self.agent_run.build(),
            model_call: self.model_call.build(),
            tool_call: self.tool_call.build(),
            chains: self.chains,
        }
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

    /// Returns a handle to a value that the middleware keeps for a session.
    pub fn state<T: Default + Serialize + DeserializeOwned + Send + 'static>(&mut self) -> State<T> {
        State::new(&self.owner)
    }

    /// Adds layers around the agent's run.
    pub fn agent_run(&mut self, build: impl FnOnce(StackBuilder<Agent>) -> StackBuilder<Agent>) -> &mut Self {
        self.agent_run = build(std::mem::replace(&mut self.agent_run, Stack::builder()));
        self
    }

    /// Adds layers around each model call: request in, response out. Attempts are inside of one run.
    pub fn model_call(&mut self, build: impl FnOnce(StackBuilder<ChatModel>) -> StackBuilder<ChatModel>) -> &mut Self {
        self.model_call = build(std::mem::replace(&mut self.model_call, Stack::builder()));
        self
    }

    /// Adds layers around each tool call: arguments in, output out. They see the arguments without the id of the call,
    /// which is the run's own extension [`CallId`](crate::CallId).
    pub fn tool_call(&mut self, build: impl FnOnce(StackBuilder<Tool>) -> StackBuilder<Tool>) -> &mut Self {
        self.tool_call = build(std::mem::replace(&mut self.tool_call, Stack::builder()));
        self
    }

    chain! {
        /// Changes the history before each model call, for good. If another run of the session rewrites the history
        /// meanwhile, all hooks of this place are called again with the new history.
        on_state, on_state_async, state: History, ModelState
    }

    chain! {
        /// Changes the messages of this model call. The history keeps what it has. There is no system message among them.
        on_context, on_context_async, context: Messages, ModelContext
    }

    chain! {
        /// Changes the system prompt of this model call, after all contributions.
        on_prompt, on_prompt_async, prompt: String, ModelPrompt
    }

    chain! {
        /// Decides what follows from a response. See [`TurnAction`].
        on_action, on_action_async, action: TurnAction, TurnAction
    }

    /// Changes the result of a call. Called for each call in call order, when all have settled; also for calls that were
    /// answered, skipped, denied or failed, not for interrupted ones.
    ///
    /// If the hook fails, its error becomes the result, and later hooks see that; a halt, an abort or a request for a retry
    /// ends the run.
    pub fn on_result<Out: HookResult>(
        &mut self,
        hook: impl Fn(&mut CallResult, &RunContext) -> Out + Send + Sync + 'static,
    ) -> &mut Self {
        // A list for each hook: a failure ends a list, and later hooks have to see it as the result.
        let filters = Filters::new().with(self.sync(Place::ToolResult, hook));
        self.chains.results.push(filters);
        self
    }

    /// The async form of [`on_result`](Self::on_result).
    pub fn on_result_async(
        &mut self,
        hook: impl for<'a> Fn(&'a mut CallResult, &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
    ) -> &mut Self {
        let filters = Filters::new().with(AsyncHook { name: self.name(Place::ToolResult), hook });
        self.chains.results.push(filters);
        self
    }

    chain! {
        /// Adds messages to go on with when the run is about to end. With any, another round begins; at most 100 do.
        on_end, on_end_async, end: Vec<Message>, RunEnd
    }

    /// Contributes to the system prompt of each model call. Contributions are joined by a blank line; an empty one is left
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

    /// Sets the hook that sees the final messages, the system message included as the first. It replaces an earlier one:
    /// of several middlewares, the last one's is called.
    pub fn on_wire<Out: HookResult>(
        &mut self,
        hook: impl Fn(&mut Messages, &RunContext) -> Out + Send + Sync + 'static,
    ) -> &mut Self {
        self.chains.wire = Filters::new().with(self.sync(Place::ModelWire, hook));
        self
    }

    /// The async form of [`on_wire`](Self::on_wire).
    pub fn on_wire_async(
        &mut self,
        hook: impl for<'a> Fn(&'a mut Messages, &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
    ) -> &mut Self {
        let hook = AsyncHook { name: self.name(Place::ModelWire), hook };
        self.chains.wire = Filters::new().with(hook);
        self
    }

    /// Adds a stage that the pieces of each reply pass: see [`ChunkStages`].
    pub fn chunks<S: ChunkStage + 'static>(&mut self, make: impl Fn() -> S + Send + Sync + 'static) -> &mut Self {
        self.chains.chunks = take(&mut self.chains.chunks).with(make);
        self
    }

    /// Turns a tool call into another one. The first hook that answers wins; the id stays as it is.
    pub fn on_resolve(
        &mut self,
        hook: impl Fn(&ToolCall, &RunContext) -> Result<Option<ToolCall>> + Send + Sync + 'static,
    ) -> &mut Self {
        let name = self.name(Place::ToolResolve);
        // The break that ends the chain needs a reason; the name of the hook is one.
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

    /// Decides about all calls of a turn together. If the hook fails, all calls without a verdict are denied, and with an
    /// interrupt they are interrupted; a halt, an abort or a request for a retry ends the run.
    ///
    /// [`Batch::open`] leaves out a call of an unknown tool, and a call whose arguments do not fit: the model receives the
    /// error instead.
    pub fn on_gate<Out: HookResult>(
        &mut self,
        hook: impl Fn(&mut Batch, &RunContext) -> Out + Send + Sync + 'static,
    ) -> &mut Self {
        let filters = Filters::new().with(self.sync(Place::ToolGate, hook));
        self.chains.gates.push(Gate::Batch(self.owner.clone(), filters));
        self
    }

    /// The async form of [`on_gate`](Self::on_gate).
    pub fn on_gate_async(
        &mut self,
        hook: impl for<'a> Fn(&'a mut Batch, &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
    ) -> &mut Self {
        let filters = Filters::new().with(AsyncHook { name: self.name(Place::ToolGate), hook });
        self.chains.gates.push(Gate::Batch(self.owner.clone(), filters));
        self
    }

    /// Decides about each call that has no verdict yet. If the hook fails, this call is denied, and with an interrupt it is
    /// interrupted; a halt, an abort or a request for a retry ends the run.
    pub fn on_gate_each<Out: HookResult>(
        &mut self,
        hook: impl Fn(&mut GatedCall, &RunContext) -> Out + Send + Sync + 'static,
    ) -> &mut Self {
        let filters = Filters::new().with(self.sync(Place::ToolGate, hook));
        self.chains.gates.push(Gate::Each(self.owner.clone(), filters));
        self
    }

    /// The async form of [`on_gate_each`](Self::on_gate_each).
    pub fn on_gate_each_async(
        &mut self,
        hook: impl for<'a> Fn(&'a mut GatedCall, &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
    ) -> &mut Self {
        let filters = Filters::new().with(AsyncHook { name: self.name(Place::ToolGate), hook });
        self.chains.gates.push(Gate::Each(self.owner.clone(), filters));
        self
    }

    /// Ends the run after a turn if the hook returns `true`. The rest is not asked then.
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

impl Built {
    /// Returns the names of the places with hooks, `<id>.<place>`, in the order of a turn.
    pub(crate) fn names(&self) -> Vec<String> {
        let is_used = |place: &Place| match place {
            Place::AgentRun => !self.agent_run.is_empty(),
            Place::ModelCall => !self.model_call.is_empty(),
            Place::ToolCall => !self.tool_call.is_empty(),
            chain => self.chains.is_used(*chain),
        };
        Place::ALL.iter().filter(|place| is_used(place)).map(|place| format!("{}.{place}", self.owner)).collect()
    }
}

impl Chains {
    /// Returns `true` if a chain place has hooks. The match is exhaustive, so that no place is forgotten in explanations.
    fn is_used(&self, place: Place) -> bool {
        !match place {
            Place::ModelState => self.state.is_empty(),
            Place::ModelContext => self.context.is_empty(),
            Place::ModelPrompt => self.contributions.is_empty() && self.prompt.is_empty(),
            Place::ModelWire => self.wire.is_empty(),
            Place::ModelChunk => self.chunks.is_empty(),
            Place::TurnAction => self.action.is_empty(),
            Place::ToolResolve => self.resolve.is_empty(),
            Place::ToolGate => self.gates.is_empty(),
            Place::ToolResult => self.results.is_empty(),
            Place::TurnStop => self.stop.is_empty(),
            Place::RunEnd => self.end.is_empty(),
            Place::AgentRun | Place::ModelCall | Place::ToolCall => true,
        }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("owner", &self.owner)
            .field("chains", &Place::ALL.iter().filter(|place| self.chains.is_used(**place)).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
