//! The input of a model's run.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::typed::schema_of;
use crate::{Message, Role};

/// The input of a [`ChatModel`](crate::ChatModel): a conversation, the tools that the model may call, and options.
///
/// Clones of a request share its messages and tools.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChatRequest {
    /// The system prompt. Providers send it before the messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The conversation.
    pub messages: Arc<Vec<Arc<Message>>>,
    /// The tools that the model may call.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub tools: Arc<Vec<ToolSpec>>,
    /// Options of this call, such as the temperature.
    #[serde(default)]
    pub options: ChatOptions,
}

fn is_empty(tools: &Arc<Vec<ToolSpec>>) -> bool {
    tools.is_empty()
}

impl ChatRequest {
    /// Returns `true` if the other request is equal. Shared messages and tools are not compared: a conversation may be
    /// long.
    pub(crate) fn is_same_request(&self, other: &Self) -> bool {
        let Self { system, messages, tools, options } = self;
        (Arc::ptr_eq(messages, &other.messages) || *messages == other.messages)
            && (Arc::ptr_eq(tools, &other.tools) || *tools == other.tools)
            && (system, options) == (&other.system, &other.options)
    }

    /// Makes a request from messages, without a system prompt, tools or options.
    pub fn new(messages: impl IntoIterator<Item = Message>) -> Self {
        let messages = Arc::new(messages.into_iter().map(Arc::new).collect());
        Self { messages, ..Self::default() }
    }

    /// Returns the text of the last user message, or an empty string if there is no user message.
    #[must_use]
    pub fn last_user_text(&self) -> String {
        self.messages
            .iter()
            .rev()
            .find(|message| message.role == Role::User)
            .map_or_else(String::new, |message| message.text())
    }

    /// Returns the sum of the [lengths](Message::text_len) of the messages, for limits and estimates.
    #[must_use]
    pub fn text_len(&self) -> usize {
        self.messages.iter().map(|message| message.text_len()).sum()
    }
}

/// Makes a request with one message.
impl From<Message> for ChatRequest {
    fn from(message: Message) -> Self {
        Self::new([message])
    }
}

/// Makes a request with one user message.
impl From<&str> for ChatRequest {
    fn from(text: &str) -> Self {
        Self::new([Message::user(text)])
    }
}

/// Describes a tool to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolSpec {
    /// The name by which the model calls the tool.
    pub name: String,
    /// The purpose of the tool. The model uses it to decide whether to call the tool.
    pub description: String,
    /// The JSON Schema of the arguments.
    pub parameters: Value,
}

impl ToolSpec {
    /// Makes the description of a tool.
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: impl Into<Value>) -> Self {
        Self { name: name.into(), description: description.into(), parameters: parameters.into() }
    }
}

/// Options of a model call. For an option that is not set, the provider's default applies.
///
/// ```
/// use emitree_agent::{ChatOptions, ToolChoice};
///
/// let options = ChatOptions::new().temperature(0.0).max_tokens(200).tool_choice(ToolChoice::Required);
/// assert_eq!(options.max_tokens, Some(200));
///
/// let options = options.extra("reasoning_effort", "low");
/// assert_eq!(options.extra["reasoning_effort"], "low");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ChatOptions {
    /// The randomness of the answer, usually from 0 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// The maximum number of tokens in the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Texts at which the model stops.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// The seed of the randomness, for providers that support it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The required format of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_format: Option<ResponseFormat>,
    /// The tools that the model may or must call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// `Some(true)` to stream the answer: the model's run emits [`NewToken`](crate::NewToken) for each piece of text
    /// or reasoning. With `None`, the answer is not streamed. A run's `Some(false)` overrides an agent's `Some(true)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Options that only some providers support, by name. See [`extra`](Self::extra()).
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

impl ChatOptions {
    /// Makes empty options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the [randomness](Self#structfield.temperature) of the answer.
    #[must_use]
    pub const fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Sets the maximum number of tokens in the answer.
    #[must_use]
    pub const fn max_tokens(mut self, max_tokens: u64) -> Self {
        self.max_tokens = Some(max_tokens);
        self
    }

    /// Sets the texts at which the model stops.
    #[must_use]
    pub fn stop<T: Into<String>>(mut self, texts: impl IntoIterator<Item = T>) -> Self {
        self.stop = texts.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the seed of the randomness.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the required format of the answer.
    #[must_use]
    pub fn response_format(mut self, format: ResponseFormat) -> Self {
        self.response_format = Some(format);
        self
    }

    /// Sets the tools that the model may or must call.
    #[must_use]
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = Some(choice);
        self
    }

    /// Sets [whether the answer is streamed](Self#structfield.stream).
    #[must_use]
    pub const fn stream(mut self, stream: bool) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Adds an option that only some providers support. `OpenAi` adds the option to the body of the request. The value
    /// `null` instead removes the field of that name from the body.
    #[must_use]
    pub fn extra(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.insert(name.into(), value.into());
        self
    }
}

/// The format of a model's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ResponseFormat {
    /// Any text.
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that matches a schema.
    JsonSchema {
        /// The schema's name.
        name: String,
        /// The JSON Schema.
        schema: Value,
    },
}

impl ResponseFormat {
    /// Makes the format for JSON that deserializes into a Rust type.
    #[must_use]
    pub fn of<T: JsonSchema>() -> Self {
        Self::JsonSchema { name: T::schema_name().into_owned(), schema: schema_of::<T>() }
    }
}

/// The tools that a model may or must call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolChoice {
    /// The model decides whether to call tools.
    Auto,
    /// The model must not call a tool.
    None,
    /// The model must call at least one tool.
    Required,
    /// The model must call the tool with that name.
    Tool(String),
}
