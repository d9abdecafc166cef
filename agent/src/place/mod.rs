//! Places: the steps of an agent's loop that middleware can intercept.
//!
//! The hooks of `agent.run`, `model.call` and `tool.call` are stacks of layers, each bound only to the run that it wraps,
//! so no run below inherits it. At most other places, the loop calls the hooks one after another; at `model.wire` it calls
//! only the last one, and the stages of `model.chunk` are called by the model's run. The layers around reads and writes of
//! the key-value store are joined into two stacks when the agent is built; if middlewares of a run have such layers,
//! `ctx.values()` adds them.
//!
//! The state of a middleware is deserialized when it is first used. Before the first attempt, the loop stores a copy of
//! all state as JSON, and restores it before each further attempt.

pub(crate) mod action;
pub(crate) mod batch;
pub(crate) mod built;
pub(crate) mod compaction;
pub(crate) mod filters;
pub(crate) mod hooks;
pub(crate) mod request;
pub(crate) mod restore;
pub(crate) mod state;
pub(crate) mod testing;
pub(crate) mod values;

use std::fmt;

use emitree_runtime::Filters;
use serde_json::Value;

use crate::message::history::History;
use crate::model::chunks::ChunkStages;
use crate::place::action::{CallResult, Messages, TurnAction, TurnEnd};
use crate::place::built::Gate;
use crate::place::compaction::Compacted;
use crate::place::request::ModelRequest;
use crate::place::restore::OpenCall;
use crate::{Message, ToolCall};

/// Defines [`Place`] and [`Chains`] from one table. A row is a place, its name, and its lists of hooks, which are none
/// at an onion place: its layers are in [`Built`](built::Built).
macro_rules! places {
    ($($(#[$doc:meta])* $place:ident = $name:literal {
        $($(#[$list_doc:meta])* $list:ident: $hooks:ty),* $(,)?
    })*) => {
        /// A step of an agent's loop that middleware can intercept. The variants are in the order of a turn.
        ///
        /// At an onion place, hooks are layers around a run. At a chain place, a value passes from hook to hook.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Place {
            $($(#[$doc])* $place,)*
        }

        impl Place {
            /// All places, in the order of a turn.
            pub const ALL: [Self; [$(Self::$place),*].len()] = [$(Self::$place),*];

            /// Returns the name of the place, such as `model.state`. A hook's name is `<id>.<place>`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$place => $name,)*
                }
            }
        }

        /// The hooks of a middleware at the chain places.
        #[derive(Clone, Default)]
        pub(crate) struct Chains {
            $($($(#[$list_doc])* pub(crate) $list: $hooks,)*)*
        }

        impl Chains {
            /// Returns `true` if a chain place has hooks.
            fn is_used(&self, place: Place) -> bool {
                match place {
                    $(Place::$place => false $(|| !self.$list.is_empty())*,)*
                }
            }

            /// Removes the hooks of a chain place.
            fn clear(&mut self, place: Place) {
                match place {
                    $(Place::$place => { $(self.$list = Default::default();)* })*
                }
            }
        }
    };
}

places! {
    /// The whole run of the agent: an onion of layers.
    AgentRun = "agent.run" {}
    /// The first use of a session in this process, by a run of the agent: hooks that prepare the session's state.
    AgentStart = "agent.start" { start: Filters<()> }
    /// A value of [`Session::send`](crate::Session::send), before each model call: only the hooks of the middleware to
    /// which it was sent are called.
    AgentMessage = "agent.message" {
        /// The hooks read their type from the value.
        message: Filters<Value>,
    }
    /// The messages of [`Session::steer`](crate::Session::steer) and its siblings before they enter the history: a chain
    /// of hooks.
    SteerInject = "steer.inject" { inject: Filters<Vec<Message>> }
    /// The history before each model call: a chain of hooks. Their changes stay in the session.
    ModelState = "model.state" { state: Filters<History> }
    /// The older messages of the history that a middleware is about to replace, for example with a summary: a chain of
    /// hooks. A halt keeps the messages, and the run continues. See [`Compaction`](crate::hook::Compaction).
    ContextCompact = "context.compact" {
        compact: Filters<Messages>,
        compacted: Filters<Compacted>,
    }
    /// The messages of one model call: a chain of hooks that change a copy, but not the history.
    ModelContext = "model.context" { context: Filters<Messages> }
    /// The system prompt: the parts that hooks add, then a chain of hooks that change the joined text.
    ModelPrompt = "model.prompt" {
        /// Each hook appends one contribution.
        contributions: Filters<Vec<String>>,
        prompt: Filters<String>,
    }
    /// The final messages: only the last registered hook is called.
    ModelWire = "model.wire" { wire: Filters<Messages> }
    /// The whole request of one model call, and the model: a chain of hooks.
    ModelRequest = "model.request" {
        request: Filters<ModelRequest>,
        /// The hooks after all of `request`: they write the request in the form of a kind.
        writes: Filters<ModelRequest>,
    }
    /// The model's run: an onion of layers.
    ModelCall = "model.call" {}
    /// The pieces of a reply: stages, which are created for each attempt.
    ModelChunk = "model.chunk" {
        /// The stages before all of `chunks`: they read a provider's reply in the form of a kind.
        reads: ChunkStages,
        chunks: ChunkStages,
    }
    /// The decision about a response: a chain of hooks.
    TurnAction = "turn.action" {
        /// One list for each hook, because the response is kept as the hooks before a failing hook left it.
        action: Vec<Filters<TurnAction>>,
    }
    /// A call that an earlier run has left open, before a resumed run makes it again: a chain of hooks, which may refuse
    /// it. See [`OpenCall`](crate::hook::OpenCall).
    ToolRestore = "tool.restore" { restore: Filters<OpenCall> }
    /// A tool call before it is checked: the first hook that returns another call replaces it.
    ToolResolve = "tool.resolve" { resolve: Filters<ToolCall> }
    /// All calls of a turn, before any of them starts: a chain of hooks.
    ToolGate = "tool.gate" { gates: Vec<Gate> }
    /// The run of a tool: an onion of layers.
    ToolCall = "tool.call" {}
    /// The result of each call, in call order, after all calls have settled: a chain of hooks.
    ToolResult = "tool.result" {
        /// One list for each hook, because later hooks are still called after a failure.
        results: Vec<Filters<CallResult>>,
    }
    /// The calls that [`Session::interject`](crate::Session::interject) has skipped: hooks that observe them.
    SteerSkip = "steer.skip" { skip: Filters<Vec<ToolCall>> }
    /// The end of a turn: the first hook that returns `true` ends the loop. Then [`RunEnd`](Self::RunEnd) follows.
    TurnStop = "turn.stop" { stop: Filters<TurnEnd> }
    /// The end of the loop: hooks may add messages, which start another round.
    RunEnd = "run.end" { end: Filters<Vec<Message>> }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
