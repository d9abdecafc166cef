//! The events of requirements.

use emitree_emitter::{Event, EventName};
use emitree_middleware::own_events::UserTexts;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use emitree_agent::ToolChoice;

/// The event `init`: the first turn of an attempt begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RequirementsInit {
    /// The names of the tools among which the requirements choose.
    pub tools: Vec<String>,
}

/// The event `start`: a model is about to be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RequirementsStart {
    /// The number of the turn, from 1.
    pub turn: u32,
    /// The names of the offered tools.
    pub offered: Vec<String>,
    /// The names of the other tools, with the reasons.
    pub refused: Vec<(String, String)>,
    /// The `tool_choice` of the request.
    pub tool_choice: Option<ToolChoice>,
}

/// The event `success`: a turn has ended, and its messages are in the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RequirementsSuccess {
    /// The number of the turn.
    pub turn: u32,
}

/// The event `final_answer`: more of the final answer is known.
///
/// One value is passed to all emits of an answer. A listener may take `delta`. An answer of a type with fields is one
/// event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FinalAnswer {
    /// The new text. It is empty if the answer is complete and its text was known already.
    pub delta: String,
    /// The answer as JSON, when it is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured: Option<Value>,
    /// In JSON it is left out, because a journal of all events would be of quadratic size.
    #[serde(skip)]
    pub(super) output: String,
}

impl FinalAnswer {
    /// Returns all text so far. It begins anew if the model's attempt was discarded.
    #[must_use]
    pub fn output(&self) -> &str {
        &self.output
    }
}

impl Event for RequirementsInit {
    const NAME: EventName = EventName::new("init");
}

impl UserTexts for RequirementsInit {
    fn user_texts(&mut self, _: &mut dyn FnMut(&mut String)) {}
}

impl Event for RequirementsStart {
    const NAME: EventName = EventName::new("start");
}

impl UserTexts for RequirementsStart {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.refused.iter_mut().for_each(|(_, reason)| reason.user_texts(change));
    }
}

impl Event for RequirementsSuccess {
    const NAME: EventName = EventName::new("success");
}

impl UserTexts for RequirementsSuccess {
    fn user_texts(&mut self, _: &mut dyn FnMut(&mut String)) {}
}

impl Event for FinalAnswer {
    const NAME: EventName = EventName::new("final_answer");
}

impl UserTexts for FinalAnswer {
    /// Changes only the answer as JSON: the pieces have passed the text filters of the runs as one text.
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.structured.user_texts(change);
    }
}
