//! The input and the output of an agent's run.

use std::sync::Arc;

use emitree_runtime::{Error, Result};
use rust_decimal::Decimal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::typed::{from_value, json_in};
use crate::{ChatOptions, FinishReason, Message, Role, ToolCall, Usage};

/// The input of an [`Agent`](crate::Agent): messages, and options for the model calls of the run.
///
/// A `&str`, a `String`, a [`Message`] and a list of messages convert into an input.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentInput {
    /// The messages, usually one user message. They are appended to the history of the session, so they must be valid
    /// by themselves (see [`History::extend`](crate::History::extend)).
    #[serde(default)]
    pub messages: Vec<Message>,
    /// Options for the model calls of the run. An option that is not set is taken from the agent.
    #[serde(default)]
    pub options: ChatOptions,
}

impl AgentInput {
    /// Makes an input from messages, without options.
    pub fn new(messages: impl IntoIterator<Item = Message>) -> Self {
        Self { messages: messages.into_iter().collect(), options: ChatOptions::default() }
    }

    /// Sets options for the model calls of the run.
    ///
    /// ```
    /// use emitree_agent::{Agent, AgentInput, ChatModel, ChatOptions, ScriptedModel};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let script = ScriptedModel::new("test").text("Hello.");
    /// let options = ChatOptions::new().temperature(0.0).max_tokens(100);
    /// let agent = Agent::builder("friend", ChatModel::new(script.clone())?).options(options).build()?;
    ///
    /// agent.ask(AgentInput::from("Hi.").options(ChatOptions::new().temperature(1.0))).await?;
    /// let sent = &script.requests()[0].options;
    /// assert_eq!((sent.temperature, sent.max_tokens), (Some(1.0), Some(100)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn options(mut self, options: ChatOptions) -> Self {
        self.options = options;
        self
    }
}

impl From<&str> for AgentInput {
    fn from(text: &str) -> Self {
        Self::new([Message::user(text)])
    }
}

impl From<String> for AgentInput {
    fn from(text: String) -> Self {
        Self::new([Message::user(text)])
    }
}

impl From<Message> for AgentInput {
    fn from(message: Message) -> Self {
        Self::new([message])
    }
}

impl From<Vec<Message>> for AgentInput {
    fn from(messages: Vec<Message>) -> Self {
        Self::new(messages)
    }
}

/// The output of an [`Agent`](crate::Agent).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentOutput {
    /// The answer of the run: the last answer of the model, as layers and output functions left it.
    pub answer: Message,
    /// All messages that this run added to the history, including the input and the answer. When the run has ended, its
    /// last message of the model is the answer, as the history keeps it.
    pub messages: Vec<Arc<Message>>,
    /// The last answer of the model, if layers or output functions have changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model_answer: Option<Arc<Message>>,
    /// The input and output tokens that the model's responses reported, added up over the attempt that succeeded. The
    /// tokens of sub-agents are not included.
    pub usage: Usage,
    /// The cost of all responses of the model in the attempt that succeeded; `None` if no response has a cost. See
    /// [`ChatModel::price`](crate::ChatModel::price).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Decimal>,
    /// The number of turns in the attempt that succeeded.
    pub turns: u32,
    /// The name of the agent that gave the answer: this agent, or the last agent to which the conversation was
    /// transferred.
    #[serde(default)]
    pub(crate) last_agent: Arc<str>,
    /// The reason why the model stopped, if the provider reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
    /// The warnings of the responses, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Values for the caller, which output middleware may add.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub context: Map<String, Value>,
}

impl AgentOutput {
    /// Returns the value in the text of the answer, as [`json_in`] finds it. `Structured` of `emitree-agent-kit` makes the
    /// model answer so.
    ///
    /// # Errors
    ///
    /// Returns an error with the path and the reason, and with the text in the detail `text`, if the text has no JSON, or
    /// none that fits the type.
    pub fn structured<T: DeserializeOwned>(&self) -> Result<T> {
        let text = self.text();
        json_in(&text, from_value).map_err(|fault| {
            Error::new(format!("the answer does not fit `{}`: {fault}", std::any::type_name::<T>()))
                .detail("text", text)
        })
    }

    /// Makes an output from an answer, for layers that answer instead of the agent.
    #[must_use]
    pub fn new(answer: Message) -> Self {
        Self {
            finish_reason: answer.finish_reason.clone(),
            messages: vec![Arc::new(answer.clone())],
            model_answer: None,
            answer,
            usage: Usage::default(),
            cost: None,
            turns: 0,
            last_agent: Arc::default(),
            warnings: Vec::new(),
            context: Map::new(),
        }
    }

    /// Returns the [answer](Self#structfield.answer), which may have no text.
    #[must_use]
    pub const fn last_message(&self) -> &Message {
        &self.answer
    }

    /// Returns the last answer of the model, before layers of `agent.run` and output functions changed it. The history
    /// does not keep it. If a layer answered instead of the agent, this is the answer of the layer.
    #[must_use]
    pub fn model_answer(&self) -> &Message {
        let last = || self.messages.iter().rfind(|message| message.role == Role::Assistant);
        self.model_answer.as_ref().or_else(last).map_or(&self.answer, |message| message)
    }

    /// Replaces the last message of the model by the answer, as the history keeps it.
    pub(crate) fn end_with(&mut self, answer: Arc<Message>) {
        match self.messages.iter_mut().rfind(|message| message.role == Role::Assistant) {
            Some(last) if **last == *answer => {}
            Some(last) => self.model_answer = Some(std::mem::replace(last, answer)),
            None => self.messages.push(answer),
        }
    }

    /// Returns the name of the agent that gave the answer: the agent that was asked, or the last agent to which the
    /// conversation was transferred ([`Handoff`](crate::kinds::Handoff)).
    #[must_use]
    pub fn last_agent(&self) -> &str {
        &self.last_agent
    }

    /// Returns the text of the answer.
    #[must_use]
    pub fn text(&self) -> String {
        self.answer.text()
    }

    /// Returns all tool calls of the run, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.messages.iter().flat_map(|message| message.tool_calls())
    }
}

impl ChatOptions {
    /// Returns these options. An option that is not set is taken from `other`.
    pub(crate) fn or(&self, other: &Self) -> Self {
        let mut extra = other.extra.clone();
        extra.extend(self.extra.clone());
        Self {
            temperature: self.temperature.or(other.temperature),
            max_tokens: self.max_tokens.or(other.max_tokens),
            stop: if self.stop.is_empty() { other.stop.clone() } else { self.stop.clone() },
            seed: self.seed.or(other.seed),
            response_format: self.response_format.clone().or_else(|| other.response_format.clone()),
            tool_choice: self.tool_choice.clone().or_else(|| other.tool_choice.clone()),
            stream: self.stream.or(other.stream),
            extra,
        }
    }
}
