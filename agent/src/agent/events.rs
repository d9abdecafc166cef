//! The own events of an agent's run.

use std::sync::Arc;

use emitree_emitter::{Event, EventName};
use serde::{Deserialize, Serialize};

use crate::{Message, ToolCall, ToolResult, Turn};

/// The event `start`: the loop is about to begin. Emitted for each attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentStart {
    /// The messages of the input.
    pub messages: Vec<Message>,
}

/// The event `iteration`: a turn is about to begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Iteration {
    /// The state of the loop.
    pub turn: Turn,
    /// The number of messages in the history.
    pub messages: usize,
}

/// The event `tool_call_identified`: the model asks for a tool call. Emitted for each call, after `tool.resolve` and
/// before the gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallIdentified {
    /// The call.
    pub call: ToolCall,
}

/// The event `tool_response`: a call has its result. Emitted in call order, after all calls of the turn have settled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolResponse {
    /// The call.
    pub call: ToolCall,
    /// The result, as the model reads it.
    pub result: ToolResult,
}

/// The event `success`: the loop has ended with an answer. Emitted before the output middleware, which may still fail the
/// run; [`Success`](emitree_runtime::Success) is emitted after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentSuccess {
    /// The answer.
    pub answer: Arc<Message>,
}

impl Event for AgentStart {
    const NAME: EventName = EventName::new("start");
}

impl Event for Iteration {
    const NAME: EventName = EventName::new("iteration");
}

impl Event for ToolCallIdentified {
    const NAME: EventName = EventName::new("tool_call_identified");
}

impl Event for ToolResponse {
    const NAME: EventName = EventName::new("tool_response");
}

impl Event for AgentSuccess {
    const NAME: EventName = EventName::new("success");
}
