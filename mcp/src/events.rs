//! The events of a server's emitter, and of the runs of its tools.

use emitree_emitter::{Event, EventName};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Era;

/// The event `connected`: the server has answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Connected {
    /// The era of the protocol.
    pub era: Era,
    /// The version of the protocol.
    pub version: String,
}

/// The event `exited`: the process of the server has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Exited {
    /// The exit status or the signal, as text.
    pub status: String,
    /// The last line on stderr, at most 512 bytes, escaped and without keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
}

/// The event `restarted`: a call has started the process again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Restarted {
    /// The number of restarts within five minutes.
    pub restarts: usize,
}

/// The event `tools_changed`: the list of tools is another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolsChanged {
    /// The tools that are new or changed, by the server's names.
    pub added: Vec<String>,
    /// The tools that the server no longer lists, by its names.
    pub removed: Vec<String>,
}

/// The event `tool_withheld`: the server lists a tool that no agent receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolWithheld {
    /// The server's name of the tool, escaped.
    pub tool: String,
    /// The fault.
    pub fault: String,
}

/// The event `tool_cleaned`: invisible or control characters were removed from the description or the schema of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCleaned {
    /// The server's name of the tool, escaped.
    pub tool: String,
    /// The number of characters that were removed.
    pub removed: usize,
}

/// The event `question_cleaned`: invisible or control characters were removed from a question, its address, or the titles
/// and descriptions of its schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QuestionCleaned {
    /// The question, without them.
    pub message: String,
    /// The number of characters that were removed.
    pub removed: usize,
}

/// The event `elicitation_refused`: the server has asked, and its question was answered with `decline`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ElicitationRefused {
    /// The question.
    pub message: String,
    /// The reason, with the ways to answer.
    pub reason: String,
}

/// The event `log`: a message of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServerLog {
    /// The level: one of MCP's, `stderr` for a line on stderr, `stray` for a line that is no message, or `client` for a
    /// note of this client.
    pub level: String,
    /// The message.
    pub data: Value,
}

/// The event `progress` of a tool's run: the server reports progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolProgress {
    /// The progress so far.
    pub done: f64,
    /// The progress at the end, if the server knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// A message for people, without invisible and control characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Event for Connected {
    const NAME: EventName = EventName::new("connected");
}

impl Event for Exited {
    const NAME: EventName = EventName::new("exited");
}

impl Event for Restarted {
    const NAME: EventName = EventName::new("restarted");
}

impl Event for ToolsChanged {
    const NAME: EventName = EventName::new("tools_changed");
}

impl Event for ToolWithheld {
    const NAME: EventName = EventName::new("tool_withheld");
}

impl Event for ToolCleaned {
    const NAME: EventName = EventName::new("tool_cleaned");
}

impl Event for QuestionCleaned {
    const NAME: EventName = EventName::new("question_cleaned");
}

impl Event for ElicitationRefused {
    const NAME: EventName = EventName::new("elicitation_refused");
}

impl Event for ServerLog {
    const NAME: EventName = EventName::new("log");
}

impl Event for ToolProgress {
    const NAME: EventName = EventName::new("progress");
}
