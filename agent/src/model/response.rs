//! The output of a model's run, and the pieces of a reply.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem::take;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::arguments::ToolCall;
use crate::message::is_false;
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
    #[serde(default, skip_serializing_if = "is_false")]
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

/// A piece of a provider's reply. The parts of the message are in the order in which their first pieces arrive.
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
        /// The number of the call, which all its pieces have. The calls of the response are in the order of their
        /// numbers. If texts or thoughts are between them, a place among those is taken by the first piece of a call.
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
                    let arguments = call.arguments_text().into_owned();
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
    // The calls so far with each id. Calls without an id are told apart by their position only.
    let mut seen: HashMap<&str, Vec<&ToolCall>> = HashMap::new();
    let mut repeated = Vec::new();
    for (position, part) in response.message.parts.iter().enumerate() {
        let Part::ToolCall(call) = part else { continue };
        if call.id.is_empty() {
            continue;
        }
        let same_id = seen.entry(&call.id).or_default();
        let is_same = |seen: &&ToolCall| seen.name == call.name && seen.arguments == call.arguments;
        if same_id.iter().any(is_same) {
            repeated.push((position, call.id.clone()));
        } else {
            same_id.push(call);
        }
    }
    let mut removed = repeated.iter().map(|(position, _)| *position).peekable();
    let mut position = 0;
    response.message.parts.retain(|_| {
        let is_repeated = removed.next_if_eq(&position).is_some();
        position += 1;
        !is_repeated
    });
    for (_, id) in repeated {
        response.warnings.push(format!("the server sent the call `{id}` twice: it is executed once"));
    }
}

/// Builds a response from pieces.
///
/// Invariant: the parts of the message are in the order in which their first pieces arrived. For each call there is a
/// part that keeps its place.
#[derive(Debug)]
pub(crate) struct ResponseBuilder {
    response: ChatResponse,
    calls: BTreeMap<usize, PartialCall>,
    /// The data that belongs to the calls, by their position. It is kept apart, because a stage may have removed a call.
    extras: BTreeMap<usize, Value>,
}

#[derive(Debug, Default)]
struct PartialCall {
    id: String,
    name: String,
    arguments: String,
    /// `true` for a call that does not become a part of the message.
    is_dropped: bool,
}

impl ResponseBuilder {
    pub(crate) fn new() -> Self {
        let response = ChatResponse::new(Message::new(Role::Assistant, []));
        Self { response, calls: BTreeMap::new(), extras: BTreeMap::new() }
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
                let call = self.calls.entry(index).or_insert_with(|| {
                    parts.push(Part::ToolCall(ToolCall::new("", "", Value::Null)));
                    PartialCall::default()
                });
                // Some servers repeat the id and the name in every piece, and some send empty strings after the first
                // piece.
                call.id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| take(&mut call.id));
                call.name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| take(&mut call.name));
                call.arguments.push_str(&arguments);
            }
            Delta::Signature { index: Some(index), extra } => drop(self.extras.insert(index, extra)),
            Delta::Signature { index: None, extra } => sign(parts, extra),
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
        sign_late_reasoning(parts);
        // The places of calls are taken in the order of their numbers, which is usually the order of their arrival.
        let mut calls = take(&mut self.calls).into_iter();
        for part in take(parts) {
            if !matches!(part, Part::ToolCall(_)) {
                parts.push(part);
                continue;
            }
            let Some((index, call)) = calls.next() else { continue };
            let PartialCall { id, name, arguments, is_dropped } = call;
            if !is_dropped {
                let extra = self.extras.remove(&index);
                parts.push(Part::ToolCall(ToolCall::parsed(id, name, &arguments, extra)));
            }
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
        let mut dropped = 0;
        for call in self.calls.values_mut().filter(|call| !is_complete(call)) {
            call.is_dropped = true;
            dropped += 1;
        }
        if dropped > 0 {
            let warning = format!("the stream was stopped: {dropped} incomplete tool calls were dropped");
            self.response.warnings.push(warning);
        }
        self.response.message.finish_reason = Some(FinishReason::Stopped);
        self.finish()
    }
}

/// Adds data to the last reasoning that has none. Without such reasoning, the data is a part of its own.
fn sign(parts: &mut Vec<Part>, data: Value) {
    let reasoning = parts.iter_mut().rev().find_map(|part| match part {
        Part::Reasoning { extra, .. } if extra.is_none() => Some(extra),
        _ => None,
    });
    match reasoning {
        Some(extra) => *extra = Some(data),
        None => parts.push(Part::reasoning("", Some(data))),
    }
}

/// Moves data to the reasoning that it belongs to, if a stage has kept the reasoning back until after the data.
fn sign_late_reasoning(parts: &mut Vec<Part>) {
    let mut waiting = VecDeque::new();
    for at in 0..parts.len() {
        match &parts[at] {
            Part::Reasoning { content, extra: Some(_) } if content.is_empty() => waiting.push_back(at),
            Part::Reasoning { extra: None, .. } => {
                let Some(Part::Reasoning { extra: data, .. }) = waiting.pop_front().map(|from| &mut parts[from]) else {
                    continue;
                };
                let data = data.take();
                if let Part::Reasoning { extra, .. } = &mut parts[at] {
                    *extra = data;
                }
            }
            _ => {}
        }
    }
    parts.retain(|part| !matches!(part, Part::Reasoning { content, extra: None } if content.is_empty()));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(index: usize, name: &str) -> Delta {
        Delta::tool_call(index, Some(format!("c{index}")), Some(name.to_owned()), "{}")
    }

    fn text(text: &str) -> Delta {
        Delta::Text(text.to_owned())
    }

    fn thought(text: &str) -> Delta {
        Delta::Reasoning(text.to_owned())
    }

    /// Shows each part of the message that pieces make.
    fn parts(deltas: impl IntoIterator<Item = Delta>, is_stopped: bool) -> Vec<String> {
        let mut builder = ResponseBuilder::new();
        deltas.into_iter().for_each(|delta| builder.push(delta));
        let response = if is_stopped { builder.stopped() } else { builder.finish() };
        let shown = response.message.parts.iter().map(|part| match part {
            Part::Text { content } => content.clone(),
            Part::Reasoning { content, extra } => format!("({content}) {}", extra.clone().unwrap_or_default()),
            Part::ToolCall(call) => format!("{} {}", call.name, call.extra.clone().unwrap_or_default()),
            other => format!("{other:?}"),
        });
        shown.collect()
    }

    #[test]
    fn the_parts_of_a_reply_keep_the_order_in_which_they_arrived() {
        let sign = |data: i32| Delta::signature(None, json!(data));
        let deltas = [thought("a"), sign(1), call(0, "x"), thought("b"), sign(2), text("t"), call(1, "y"), text("u")];
        let more = [Delta::tool_call(0, None, None, ""), Delta::signature(Some(1), json!(3))];
        let expected = ["(a) 1", "x null", "(b) 2", "t", "y 3", "u"];
        assert_eq!(parts(deltas.into_iter().chain(more), false), expected);
        // Several calls without a text between them are in the order of their numbers.
        assert_eq!(parts([call(1, "y"), call(0, "x"), text("t")], false), ["x null", "y null", "t"]);
        // A call that may be incomplete takes its place along.
        let cut = Delta::tool_call(0, None, Some("cut".to_owned()), "{");
        assert_eq!(parts([cut, text("t"), call(1, "y")], true), ["t", "y null"]);
    }

    #[test]
    fn of_two_signed_pieces_without_text_none_is_lost() {
        let sign = |data: i32| Delta::signature(None, json!(data));
        assert_eq!(parts([sign(1), sign(2)], false), ["() 1", "() 2"]);
        assert_eq!(parts([sign(1), call(0, "x"), sign(2), text("t")], false), ["() 1", "x null", "() 2", "t"]);
        assert_eq!(parts([thought("a"), sign(1), sign(2)], false), ["(a) 1", "() 2"]);
        // A stage may keep reasoning back until after its data.
        assert_eq!(parts([sign(1), text("t"), thought("a")], false), ["t", "(a) 1"]);
    }

    #[test]
    fn a_response_that_is_split_into_pieces_is_the_same_again() {
        let call =
            |id: &str| Part::ToolCall(ToolCall::parsed(id.to_owned(), "x".to_owned(), r#"{"b": 1, "a": 2}"#, None));
        let text = |content: &str| Part::Text { content: content.to_owned() };
        let signed = |data: i32| Part::reasoning("", Some(json!(data)));
        let message = Message::new(Role::Assistant, [signed(1), call("a"), text("t"), signed(2), call("b"), text("u")]);
        let mut builder = ResponseBuilder::new();
        Delta::of_response(ChatResponse::new(message.clone())).into_iter().for_each(|delta| builder.push(delta));
        let built = builder.finish().message;
        assert_eq!(built, message);
        assert!(built.tool_calls().all(|call| call.arguments_text() == r#"{"b": 1, "a": 2}"#));
    }
}
