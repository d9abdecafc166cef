//! Models, tools and agents as runs: their steps emit events, and middleware can intercept each step.
//!
//! A [`ChatModel`] takes a conversation and answers with a [`Message`]; a [`Provider`] is the backend behind it. A
//! [`Tool`] is a function that a model may call. Models and tools are runnables of `emitree-runtime`: listeners,
//! layers, guards and the built-in middleware apply to their runs as to any other run. A [`Session`] keeps a
//! [`History`], which stays valid even if a turn is aborted or dropped. An [`Agent`] calls a model and its tools in a
//! loop. Each step of the loop that middleware can intercept is a [`Place`], where an [`AgentMiddleware`] adds
//! [`Hooks`]. Built-in middlewares, other kinds of agents, parsers and workflows are in `emitree-agent-kit`.

mod agent;
mod handoff;
mod message;
mod model;
#[cfg(feature = "openai")]
mod openai;
mod place;
mod session;
mod tool;
pub mod typed;

/// Transfers of a conversation to another agent. Other kinds of agents are in `emitree-agent-kit`.
pub mod kinds {
    pub use crate::handoff::{HandedOff, Handoff};
}

/// Repairing conversations that come from elsewhere: the changes that [`History::repair`] reports.
pub mod history {
    pub use crate::message::repair::{Repair, RepairKind};
}

/// Messages to a running agent ([`Session::steer`] and its siblings): the error of a message that was not sent, and the
/// event of a message that did not arrive.
pub mod steering {
    pub use crate::agent::events::MessageDropped;
    pub use crate::session::SendError;
}

/// Sessions at earlier points ([`Session::at`](crate::Session::at)), and sessions that are made of them
/// ([`Session::fork`](crate::Session::fork)).
pub mod past {
    pub use crate::session::past::{Keep, Origin, Past, PastError, Point, TurnInfo};
}

/// Streamed replies: stages that may await, the events of the tool calls in a reply, one argument of a call while the
/// model writes it, and a reader of JSON that arrives in pieces.
pub mod reply {
    pub use crate::model::chunks::AsyncChunkStage;
    pub use crate::model::tool_calls::events::{ToolCallDelta, ToolCallStarted};
    pub use crate::model::tool_calls::partial_json::{JsonPart, PartialJson};
    pub use crate::model::tool_calls::stream::{StreamToolCall, StreamedCall, ToolCallUpdate, ToolCallsDiscarded};
}

/// Values for hooks and middlewares: the request of a model call, the name and the tools of an agent, a compaction of its
/// history, and a call that was left open.
pub mod hook {
    pub use crate::agent::spec::AgentSpec;
    pub use crate::place::compaction::{Compacted, Compaction};
    pub use crate::place::request::ModelRequest;
    pub use crate::place::restore::OpenCall;
}

/// The key-value store of an agent: the handle for hooks and tools, and the operations that layers can wrap.
pub mod values {
    pub use crate::place::values::{Change, ReadValue, Values, WriteValue, Written};
}

pub use agent::Agent;
pub use agent::builder::AgentBuilder;
pub use agent::events::{
    AgentStart, AgentSuccess, AnswerUnused, Iteration, MessageAdded, MessageError, MessageReplaced, QuestionAnswered,
    QuestionAsked, RunResumed, ToolCallIdentified, ToolResponse,
};
pub use agent::hooks_fn::{HooksFn, hooks_fn};
pub use agent::input::{AgentInput, AgentOutput};
pub use agent::middleware::{AgentMiddleware, AgentRun, Joins, joins};
pub use agent::turn::AgentContext;

pub use message::arguments::{Arguments, ToolCall};
pub use message::history::{History, HistoryError};
pub use message::turn::Turn;
pub use message::usage::{FinishReason, Usage};
pub use message::{Message, Part, Role, ToolResult};
pub use model::ChatModel;
pub use model::chunks::{ChunkStage, Chunks, ModelRun};
pub use model::events::{
    ChatError, ChatFinish, ChatStart, ChatSuccess, ModelFellBack, NewToken, RateLimits, ResponseHeaders, UsageReported,
};
pub use model::provider::{DeltaStream, Provider, whole};
pub use model::request::{ChatOptions, ChatRequest, ResponseFormat, ToolChoice, ToolSpec};
pub use model::response::{ChatResponse, Delta};
pub use model::scripted::{Reply, ScriptedModel};
pub use model::tokens::{EstimatedTokens, TokenCounter};
#[cfg(feature = "openai")]
pub use openai::{OpenAi, OpenAiBuilder, ServerError, ServerErrorKind};
pub use place::Place;
pub use place::action::{CallResult, How, Messages, TurnAction, TurnDecision, TurnEnd};
pub use place::batch::{Batch, GatedCall, Verdict};
pub use place::hooks::{HookResult, Hooks};
pub use place::state::State;
pub use place::testing::HookTest;
pub use session::Session;
pub use session::posts::Submit;
pub use session::questions::AnswerError;
pub use tool::events::{ToolFailure, ToolFinish, ToolRetriesExceeded, ToolRetry, ToolStart, ToolSuccess};
pub use tool::into_tool::IntoTool;
pub use tool::output::ToolOutput;
pub use tool::{CallId, Tool, ToolError, tool_fn};
