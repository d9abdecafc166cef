//! The events of `ReAct`.

use std::sync::Arc;

use emitree_emitter::{Event, EventName};
use emitree_middleware::own_events::UserTexts;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The event `start`: the model is about to be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReActStart {
    /// The number of the turn.
    pub turn: u32,
    /// The names of the tools that the prompt lists.
    pub tools: Vec<String>,
}

/// The event `partial_update`: more text of a line is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReActPartialUpdate {
    /// `thought`, `tool_name`, `tool_input` or `final_answer`.
    pub key: Arc<str>,
    /// The new text.
    pub delta: String,
    /// The number of the turn.
    pub turn: u32,
}

/// The event `update`: the text of a line is complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReActUpdate {
    /// `thought`, `tool_name`, `tool_input` or `final_answer`.
    pub key: Arc<str>,
    /// The text: the deltas of the partial updates, joined.
    pub value: String,
    /// The arguments as JSON, for `tool_input`; otherwise the text.
    pub parsed: Value,
    /// The number of the turn.
    pub turn: u32,
}

/// The event `retry`: a reply did not parse, and the model is asked again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReActRetry {
    /// The number of the turn.
    pub turn: u32,
    /// The fault of the reply.
    pub error: String,
}

/// The event `error`: a reply did not parse. [`ReActRetry`] follows if the model is asked again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReActError {
    /// The number of the turn.
    pub turn: u32,
    /// The fault of the reply.
    pub error: String,
}

/// The event `success`: the run has an answer. Output functions may still change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReActSuccess {
    /// The text of the answer.
    pub answer: String,
}

impl Event for ReActStart {
    const NAME: EventName = EventName::new("start");
}

impl Event for ReActPartialUpdate {
    const NAME: EventName = EventName::new("partial_update");
}

impl Event for ReActUpdate {
    const NAME: EventName = EventName::new("update");
}

impl Event for ReActRetry {
    const NAME: EventName = EventName::new("retry");
}

impl Event for ReActError {
    const NAME: EventName = EventName::new("error");
}

impl Event for ReActSuccess {
    const NAME: EventName = EventName::new("success");
}

impl UserTexts for ReActStart {
    fn user_texts(&mut self, _: &mut dyn FnMut(&mut String)) {}
}

impl UserTexts for ReActPartialUpdate {
    /// Changes nothing: the pieces have passed the text filters of the runs as one text.
    fn user_texts(&mut self, _: &mut dyn FnMut(&mut String)) {}
}

impl UserTexts for ReActUpdate {
    /// Changes nothing, because the text consists of the pieces before.
    fn user_texts(&mut self, _: &mut dyn FnMut(&mut String)) {}
}

impl UserTexts for ReActRetry {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.error.user_texts(change);
    }
}

impl UserTexts for ReActError {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.error.user_texts(change);
    }
}

impl UserTexts for ReActSuccess {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.answer.user_texts(change);
    }
}
