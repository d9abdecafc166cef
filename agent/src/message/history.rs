//! Conversations that cannot become invalid.
//!
//! Invariant: every tool call is followed, in the messages right after its own, by exactly one result, and there is no
//! other result. Providers refuse a conversation that breaks it, and would refuse every later call as well. So a model's
//! response enters a [`History`] together with the results of all its calls ([`OpenTurn`]), even if the turn is aborted or dropped.

use std::collections::HashSet;
use std::mem::take;
use std::sync::Arc;

use emitree_emitter::new_id;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::message::arguments::ToolCall;
use crate::message::{Message, Part, Role, ToolResult};
use crate::place::state::Slices;

/// A conversation in which every tool call is followed by exactly one result.
///
/// It holds what users, models and tools said. Clones share their messages. Deserializing checks the messages as
/// [`try_from`](Self::try_from) does.
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
/// assert_eq!(open.unwrap_err().to_string(), "message 1 calls `count` (id `c1`), and no result follows");
/// # Ok::<(), emitree_agent::HistoryError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Message>", into = "Arc<Vec<Arc<Message>>>")]
pub struct History(Arc<Vec<Arc<Message>>>);

/// The reason why messages are not a valid [`History`]. Positions count from 0.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// A tool call has no result.
    #[error("message {position} calls `{name}` (id `{id}`), and no result follows")]
    Open {
        /// The position of the message that calls.
        position: usize,
        /// The tool's name.
        name: String,
        /// The call's id.
        id: String,
    },
    /// A result belongs to no call of the message before it.
    #[error(
        "message {position} has a result for the id `{id}`, which the message before it does not call, or has twice"
    )]
    Unasked {
        /// The position of the message with the result.
        position: usize,
        /// The result's id.
        id: String,
    },
    /// A tool call has no id, or the id of another call of its message.
    #[error("message {position} calls `{name}` with the id `{id}`, which is empty or occurs twice")]
    Id {
        /// The position of the message that calls.
        position: usize,
        /// The tool's name.
        name: String,
        /// The call's id.
        id: String,
    },
    /// A part is of a kind that messages of this role do not have.
    #[error("message {position} is of the role `{}` and has a {part}", role.as_str())]
    Part {
        /// The position of the message.
        position: usize,
        /// The message's role.
        role: Role,
        /// The kind of part.
        part: &'static str,
    },
    /// A message has no content.
    #[error("message {position} of the role `{}` is empty", role.as_str())]
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
    pub const fn messages(&self) -> &Arc<Vec<Arc<Message>>> {
        &self.0
    }

    /// Appends messages. They have to be valid by themselves: a call and its result are appended together.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first message that is not valid, and appends nothing. Positions count
    /// from the first new message.
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

impl From<History> for Arc<Vec<Arc<Message>>> {
    fn from(history: History) -> Self {
        history.0
    }
}

/// Checks the invariant.
fn check(messages: &[Arc<Message>]) -> Result<(), HistoryError> {
    // The calls of the last message that made any, until all of them have their results.
    let mut open: Vec<(usize, &ToolCall)> = Vec::new();
    for (position, message) in messages.iter().enumerate() {
        check_parts(position, message)?;
        if message.role == Role::Tool {
            for result in message.tool_results() {
                let unasked = || HistoryError::Unasked { position, id: result.id.clone() };
                let call = open.iter().position(|(_, call)| call.id == result.id).ok_or_else(unasked)?;
                open.remove(call);
            }
            continue;
        }
        // Anything but a result comes after the last result.
        check_closed(&open)?;
        let mut ids = HashSet::new();
        for call in message.tool_calls() {
            if call.id.is_empty() || !ids.insert(call.id.as_str()) {
                return Err(HistoryError::Id { position, name: call.name.clone(), id: call.id.clone() });
            }
        }
        open = message.tool_calls().map(|call| (position, call)).collect();
    }
    check_closed(&open)
}

fn check_closed(open: &[(usize, &ToolCall)]) -> Result<(), HistoryError> {
    match open.first() {
        Some((position, call)) => {
            Err(HistoryError::Open { position: *position, name: call.name.clone(), id: call.id.clone() })
        }
        None => Ok(()),
    }
}

fn check_parts(position: usize, message: &Message) -> Result<(), HistoryError> {
    let role = message.role;
    // A model may have nothing to say. Nobody else has a reason to send that.
    if message.parts.is_empty() && role != Role::Assistant {
        return Err(HistoryError::Empty { position, role });
    }
    let of_others = |part: &Part| match part {
        Part::ToolCall(_) => (role != Role::Assistant).then_some("tool call"),
        Part::ToolCallResponse(_) => (role != Role::Tool).then_some("tool result"),
        Part::Text { .. } => (role == Role::Tool).then_some("text"),
        Part::Reasoning { .. } => (role != Role::Assistant).then_some("reasoning"),
        Part::Uri { .. } => (role == Role::Tool).then_some("reference to content"),
    };
    match message.parts.iter().find_map(of_others) {
        Some(part) => Err(HistoryError::Part { position, role, part }),
        None => Ok(()),
    }
}

/// A [`History`] that outlives runs: what was said stays, also when a run fails, is aborted or dropped. It keeps the
/// [`State`](crate::State) of middlewares as well.
///
/// Clones are the same session. Runs of one session at the same time are safe: each turn enters whole, in the order in
/// which the turns end.
#[derive(Clone, Debug, Default)]
pub struct Session {
    history: Arc<Mutex<History>>,
    slices: Slices,
}

impl Session {
    /// Makes an empty session.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the conversation so far.
    #[must_use]
    pub fn history(&self) -> History {
        self.history.lock().clone()
    }

    /// Appends messages, as [`History::extend`].
    ///
    /// # Errors
    ///
    /// As [`History::extend`].
    pub fn extend(&self, messages: impl IntoIterator<Item = Message>) -> Result<(), HistoryError> {
        // Messages are collected before the lock is taken: the iterator is foreign code.
        let messages: Vec<_> = messages.into_iter().collect();
        self.history.lock().extend(messages)
    }

    /// Sets the conversation.
    pub(crate) fn replace(&self, history: History) {
        *self.history.lock() = history;
    }

    /// Returns the state of middlewares.
    pub(crate) const fn slices(&self) -> &Slices {
        &self.slices
    }

    /// Begins a turn with a model's response. It enters when the turn is dropped.
    pub(crate) fn open(&self, mut response: Message) -> OpenTurn {
        give_ids(&mut response);
        let results = response.tool_calls().map(|_| None).collect();
        OpenTurn {
            session: self.clone(),
            response: Arc::new(response),
            results,
            unanswered: "not executed: the run was stopped",
            injected: Vec::new(),
        }
    }
}

impl From<History> for Session {
    fn from(history: History) -> Self {
        Self { history: Arc::new(Mutex::new(history)), slices: Slices::default() }
    }
}

/// Gives calls fresh ids where small servers repeat them or leave them out.
fn give_ids(response: &mut Message) {
    let mut ids = HashSet::new();
    for part in &mut response.parts {
        if let Part::ToolCall(call) = part
            && (call.id.is_empty() || ids.contains(&call.id))
        {
            call.id = format!("call_{}", new_id().simple());
        }
        if let Part::ToolCall(call) = part {
            ids.insert(call.id.clone());
        }
    }
}

/// A response whose calls are being answered. Made before anything is done with the calls; its drop completes the turn,
/// so that a run that fails, is aborted or dropped leaves a valid history.
///
/// Results are set by the position of their call, because ids are the provider's and not to be relied on.
#[derive(Debug)]
pub(crate) struct OpenTurn {
    session: Session,
    response: Arc<Message>,
    results: Vec<Option<ToolResult>>,
    unanswered: &'static str,
    injected: Vec<Message>,
}

impl OpenTurn {
    /// Returns the response as it will be kept: its calls have unique ids.
    pub(crate) const fn response(&self) -> &Arc<Message> {
        &self.response
    }

    /// Answers the call at that position. The last answer counts.
    pub(crate) fn answer(&mut self, position: usize, result: ToolResult) {
        self.results[position] = Some(result);
    }

    /// Sets the result of calls that get no other.
    pub(crate) const fn answer_others(&mut self, text: &'static str) {
        self.unanswered = text;
    }

    /// Appends messages behind the results. They must not be of tools or call any.
    pub(crate) fn inject(&mut self, messages: Vec<Message>) -> Result<(), HistoryError> {
        check(&messages.iter().cloned().map(Arc::new).collect::<Vec<_>>())?;
        self.injected.extend(messages);
        Ok(())
    }
}

impl Drop for OpenTurn {
    fn drop(&mut self) {
        let unanswered = self.unanswered;
        let results = self.response.tool_calls().zip(take(&mut self.results)).map(|(call, result)| {
            let mut result = result.unwrap_or_else(|| ToolResult::error("", unanswered));
            // Whatever id a hook wrote: the result is the one of this call.
            result.id.clone_from(&call.id);
            Arc::new(Message::tool([result]))
        });
        let mut messages = vec![Arc::clone(&self.response)];
        messages.extend(results);
        messages.extend(take(&mut self.injected).into_iter().map(Arc::new));
        Arc::make_mut(&mut self.session.history.lock().0).extend(messages);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// One step of a conversation as it goes wrong.
    #[derive(Clone, Debug)]
    enum Step {
        Says(String),
        /// A response with calls of these ids; of each, whether it is answered before the turn ends. A panic ends it
        /// after the answers.
        Turn {
            calls: Vec<(String, bool)>,
            panics: bool,
            injects: bool,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        let id = prop_oneof![Just(String::new()), "[ab]".prop_map(|id| id)];
        let turn = (vec((id, any::<bool>()), 0..5), any::<bool>(), any::<bool>());
        prop_oneof![
            "[a-z]{1,3}".prop_map(Step::Says),
            turn.prop_map(|(calls, panics, injects)| Step::Turn { calls, panics, injects }),
        ]
    }

    proptest! {
        #[test]
        fn whatever_ends_a_turn_each_call_has_exactly_one_result(steps in vec(step(), 0..12)) {
            let session = Session::new();
            let mut expected = 0;
            for step in steps {
                match step {
                    Step::Says(text) => {
                        session.extend([Message::user(text)]).expect("text is valid");
                        expected += 1;
                    }
                    Step::Turn { calls, panics, injects } => {
                        let response = calls.iter().fold(Message::assistant("so"), |message, (id, _)| {
                            message.with_call(ToolCall::new(id, "t", json!({})))
                        });
                        let shared = session.clone();
                        let turn = std::panic::AssertUnwindSafe(|| {
                            let mut turn = shared.open(response);
                            for (at, (_, is_answered)) in calls.iter().enumerate() {
                                if *is_answered {
                                    turn.answer(at, ToolResult::new("another id", at));
                                }
                            }
                            if injects {
                                turn.inject(vec![Message::user("and")]).expect("text is valid");
                            }
                            assert!(!panics, "the turn ends so");
                        });
                        let _ = std::panic::catch_unwind(turn);
                        expected += 1 + calls.len() + usize::from(injects);
                    }
                }
            }
            let history = session.history();
            prop_assert_eq!(history.messages().len(), expected);
            prop_assert_eq!(check(history.messages()), Ok(()));
            let json = serde_json::to_value(&history).expect("JSON");
            prop_assert_eq!(serde_json::from_value::<History>(json).expect("a valid history"), history);
        }
    }

    #[test]
    fn what_is_not_valid_is_refused_with_its_place_and_changes_nothing() {
        let asks = |id: &str| Message::assistant("").with_call(ToolCall::new(id, "t", json!({})));
        let gives = |id: &str| Message::tool([ToolResult::new(id, 1)]);
        let table = [
            (vec![asks("a")], "message 0 calls `t` (id `a`), and no result follows"),
            (vec![asks("a"), Message::user("x"), gives("a")], "message 0 calls `t` (id `a`), and no result follows"),
            (
                vec![gives("a")],
                "message 0 has a result for the id `a`, which the message before it does not call, or has twice",
            ),
            (
                vec![asks("a"), gives("a"), gives("a")],
                "message 2 has a result for the id `a`, which the message before it does not call, or has twice",
            ),
            (vec![asks("")], "message 0 calls `t` with the id ``, which is empty or occurs twice"),
            (
                vec![asks("a").with_call(ToolCall::new("a", "u", json!({})))],
                "message 0 calls `u` with the id `a`, which is empty or occurs twice",
            ),
            (
                vec![Message::user("x").with_call(ToolCall::new("a", "t", json!({})))],
                "message 0 is of the role `user` and has a tool call",
            ),
            (vec![Message::new(Role::User, [])], "message 0 of the role `user` is empty"),
        ];
        for (messages, says) in table {
            let mut history = History::try_from(vec![Message::user("before")]).expect("valid");
            assert_eq!(history.extend(messages).expect_err(says).to_string(), says);
            assert_eq!(history.messages().len(), 1);
        }
    }

    #[test]
    fn malformed_arguments_are_kept_as_they_are_and_are_no_json_string() {
        for (text, shown) in [(r#"{"a":"#, r#"{"a":"#), (r#""a""#, r#""a""#), ("", "{}"), (" {\"a\": 1}", r#"{"a":1}"#)]
        {
            let call = ToolCall::new("c", "t", crate::Arguments::parse(text));
            assert_eq!(call.arguments.to_string(), shown);
            let json = serde_json::to_string(&call).expect("JSON");
            assert_eq!(serde_json::from_str::<ToolCall>(&json).expect(&json), call, "{json}");
        }
    }
}
