//! An agent's own events.

use std::sync::Arc;
use std::time::SystemTime;

use emitree_emitter::{EmitterBuilder, Event, EventName};
use emitree_runtime::Answer;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::handoff::HandedOff;
use crate::{Message, NewToken, ToolCall, ToolResult, Turn};

/// The event `start`: the loop is about to begin. The event is emitted for each attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentStart {
    /// The messages of the input.
    pub messages: Vec<Message>,
    /// The id of the session ([`Session::id`](crate::Session::id)). A recording of an earlier version has none.
    #[serde(default)]
    pub session: String,
}

/// The event `iteration`: a turn has begun, and the hooks of `model.state` have been called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Iteration {
    /// The state of the loop.
    pub turn: Turn,
    /// The number of messages in the history.
    pub messages: usize,
}

/// The event `message`: a message has entered the history.
///
/// Each attempt of the run emits this event, in order, for each message that it adds to the history: the input,
/// responses, results of tools, and messages that hooks add. The messages of the last attempt are
/// [`AgentOutput::messages`](crate::AgentOutput::messages). The messages of a turn enter the history together, after
/// its last tool call has settled. If the run is aborted or dropped, the messages of the unfinished turn enter the
/// history without this event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MessageAdded {
    /// The message, as the history keeps it.
    pub message: Arc<Message>,
}

/// The event `message_replaced`: another message took the place of a message in the history.
///
/// The event is emitted if layers or output functions changed the answer, or if the run ends without returning it. In the
/// second case, the event is emitted before other listeners receive `finish`. A [resumed](crate::Agent::resume) run emits
/// it for each result that takes the place of an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MessageReplaced {
    /// The message that was replaced; `None` if it is an answer that was withheld by a guard or a halt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Arc<Message>>,
    /// The message, as the history keeps it.
    pub after: Arc<Message>,
}

/// The event `message_error`: a message reports an error to the model, or cannot be used.
///
/// - For a tool result that is an error, this event follows the event `message` of the result. For example, the call
///   failed, was denied, or had invalid arguments.
/// - For a response that cannot enter the history, because a hook of `turn.action` failed or the response is not valid,
///   this event is emitted instead of the event `message`. The run then fails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MessageError {
    /// The message.
    pub message: Arc<Message>,
    /// The error: the text of the result, or the reason why the response cannot be used.
    pub error: String,
}

/// The event `message_dropped`: a message of [`Session::send`](crate::Session::send) did not arrive, or its hook failed.
/// The event is emitted before a model call. The message itself is no part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MessageDropped {
    /// The id of the middleware to which the message was sent.
    pub to: String,
    /// The reason.
    pub error: String,
}

/// The event `tool_call_identified`: the model has requested a tool call. The event is emitted for each call, after
/// `tool.resolve` and before the gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallIdentified {
    /// The call.
    pub call: ToolCall,
}

/// The event `tool_response`: a tool call has a result. The events are emitted in call order, after all calls of the
/// turn have settled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolResponse {
    /// The call, after changes by hooks. The history keeps the call as the model wrote it.
    pub call: ToolCall,
    /// The result, as the model reads it.
    pub result: ToolResult,
}

/// The event `success`: the loop has ended with an answer. The event is emitted before the output middleware, which may
/// still fail the run. [`Success`](emitree_runtime::Success) is emitted after the output middleware.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentSuccess {
    /// The answer.
    pub answer: Arc<Message>,
}

/// The event `resumed`: the run goes on where an earlier run of its session has stopped. It is emitted after `start`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunResumed {
    /// The id of the run that had stopped.
    pub continues: Uuid,
    /// The state of the loop as that run left it.
    pub turn: Turn,
    /// The ids of the open calls that are made now.
    pub executed: Vec<String>,
    /// The ids of the open calls that are not made again, and whose results say why.
    pub demoted: Vec<String>,
}

/// The event `asked`: a call was interrupted by a question. The session has the question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QuestionAsked {
    /// The id of the question.
    pub id: String,
    /// The kind of the question.
    pub kind: String,
    /// The name of the hook or the middleware that has asked.
    pub by: String,
}

/// The event `answered`: a call has taken the answer to its question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QuestionAnswered {
    /// The id of the question.
    pub id: String,
    /// The id of the call. A recording of an earlier version has none.
    #[serde(default)]
    pub call: String,
    /// The author of the answer.
    pub by: Option<String>,
    /// The time of the answer.
    pub at: Option<SystemTime>,
    /// `true` if the call is made with the arguments of an edit.
    #[serde(default)]
    pub edited: bool,
}

impl QuestionAnswered {
    pub(crate) fn of(id: String, call: &str, answer: &Answer) -> Self {
        Self { id, call: call.to_owned(), by: answer.by.clone(), at: answer.at, edited: false }
    }
}

/// The event `unused_answer`: a call has a result, but nobody has asked again for the answer to its question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AnswerUnused {
    /// The id of the question.
    pub id: String,
    /// The name of the hook or the middleware that had asked.
    pub by: String,
}

/// Declares an agent's events as data, so that a redaction replaces secrets in them.
pub(crate) fn declared(emitter: EmitterBuilder) -> EmitterBuilder {
    emitter
        .declares_data::<AgentStart>()
        .declares_data::<Iteration>()
        .declares_data::<MessageAdded>()
        .declares_data::<MessageReplaced>()
        .declares_data::<MessageError>()
        .declares_data::<MessageDropped>()
        .declares_data::<ToolCallIdentified>()
        .declares_data::<ToolResponse>()
        .declares_data::<AgentSuccess>()
        .declares_data::<RunResumed>()
        .declares_data::<QuestionAsked>()
        .declares_data::<QuestionAnswered>()
        .declares_data::<AnswerUnused>()
        .declares_data::<HandedOff>()
        // The answer of a tool, in the agent's own run.
        .declares_text::<NewToken>()
}

impl Event for AgentStart {
    const NAME: EventName = EventName::new("start");

    fn head(&self) -> Option<Value> {
        Some(json!({"session": self.session}))
    }
}

impl Event for Iteration {
    const NAME: EventName = EventName::new("iteration");
}

impl Event for MessageAdded {
    const NAME: EventName = EventName::new("message");
}

impl Event for MessageReplaced {
    const NAME: EventName = EventName::new("message_replaced");
}

impl Event for MessageError {
    const NAME: EventName = EventName::new("message_error");
}

impl Event for MessageDropped {
    const NAME: EventName = EventName::new("message_dropped");
}

impl Event for ToolCallIdentified {
    const NAME: EventName = EventName::new("tool_call_identified");
}

impl Event for ToolResponse {
    const NAME: EventName = EventName::new("tool_response");
}

impl Event for RunResumed {
    const NAME: EventName = EventName::new("resumed");

    fn head(&self) -> Option<Value> {
        Some(json!({"continues": self.continues}))
    }
}

impl Event for QuestionAsked {
    const NAME: EventName = EventName::new("asked");
}

impl Event for QuestionAnswered {
    const NAME: EventName = EventName::new("answered");

    fn head(&self) -> Option<Value> {
        Some(json!({"call": self.call, "by": self.by, "edited": self.edited}))
    }
}

impl Event for AnswerUnused {
    const NAME: EventName = EventName::new("unused_answer");
}

impl Event for AgentSuccess {
    const NAME: EventName = EventName::new("success");
}
