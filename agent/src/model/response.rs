//! The output of a model's run, and the pieces of a reply.

use std::collections::BTreeMap;
use std::mem::take;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::arguments::{Arguments, ToolCall};
use crate::message::usage::{FinishReason, Usage};
use crate::{Message, Part, Role};

/// The output of a [`ChatModel`](crate::ChatModel).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChatResponse {
    /// The answer. Its role is [`Role::Assistant`].
    pub message: Message,
    /// The token counts of the call, if the provider reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The cost of the call, if the provider reports tokens and the model has a [price](crate::ChatModel::price).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Decimal>,
    /// The name of the model that answered, which may be more specific than the requested name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The provider's id of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The response headers, with names in lower case.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Warnings about the response, for example about options that the provider ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// `true` if the provider itself has answered with neither text nor calls, whatever stages have added since.
    #[serde(skip)]
    pub(crate) is_empty: bool,
}

impl ChatResponse {
    /// Makes a response from a message. All other fields are empty.
    #[must_use]
    pub const fn new(message: Message) -> Self {
        Self {
            message,
            usage: None,
            cost: None,
            model: None,
            id: None,
            headers: BTreeMap::new(),
            warnings: Vec::new(),
            is_empty: false,
        }
    }

    /// Returns the text of the answer.
    #[must_use]
    pub fn text(&self) -> String {
        self.message.text()
    }

    /// Returns `true` if the responses have the same content. Counts and costs are not compared, because no stage and no
    /// guard protects them.
    pub(crate) fn is_same_reply(&self, other: &Self) -> bool {
        let Self { message, usage: _, cost: _, model, id, headers, warnings, is_empty: _ } = self;
        *message == other.message
            && *warnings == other.warnings
            && (model, id) == (&other.model, &other.id)
            && *headers == other.headers
    }
}

/// A piece of a provider's reply.
///
/// A provider that does not stream returns the whole reply as a few large pieces (see [`whole`](crate::whole)).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Delta {
    /// More text of the answer.
    Text(String),
    /// More reasoning.
    Reasoning(String),
    /// More of a tool call. The pieces of several calls may be interleaved. Made by [`Delta::tool_call`].
    #[non_exhaustive]
    ToolCall {
        /// The number of the call, which all its pieces have. The calls of the response are in the order of their numbers.
        index: usize,
        /// The call's id, usually only in the first piece of the call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The tool's name, usually only in the first piece of the call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// More text of the arguments.
        #[serde(default)]
        arguments: String,
    },
    /// Data that the provider needs back with a call or with reasoning. Made by [`Delta::signature`].
    #[non_exhaustive]
    Signature {
        /// The number of the call that the data belongs to, or `None` if the data belongs to the reasoning before
        /// this piece.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<usize>,
        /// The data, as in [`Part::Reasoning`] and [`ToolCall::extra`].
        extra: Value,
    },
    /// The response headers.
    Headers(BTreeMap<String, String>),
    /// The token counts. Later counts replace earlier counts.
    Usage(Usage),
    /// The reason why the model stopped.
    Finish(FinishReason),
    /// The id of the response and the model that answers. Made by [`Delta::response`].
    #[non_exhaustive]
    Response {
        /// The provider's id of the response.
        id: Option<String>,
        /// The model.
        model: Option<String>,
    },
    /// A warning from the provider.
    Warning(String),
}

impl Delta {
    /// Makes a [piece of a tool call](Self::ToolCall).
    pub fn tool_call(index: usize, id: Option<String>, name: Option<String>, arguments: impl Into<String>) -> Self {
        Self::ToolCall { index, id, name, arguments: arguments.into() }
    }

    /// Makes the piece with the [data that a provider needs back](Self::Signature).
    #[must_use]
    pub const fn signature(index: Option<usize>, extra: Value) -> Self {
        Self::Signature { index, extra }
    }

    /// Makes the piece with the [id of the response and the model](Self::Response).
    #[must_use]
    pub const fn response(id: Option<String>, model: Option<String>) -> Self {
        Self::Response { id, model }
    }

    /// Splits a whole response into pieces. The cost is left out, because [`ChatModel`](crate::ChatModel) computes it.
    /// References to content ([`Part::Uri`]) and tool results are left out, because no piece can contain them.
    #[must_use]
    pub fn of_response(response: ChatResponse) -> Vec<Self> {
        let ChatResponse { message, usage, model, id, headers, warnings, cost: _, is_empty: _ } = response;
        let mut deltas = Vec::new();
        if !headers.is_empty() {
            deltas.push(Self::Headers(headers));
        }
        if id.is_some() || model.is_some() {
            deltas.push(Self::Response { id, model });
        }
        let mut index = 0;
        for part in message.parts {
            match part {
                Part::Text { content } => deltas.push(Self::Text(content)),
                Part::Reasoning { content, extra } => {
                    deltas.push(Self::Reasoning(content));
                    deltas.extend(extra.map(|extra| Self::signature(None, extra)));
                }
                Part::ToolCall(call) => {
                    let arguments = call.arguments.to_string();
                    deltas.push(Self::tool_call(index, Some(call.id), Some(call.name), arguments));
                    deltas.extend(call.extra.map(|extra| Self::signature(Some(index), extra)));
                    index += 1;
                }
                // No piece can contain these parts.
                Part::ToolCallResponse(_) | Part::Uri { .. } => {}
            }
        }
        deltas.extend(usage.map(Self::Usage));
        deltas.extend(message.finish_reason.map(Self::Finish));
        deltas.extend(warnings.into_iter().map(Self::Warning));
        deltas
    }
}

/// Removes calls that a gateway has sent twice, with the same id, name and arguments, so that each is executed once. The
/// response gets a warning about them.
pub(crate) fn drop_repeated_calls(response: &mut ChatResponse) {
    let mut seen: Vec<ToolCall> = Vec::new();
    let mut repeated = Vec::new();
    response.message.parts.retain(|part| {
        let Part::ToolCall(call) = part else { return true };
        // Calls without an id are told apart by their position only.
        let is_repeated = !call.id.is_empty() && seen.iter().any(|seen| is_same_call(seen, call));
        if is_repeated {
            repeated.push(call.id.clone());
        } else {
            seen.push(call.clone());
        }
        !is_repeated
    });
    for id in repeated {
        let warning = format!("the server sent the call `{id}` twice: it is executed once");
        response.warnings.push(warning);
    }
}

fn is_same_call(one: &ToolCall, other: &ToolCall) -> bool {
    one.id == other.id && one.name == other.name && one.arguments == other.arguments
}

/// Builds a response from pieces.
#[derive(Debug)]
pub(crate) struct ResponseBuilder {
    response: ChatResponse,
    calls: BTreeMap<usize, PartialCall>,
    /// The data that belongs to the calls, by their position. It is kept apart, because a stage may have removed a call.
    extras: BTreeMap<usize, Value>,
    /// The data that belongs to reasoning of which no piece has arrived.
    waiting: Option<Value>,
}

#[derive(Debug, Default)]
struct PartialCall {
    id: String,
    name: String,
    arguments: String,
}

impl ResponseBuilder {
    pub(crate) fn new() -> Self {
        let response = ChatResponse::new(Message::new(Role::Assistant, []));
        Self { response, calls: BTreeMap::new(), extras: BTreeMap::new(), waiting: None }
    }

    pub(crate) fn push(&mut self, delta: Delta) {
        let response = &mut self.response;
        let parts = &mut response.message.parts;
        match delta {
            Delta::Text(text) => match parts.last_mut() {
                Some(Part::Text { content }) => content.push_str(&text),
                _ if text.is_empty() => {}
                _ => parts.push(Part::Text { content: text }),
            },
            Delta::Reasoning(text) => match parts.last_mut() {
                // Reasoning that follows data belongs to the next data.
                Some(Part::Reasoning { content, extra: None }) => content.push_str(&text),
                _ if text.is_empty() => {}
                _ => parts.push(Part::reasoning(text, None)),
            },
            Delta::ToolCall { index, id, name, arguments } => {
                let call = self.calls.entry(index).or_default();
                // Some servers repeat the id and the name in every piece, and some send empty strings after the first
                // piece.
                call.id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| take(&mut call.id));
                call.name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| take(&mut call.name));
                call.arguments.push_str(&arguments);
            }
            Delta::Signature { index: Some(index), extra } => drop(self.extras.insert(index, extra)),
            Delta::Signature { index: None, extra } => self.waiting = sign(parts, extra).or(self.waiting.take()),
            Delta::Headers(headers) => response.headers.extend(headers),
            Delta::Usage(usage) => response.usage = Some(usage),
            Delta::Finish(reason) => response.message.finish_reason = Some(reason),
            Delta::Response { id, model } => {
                response.id = id.or_else(|| response.id.take());
                response.model = model.or_else(|| response.model.take());
            }
            Delta::Warning(warning) => response.warnings.push(warning),
        }
    }

    /// Returns the id and the name of a call, as far as they have arrived.
    pub(crate) fn call(&self, index: usize) -> [&str; 2] {
        self.calls.get(&index).map_or([""; 2], |call| [&call.id, &call.name])
    }

    /// Builds the response from a reply that was received completely.
    pub(crate) fn finish(mut self) -> ChatResponse {
        let parts = &mut self.response.message.parts;
        // A stage may have kept the reasoning back until after its data. Data without reasoning is a part of its own.
        if let Some(extra) = self.waiting.take().and_then(|extra| sign(parts, extra)) {
            parts.insert(0, Part::reasoning("", Some(extra)));
        }
        for (index, PartialCall { id, name, arguments }) in take(&mut self.calls) {
            let extra = self.extras.remove(&index);
            parts.push(Part::ToolCall(ToolCall { id, name, arguments: Arguments::parse(&arguments), extra }));
        }
        self.response
    }

    /// Builds the response from a reply that a listener stopped. A call that may be incomplete is dropped, so that no
    /// tool runs with incomplete arguments.
    pub(crate) fn stopped(mut self) -> ChatResponse {
        // Arguments that parse as an object are complete. Other arguments may be incomplete: `1` may be the beginning
        // of `12`, and more text may follow empty text.
        let is_complete = |call: &PartialCall| {
            let is_whole = serde_json::from_str::<serde_json::Map<String, Value>>(&call.arguments).is_ok();
            !call.name.is_empty() && is_whole
        };
        let before = self.calls.len();
        self.calls.retain(|_, call| is_complete(call));
        let dropped = before - self.calls.len();
        if dropped > 0 {
            let warning = format!("the stream was stopped: {dropped} incomplete tool calls were dropped");
            self.response.warnings.push(warning);
        }
        self.response.message.finish_reason = Some(FinishReason::Stopped);
        self.finish()
    }
}

/// Adds data to the last reasoning that has none. Returns the data if there is no such reasoning.
fn sign(parts: &mut [Part], data: Value) -> Option<Value> {
    let reasoning = parts.iter_mut().rev().find_map(|part| match part {
        Part::Reasoning { extra, .. } if extra.is_none() => Some(extra),
        _ => None,
    });
    match reasoning {
        Some(extra) => {
            *extra = Some(data);
            None
        }
        None => Some(data),
    }
}
