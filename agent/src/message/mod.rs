//! The messages between a user, a model and its tools.

pub(crate) mod arguments;
mod extra;
pub(crate) mod history;
pub(crate) mod repair;
pub(crate) mod turn;
pub(crate) mod usage;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::arguments::ToolCall;
use crate::message::usage::FinishReason;

/// The author of a [`Message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// The author of the instructions for the model.
    System,
    /// The person or program that uses the model.
    User,
    /// The model.
    Assistant,
    /// A tool that the model called.
    Tool,
}

impl Role {
    /// Returns the role's name in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One message of a conversation.
///
/// In JSON a message has the shape of OpenTelemetry's GenAI conventions, which trace viewers read:
///
/// ```
/// use emitree_agent::{Message, ToolCall};
/// use serde_json::json;
///
/// let asks = Message::assistant("Let me look.").with_call(ToolCall::new("c1", "count", json!({"path": "README.md"})));
/// assert_eq!(
///     serde_json::to_value(&asks)?,
///     json!({
///         "role": "assistant",
///         "parts": [
///             {"type": "text", "content": "Let me look."},
///             {"type": "tool_call", "id": "c1", "name": "count", "arguments": {"path": "README.md"}},
///         ],
///     })
/// );
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The content, in order.
    pub parts: Vec<Part>,
    /// The reason why the model stopped, if this is a model's message and the reason is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
}

/// A piece of a [`Message`], or of a [`ToolResult`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
    /// Text.
    Text {
        /// The text.
        content: String,
    },
    /// A model's request to call a tool.
    ToolCall(ToolCall),
    /// The result of a tool call.
    ToolCallResponse(ToolResult),
    /// The part of a model's reasoning that the provider reveals. Made by [`Part::reasoning`].
    #[non_exhaustive]
    Reasoning {
        /// The reasoning.
        content: String,
        /// Data that the provider needs back with the message, such as a signature. Only the provider that made the
        /// data reads it. In JSON it is a list of bytes, so that middleware does not search it; data that is nested
        /// more than 64 levels deep is left out.
        #[serde(default, with = "extra", skip_serializing_if = "extra::is_left_out")]
        extra: Option<Value>,
    },
    /// A reference to an image, a sound or a file.
    Uri {
        /// The kind of content, such as `image`, `audio`, `video` or `document`.
        modality: String,
        /// The media type, such as `image/png`, if it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
        /// The address of the content. A `data:` URI contains the content itself.
        uri: String,
    },
}

impl Part {
    /// Makes a [reasoning part](Self::Reasoning), with the data that the provider needs back.
    pub fn reasoning(content: impl Into<String>, extra: Option<Value>) -> Self {
        Self::Reasoning { content: content.into(), extra }
    }

    /// Returns the number of bytes in the text, reasoning, arguments, result or URI.
    fn text_len(&self) -> usize {
        match self {
            Self::Text { content } | Self::Reasoning { content, .. } => content.len(),
            Self::ToolCall(call) => call.arguments.to_string().len(),
            Self::ToolCallResponse(result) => {
                let response = result.response.as_str().map_or_else(|| result.response.to_string().len(), str::len);
                response + result.parts.iter().map(Self::text_len).sum::<usize>()
            }
            Self::Uri { uri, .. } => uri.len(),
        }
    }
}

/// The result of a tool call, as the model reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolResult {
    /// The id of the [`ToolCall`].
    pub id: String,
    /// The result: text or another JSON value.
    pub response: Value,
    /// Texts, images, sounds and files beside the response, in order: [`Part::Text`] and [`Part::Uri`] only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// `true` if the call failed. The response then explains the failure.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_error: bool,
}

impl ToolResult {
    /// Makes the result of a call that succeeded.
    pub fn new(id: impl Into<String>, response: impl Into<Value>) -> Self {
        Self { id: id.into(), response: response.into(), parts: Vec::new(), is_error: false }
    }

    /// Makes the result of a call that failed.
    pub fn error(id: impl Into<String>, message: impl Into<String>) -> Self {
        Self { id: id.into(), response: Value::String(message.into()), parts: Vec::new(), is_error: true }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
pub(crate) const fn is_false(value: &bool) -> bool {
    !*value
}

impl Message {
    /// Makes a message from parts.
    pub fn new(role: Role, parts: impl IntoIterator<Item = Part>) -> Self {
        Self { role, parts: parts.into_iter().collect(), finish_reason: None }
    }

    fn of_text(role: Role, text: impl Into<String>) -> Self {
        Self::new(role, [Part::Text { content: text.into() }])
    }

    /// Makes a system message.
    pub fn system(text: impl Into<String>) -> Self {
        Self::of_text(Role::System, text)
    }

    /// Makes a user's message.
    pub fn user(text: impl Into<String>) -> Self {
        Self::of_text(Role::User, text)
    }

    /// Makes a model's message. With empty text, the message has no parts. Use empty text for a message that only calls
    /// tools.
    pub fn assistant(text: impl Into<String>) -> Self {
        let content = text.into();
        Self::new(Role::Assistant, (!content.is_empty()).then_some(Part::Text { content }))
    }

    /// Makes a message from tool results.
    pub fn tool(results: impl IntoIterator<Item = ToolResult>) -> Self {
        Self::new(Role::Tool, results.into_iter().map(Part::ToolCallResponse))
    }

    /// Appends a tool call.
    #[must_use]
    pub fn with_call(mut self, call: ToolCall) -> Self {
        self.parts.push(Part::ToolCall(call));
        self
    }

    /// Returns the text of the message: its text parts, joined without a separator. Reasoning is not included.
    #[must_use]
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            Part::Text { content } => Some(content.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Returns the number of bytes in the text, reasoning, arguments, results with their parts, and URIs of the message,
    /// for limits and estimates.
    #[must_use]
    pub fn text_len(&self) -> usize {
        self.parts.iter().map(Part::text_len).sum()
    }

    /// Returns the tool calls in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolCall(call) => Some(call),
            _ => None,
        })
    }

    /// Returns the results of tool calls in order.
    pub fn tool_results(&self) -> impl Iterator<Item = &ToolResult> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolCallResponse(result) => Some(result),
            _ => None,
        })
    }
}

/// Makes a user's message.
impl From<&str> for Message {
    fn from(text: &str) -> Self {
        Self::user(text)
    }
}

/// Makes a user's message.
impl From<String> for Message {
    fn from(text: String) -> Self {
        Self::user(text)
    }
}
