//! The hooks of a middleware once they are registered.

use std::sync::Arc;

use emitree_runtime::{Filters, HookInfo, Middleware, Op, Phase, Result, RunContext, Stack};
use futures_core::future::BoxFuture;

use crate::place::Chains;
use crate::place::batch::{Batch, GatedCall};
use crate::place::values::{ReadValue, WriteValue};
use crate::{Agent, ChatModel, Hooks, Place, Tool};

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
        let chunks = self.chains.chunks.clone();
        let model_call = self.model_call.in_phase(Phase::Guard);
        if chunks.is_empty() && model_call.is_empty() {
            return None;
        }
        let chains = Chains { chunks, ..Chains::default() };
        Some(Self { model_call, chains, guards_replies: self.guards_replies, ..Hooks::new(&self.owner).build() })
    }

    /// Returns a copy of the hooks that has only guards at these places. Every gate is a guard.
    pub(crate) fn without(&self, places: &[Place]) -> Self {
        let mut rest = self.clone();
        for place in places {
            match place {
                Place::AgentRun => rest.agent_run = rest.agent_run.in_phase(Phase::Guard),
                Place::ModelCall => rest.model_call = rest.model_call.in_phase(Phase::Guard),
                Place::ToolCall => rest.tool_call = rest.tool_call.in_phase(Phase::Guard),
                Place::ToolGate => {}
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
