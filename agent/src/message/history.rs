//! Conversations that cannot become invalid.
//!
//! Invariant: every tool call has exactly one result, in the messages directly after the message with the call, and
//! there are no other results. Providers refuse a conversation that breaks the invariant, and every continuation of
//! that conversation. Therefore, a model's response enters a [`History`] together with the results of all its calls
//! ([`OpenTurn`](crate::session::OpenTurn)), even if the turn is aborted or dropped.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::message::arguments::ToolCall;
use crate::message::{Message, Part, Role};
use crate::typed::shortened;

/// A conversation in which every tool call is followed by exactly one result.
///
/// A history may contain messages of every [`Role`](crate::Role). Clones share their messages. Deserializing checks the
/// messages as [`try_from`](Self::try_from) does.
///
/// ```
/// use emitree_agent::{History, Message, ToolCall, ToolResult};
/// use serde_json::json;
///
/// let asks = Message::assistant("").with_call(ToolCall::new("c1", "count", json!({})));
/// let answer = Message::tool([ToolResult::new("c1", 18)]);
///
/// let history = History::try_from(vec![Message::user("How many?"), asks.clone(), answer])?;
/// assert_eq!(history.messages().len(), 3);
///
/// let open = History::try_from(vec![Message::user("How many?"), asks]);
/// assert_eq!(open.unwrap_err().to_string(), "message 1 calls `count` (id `c1`), but no result follows");
/// # Ok::<(), emitree_agent::HistoryError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Message>", into = "Arc<Vec<Arc<Message>>>")]
pub struct History(pub(crate) Arc<Vec<Arc<Message>>>);

/// The reason why messages are not a valid [`History`]. Positions count from 0.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// A tool call has no result.
    #[error("message {position} calls `{}` (id `{}`), but no result follows", shortened(name), shortened(id))]
    Open {
        /// The position of the message with the call.
        position: usize,
        /// The tool's name.
        name: String,
        /// The call's id.
        id: String,
    },
    /// A result belongs to no call of the preceding model message, or its call already has a result.
    #[error(
        "message {position} has a result for the id `{}`, but the message before it has no such call, or the result occurs twice",
        shortened(id)
    )]
    Unasked {
        /// The position of the message with the result.
        position: usize,
        /// The result's id.
        id: String,
    },
    /// A tool call has no id, or the same id as another call in its message.
    #[error(
        "message {position} calls `{}` with the id `{}`, which is empty or occurs twice",
        shortened(name),
        shortened(id)
    )]
    Id {
        /// The position of the message with the call.
        position: usize,
        /// The tool's name.
        name: String,
        /// The call's id.
        id: String,
    },
    /// A message has a part that its role does not allow.
    #[error("message {position} has the role `{}`, which does not allow a {part}", role.as_str())]
    Part {
        /// The position of the message.
        position: usize,
        /// The message's role.
        role: Role,
        /// The kind of the part that is not allowed.
        part: &'static str,
    },
    /// A tool result has a part that is neither a text nor a reference to content.
    #[error(
        "message {position} has a result for the id `{}` with a {part}, but the parts of a result are texts and references to content",
        shortened(id)
    )]
    ResultPart {
        /// The position of the message with the result.
        position: usize,
        /// The result's id.
        id: String,
        /// The kind of the part that is not allowed.
        part: &'static str,
    },
    /// The message of a model's response does not have the role `assistant`.
    #[error("a model's response has the role `{}` instead of `assistant`", role.as_str())]
    Response {
        /// The message's role.
        role: Role,
    },
    /// A message has no content, and its role is not `assistant`.
    #[error("message {position} with the role `{}` is empty", role.as_str())]
    Empty {
        /// The position of the message.
        position: usize,
        /// The message's role.
        role: Role,
    },
}

impl History {
    /// Makes an empty conversation.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the messages.
    #[must_use]
    pub fn messages(&self) -> &[Arc<Message>] {
        &self.0
    }

    /// Returns the positions at which the history can be cut without separating a call from its results, in order: the
    /// messages before and after each of them are valid by themselves. The first position is 0, and the last one is the
    /// number of messages.
    ///
    /// ```
    /// use emitree_agent::{History, Message, ToolCall, ToolResult};
    /// use serde_json::json;
    ///
    /// let asks = Message::assistant("").with_call(ToolCall::new("c1", "count", json!({})));
    /// let result = Message::tool([ToolResult::new("c1", 18)]);
    /// let history = History::try_from(vec![Message::user("How many?"), asks, result])?;
    /// assert_eq!(history.boundaries().collect::<Vec<_>>(), [0, 1, 3]);
    /// # Ok::<(), emitree_agent::HistoryError>(())
    /// ```
    #[must_use]
    pub fn boundaries(&self) -> impl DoubleEndedIterator<Item = usize> {
        (0..=self.0.len()).filter(|&at| self.is_boundary(at))
    }

    pub(crate) fn is_boundary(&self, at: usize) -> bool {
        // Results stand directly behind the message with their calls, and nothing else does.
        at <= self.0.len() && self.0.get(at).is_none_or(|message| message.role != Role::Tool)
    }

    /// Replaces the first `end` messages.
    pub(crate) fn replace_first(
        &mut self,
        end: usize,
        with: impl IntoIterator<Item = Arc<Message>>,
    ) -> Result<(), HistoryError> {
        let rest = self.0[end..].iter().cloned();
        *self = Self::try_from(with.into_iter().chain(rest).collect::<Vec<_>>())?;
        Ok(())
    }

    /// Appends messages. They must be valid by themselves, so append a call and its result together.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid message, and appends nothing. Positions count from the first new
    /// message.
    pub fn extend(&mut self, messages: impl IntoIterator<Item = Message>) -> Result<(), HistoryError> {
        let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
        check(&messages)?;
        Arc::make_mut(&mut self.0).extend(messages);
        Ok(())
    }
}

impl TryFrom<Vec<Message>> for History {
    type Error = HistoryError;

    fn try_from(messages: Vec<Message>) -> Result<Self, HistoryError> {
        let mut history = Self::new();
        history.extend(messages)?;
        Ok(history)
    }
}

/// Checks the messages, and shares them instead of copying them.
impl TryFrom<Vec<Arc<Message>>> for History {
    type Error = HistoryError;

    fn try_from(messages: Vec<Arc<Message>>) -> Result<Self, HistoryError> {
        check(&messages)?;
        Ok(Self(Arc::new(messages)))
    }
}

impl From<History> for Arc<Vec<Arc<Message>>> {
    fn from(history: History) -> Self {
        history.0
    }
}

/// Checks the invariant of [`History`], the roles of parts, and that messages have content.
pub(crate) fn check(messages: &[Arc<Message>]) -> Result<(), HistoryError> {
    // The calls that have no result yet, by id, with their places. A list would cost quadratic time for many calls.
    let mut open = OpenCalls::new();
    for (position, message) in messages.iter().enumerate() {
        check_parts(position, message)?;
        if message.role == Role::Tool {
            for result in message.tool_results() {
                let unasked = || HistoryError::Unasked { position, id: result.id.clone() };
                open.remove(result.id.as_str()).ok_or_else(unasked)?;
            }
            continue;
        }
        // Any other message is valid only after the results of all open calls.
        check_closed(&open)?;
        let mut ids = HashSet::new();
        for call in message.tool_calls() {
            if call.id.is_empty() || !ids.insert(call.id.as_str()) {
                return Err(HistoryError::Id { position, name: call.name.clone(), id: call.id.clone() });
            }
        }
        let calls = message.tool_calls().enumerate();
        open = calls.map(|(place, call)| (call.id.as_str(), (position, place, call))).collect();
    }
    check_closed(&open)
}

/// Calls by id: the position of the message, the place of the call in the message, and the call.
type OpenCalls<'a> = HashMap<&'a str, (usize, usize, &'a ToolCall)>;

fn check_closed(open: &OpenCalls<'_>) -> Result<(), HistoryError> {
    match open.values().min_by_key(|(position, place, _)| (*position, *place)) {
        Some((position, _, call)) => {
            Err(HistoryError::Open { position: *position, name: call.name.clone(), id: call.id.clone() })
        }
        None => Ok(()),
    }
}

pub(crate) fn check_parts(position: usize, message: &Message) -> Result<(), HistoryError> {
    let role = message.role;
    // Only a model's message may be empty.
    if message.parts.is_empty() && role != Role::Assistant {
        return Err(HistoryError::Empty { position, role });
    }
    if let Some(part) = message.parts.iter().find_map(|part| disallowed(role, part)) {
        return Err(HistoryError::Part { position, role, part });
    }
    for result in message.tool_results() {
        if let Some(part) = result.parts.iter().find_map(disallowed_in_result) {
            return Err(HistoryError::ResultPart { position, id: result.id.clone(), part });
        }
    }
    Ok(())
}

/// Returns the kind of a part that the role does not allow.
pub(crate) fn disallowed(role: Role, part: &Part) -> Option<&'static str> {
    let is_allowed = match part {
        Part::ToolCall(_) | Part::Reasoning { .. } => role == Role::Assistant,
        Part::ToolCallResponse(_) => role == Role::Tool,
        Part::Text { .. } | Part::Uri { .. } => role != Role::Tool,
    };
    (!is_allowed).then(|| kind(part))
}

/// Returns the kind of a part that the result of a tool call does not allow.
pub(crate) fn disallowed_in_result(part: &Part) -> Option<&'static str> {
    (!matches!(part, Part::Text { .. } | Part::Uri { .. })).then(|| kind(part))
}

const fn kind(part: &Part) -> &'static str {
    match part {
        Part::ToolCall(_) => "tool call",
        Part::ToolCallResponse(_) => "tool result",
        Part::Text { .. } => "text",
        Part::Reasoning { .. } => "reasoning",
        Part::Uri { .. } => "reference to content",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ToolResult;

    #[test]
    fn invalid_messages_are_refused_with_their_index_and_leave_the_history_unchanged() {
        let asks = |id: &str| Message::assistant("").with_call(ToolCall::new(id, "t", json!({})));
        let gives = |id: &str| Message::tool([ToolResult::new(id, 1)]);
        let with_part = |id: &str, part| Message::tool([ToolResult { parts: vec![part], ..ToolResult::new(id, 1) }]);
        let table = [
            (vec![asks("a")], "message 0 calls `t` (id `a`), but no result follows"),
            (vec![asks("a"), Message::user("x"), gives("a")], "message 0 calls `t` (id `a`), but no result follows"),
            (
                vec![gives("a")],
                "message 0 has a result for the id `a`, but the message before it has no such call, or the result occurs twice",
            ),
            (
                vec![asks("a"), gives("a"), gives("a")],
                "message 2 has a result for the id `a`, but the message before it has no such call, or the result occurs twice",
            ),
            (vec![asks("")], "message 0 calls `t` with the id ``, which is empty or occurs twice"),
            (
                vec![asks("a").with_call(ToolCall::new("a", "u", json!({})))],
                "message 0 calls `u` with the id `a`, which is empty or occurs twice",
            ),
            (
                vec![Message::user("x").with_call(ToolCall::new("a", "t", json!({})))],
                "message 0 has the role `user`, which does not allow a tool call",
            ),
            (vec![Message::new(Role::User, [])], "message 0 with the role `user` is empty"),
            (
                vec![asks("a"), with_part("a", Part::reasoning("hm", None))],
                "message 1 has a result for the id `a` with a reasoning, but the parts of a result are texts and references to content",
            ),
            (
                vec![asks("a"), with_part("a", Part::ToolCallResponse(ToolResult::new("b", 1)))],
                "message 1 has a result for the id `a` with a tool result, but the parts of a result are texts and references to content",
            ),
        ];
        for (messages, says) in table {
            let mut history = History::try_from(vec![Message::user("before")]).expect("valid");
            assert_eq!(history.extend(messages).expect_err(says).to_string(), says);
            assert_eq!(history.messages().len(), 1);
        }
    }

    #[test]
    fn a_turn_with_many_results_costs_linear_time() {
        // With quadratic time, this test is terminated because it takes too long.
        const CALLS: usize = 200_000;
        let ids: Vec<_> = (0..CALLS).map(|id| id.to_string()).collect();
        let asks = |message: Message, id: &String| message.with_call(ToolCall::new(id, "t", json!({})));
        let mut messages = vec![ids.iter().fold(Message::assistant(""), asks)];
        messages.extend(ids.iter().rev().map(|id| Message::tool([ToolResult::new(id, 1)])));
        assert_eq!(History::try_from(messages).map(|history| history.messages().len()), Ok(CALLS + 1));
    }

    #[test]
    fn the_error_for_an_open_call_names_the_first_one_and_cuts_a_long_name() {
        let asks = |name: &str| {
            let message = Message::assistant("").with_call(ToolCall::new("a", "t", json!({})));
            let message = message.with_call(ToolCall::new("b", name, json!({})));
            let message = message.with_call(ToolCall::new("c", "u", json!({})));
            History::try_from(vec![message, Message::tool([ToolResult::new("a", 1)])]).expect_err("open").to_string()
        };
        assert_eq!(asks("v"), "message 0 calls `v` (id `b`), but no result follows");
        let long = asks(&"v".repeat(100_000));
        assert!(long.len() < 700 && long.ends_with("v` (id `b`), but no result follows"), "{long}");
    }

    #[test]
    fn arguments_round_trip_through_json_and_malformed_arguments_are_kept_verbatim() {
        for (text, shown) in [(r#"{"a":"#, r#"{"a":"#), (r#""a""#, r#""a""#), ("", "{}"), (" {\"a\": 1}", r#"{"a":1}"#)]
        {
            let call = ToolCall::new("c", "t", crate::Arguments::parse(text));
            assert_eq!(call.arguments.to_string(), shown);
            let json = serde_json::to_string(&call).expect("JSON");
            assert_eq!(serde_json::from_str::<ToolCall>(&json).expect(&json), call, "{json}");
        }
    }
}
