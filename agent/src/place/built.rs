//! The hooks of a middleware once they are registered, one list per place.

use std::sync::Arc;

use emitree_runtime::{Filters, HookInfo, Middleware, Op, Phase, Result, RunContext, Stack};
use futures_core::future::BoxFuture;
use serde_json::Value;

use crate::message::history::History;
use crate::model::chunks::ChunkStages;
use crate::place::action::{CallResult, Messages, TurnAction, TurnEnd};
use crate::place::batch::{Batch, GatedCall};
use crate::place::compaction::Compacted;
use crate::place::request::ModelRequest;
use crate::place::restore::OpenCall;
use crate::place::values::{ReadValue, WriteValue};
use crate::{Agent, ChatModel, Hooks, Message, Place, Tool, ToolCall};

/// The hooks of a middleware at the chain places.
#[derive(Clone, Default)]
pub(crate) struct Chains {
    pub(crate) start: Filters<()>,
    /// The hooks read their type from the value.
    pub(crate) message: Filters<Value>,
    pub(crate) inject: Filters<Vec<Message>>,
    pub(crate) state: Filters<History>,
    pub(crate) compact: Filters<Messages>,
    pub(crate) compacted: Filters<Compacted>,
    pub(crate) context: Filters<Messages>,
    /// Each hook appends one contribution.
    pub(crate) contributions: Filters<Vec<String>>,
    pub(crate) prompt: Filters<String>,
    /// Only the last hook is called.
    pub(crate) wire: Filters<Messages>,
    pub(crate) request: Filters<ModelRequest>,
    /// The hooks after all of `request`: they write the request in the form of a kind.
    pub(crate) writes: Filters<ModelRequest>,
    /// The stages before all of `chunks`: they read a provider's reply in the form of a kind.
    pub(crate) reads: ChunkStages,
    pub(crate) chunks: ChunkStages,
    /// One list for each hook, because the response is kept as the hooks before a failing hook left it.
    pub(crate) action: Vec<Filters<TurnAction>>,
    /// The first hook that returns a call ends the chain.
    pub(crate) resolve: Filters<ToolCall>,
    pub(crate) restore: Filters<OpenCall>,
    pub(crate) gates: Vec<Gate>,
    /// One list for each hook, because later hooks are still called after a failure.
    pub(crate) results: Vec<Filters<CallResult>>,
    /// The hooks cannot change the calls.
    pub(crate) skip: Filters<Vec<ToolCall>>,
    /// The first hook that returns `true` ends the chain.
    pub(crate) stop: Filters<TurnEnd>,
    pub(crate) end: Filters<Vec<Message>>,
}

/// A hook at the gate, with the id of its middleware. The hook is called once with all calls, or once for each open
/// call.
#[derive(Clone)]
pub(crate) enum Gate {
    Batch(String, Filters<Batch>),
    Each(String, Filters<GatedCall>),
}

/// The registered hooks of a middleware: the layers of its onion places, and its chains.
#[derive(Clone)]
pub(crate) struct Built {
    pub(crate) owner: String,
    pub(crate) agent_run: Stack<Agent>,
    pub(crate) model_call: Stack<ChatModel>,
    pub(crate) tool_call: Stack<Tool>,
    pub(crate) values_read: Stack<ReadValue>,
    pub(crate) values_write: Stack<WriteValue>,
    pub(crate) chains: Chains,
    /// `true` if there are guards at `model.call`.
    pub(crate) guards_replies: bool,
    pub(crate) tools: Vec<Tool>,
    /// The functions that are asked for tools at each turn.
    pub(crate) sources: Vec<ToolSource>,
    /// The middlewares of the agent's run.
    pub(crate) middlewares: Vec<Arc<dyn Middleware>>,
}

type AskForTools = dyn for<'a> Fn(&'a RunContext) -> BoxFuture<'a, Result<Vec<Tool>>> + Send + Sync;

/// A function that is asked for tools at each turn.
#[derive(Clone)]
pub(crate) struct ToolSource {
    name: Arc<str>,
    ask: Arc<AskForTools>,
}

impl ToolSource {
    pub(super) fn new(
        name: String,
        ask: impl for<'a> Fn(&'a RunContext) -> BoxFuture<'a, Result<Vec<Tool>>> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), ask: Arc::new(ask) }
    }

    pub(crate) async fn ask(&self, ctx: &RunContext) -> Result<Vec<Tool>> {
        (self.ask)(ctx).await.map_err(|error| error.by(&self.name))
    }
}

impl Built {
    /// Returns a description of each place with hooks, in the order of a turn, and of each operation of the key-value
    /// store with layers. A place has two descriptions if some, but not all, of its hooks are guards. If `is_guard` is
    /// set, all hooks are described as guards.
    pub(crate) fn describe(&self, is_guard: bool) -> Vec<HookInfo> {
        let describe = |(name, kinds): (&str, [bool; 2])| {
            let name = format!("{}.{name}", self.owner);
            let kinds = kinds.into_iter().zip([false, true]);
            kinds.filter(|(has, _)| *has).map(move |(_, kind)| HookInfo::new(&name, kind || is_guard))
        };
        let places = Place::ALL.into_iter().map(|place| (place.as_str(), self.kinds(place)));
        let mut hooks: Vec<_> = places.chain(self.values()).flat_map(describe).collect();
        hooks.extend(self.sources.iter().map(|source| HookInfo::new(&*source.name, is_guard)));
        hooks.dedup();
        hooks
    }

    /// Returns whether a place has hooks that are not guards, and whether it has guards.
    fn kinds(&self, place: Place) -> [bool; 2] {
        match place {
            Place::AgentRun => kinds_of(&self.agent_run),
            Place::ModelCall => kinds_of(&self.model_call),
            Place::ToolCall => kinds_of(&self.tool_call),
            // Every gate can deny calls, so every gate is a guard.
            Place::ToolGate => [false, self.chains.is_used(place)],
            chain => [self.chains.is_used(chain), false],
        }
    }

    /// Returns the operations of the key-value store. They are no places, so a builder's layers replace no others.
    fn values(&self) -> [(&'static str, [bool; 2]); 2] {
        [(ReadValue::name(), kinds_of(&self.values_read)), (WriteValue::name(), kinds_of(&self.values_write))]
    }

    /// Returns the places at which these hooks replace others, in the order of a turn: those that have hooks, without
    /// `agent.message`, because each message is for one middleware.
    pub(crate) fn replaces(&self) -> Vec<Place> {
        let mut places = self.places();
        places.retain(|place| *place != Place::AgentMessage);
        places
    }

    /// Returns the places that have hooks, in the order of a turn.
    fn places(&self) -> Vec<Place> {
        Place::ALL.into_iter().filter(|place| self.kinds(*place).contains(&true)).collect()
    }

    /// Returns `true` if a hook is called before the request of a turn is complete.
    pub(crate) fn prepares_requests(&self) -> bool {
        let Chains { state, context, contributions, prompt, wire, .. } = &self.chains;
        let has_hooks = !(state.is_empty() && context.is_empty() && wire.is_empty());
        has_hooks || !(contributions.is_empty() && prompt.is_empty() && self.sources.is_empty())
    }

    /// Returns `true` if there is nothing: no hook, no tool and no middleware.
    pub(crate) fn is_empty(&self) -> bool {
        let has_none = self.tools.is_empty() && self.sources.is_empty() && self.middlewares.is_empty();
        has_none && self.values_read.is_empty() && self.values_write.is_empty() && self.places().is_empty()
    }

    /// Returns the stages and the guards for replies, or `None` if there are none.
    pub(crate) fn only_replies(&self) -> Option<Self> {
        let (chunks, model_call) = (self.chains.chunks.clone(), self.model_call.in_phase(Phase::Guard));
        let is_empty = chunks.is_empty() && model_call.is_empty();
        let (chains, guards_replies) = (Chains { chunks, ..Chains::default() }, self.guards_replies);
        (!is_empty).then(|| Self { model_call, chains, guards_replies, ..Hooks::new(&self.owner).build() })
    }

    /// Returns a copy of the hooks that has only guards at these places.
    pub(crate) fn without(&self, places: &[Place]) -> Self {
        let mut rest = self.clone();
        for place in places {
            match place {
                Place::AgentRun => rest.agent_run = rest.agent_run.in_phase(Phase::Guard),
                Place::ModelCall => rest.model_call = rest.model_call.in_phase(Phase::Guard),
                Place::ToolCall => rest.tool_call = rest.tool_call.in_phase(Phase::Guard),
                chain => rest.chains.clear(*chain),
            }
        }
        rest
    }
}

/// Returns whether a stack has layers that are not guards, and whether it has guards.
pub(super) fn kinds_of<O: Op>(stack: &Stack<O>) -> [bool; 2] {
    let guards = stack.in_phase(Phase::Guard).len();
    [stack.len() > guards, guards > 0]
}

impl Chains {
    /// Removes the hooks of a chain place, except for gates.
    fn clear(&mut self, place: Place) {
        match place {
            Place::AgentStart => self.start = Filters::default(),
            Place::SteerInject => self.inject = Filters::default(),
            Place::ModelState => self.state = Filters::default(),
            Place::ContextCompact => (self.compact, self.compacted) = Default::default(),
            Place::ModelContext => self.context = Filters::default(),
            Place::ModelPrompt => (self.contributions, self.prompt) = Default::default(),
            Place::ModelWire => self.wire = Filters::default(),
            Place::ModelRequest => (self.request, self.writes) = Default::default(),
            Place::ModelChunk => (self.chunks, self.reads) = Default::default(),
            Place::TurnAction => self.action.clear(),
            Place::ToolRestore => self.restore = Filters::default(),
            Place::ToolResolve => self.resolve = Filters::default(),
            Place::ToolResult => self.results.clear(),
            Place::SteerSkip => self.skip = Filters::default(),
            Place::TurnStop => self.stop = Filters::default(),
            Place::RunEnd => self.end = Filters::default(),
            // Gates stay, because every gate is a guard, and hooks of `agent.message`, because each message is for one
            // middleware. The layers of onion places are not stored in `Chains`.
            Place::ToolGate | Place::AgentMessage | Place::AgentRun | Place::ModelCall | Place::ToolCall => {}
        }
    }

    /// Returns `true` if a chain place has hooks. The match has no wildcard, so that a new place cannot be forgotten.
    pub(super) fn is_used(&self, place: Place) -> bool {
        !match place {
            Place::AgentStart => self.start.is_empty(),
            Place::AgentMessage => self.message.is_empty(),
            Place::SteerInject => self.inject.is_empty(),
            Place::ModelState => self.state.is_empty(),
            Place::ContextCompact => self.compact.is_empty() && self.compacted.is_empty(),
            Place::ModelContext => self.context.is_empty(),
            Place::ModelPrompt => self.contributions.is_empty() && self.prompt.is_empty(),
            Place::ModelWire => self.wire.is_empty(),
            Place::ModelRequest => self.request.is_empty() && self.writes.is_empty(),
            Place::ModelChunk => self.chunks.is_empty() && self.reads.is_empty(),
            Place::TurnAction => self.action.is_empty(),
            Place::ToolRestore => self.restore.is_empty(),
            Place::ToolResolve => self.resolve.is_empty(),
            Place::ToolGate => self.gates.is_empty(),
            Place::ToolResult => self.results.is_empty(),
            Place::SteerSkip => self.skip.is_empty(),
            Place::TurnStop => self.stop.is_empty(),
            Place::RunEnd => self.end.is_empty(),
            Place::AgentRun | Place::ModelCall | Place::ToolCall => true,
        }
    }
}
