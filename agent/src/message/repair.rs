//! Making a valid [`History`] from messages that are none, such as messages that another program has stored.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use emitree_emitter::new_id;

use crate::message::history::{History, check, disallowed, disallowed_in_result};
use crate::message::{Message, Part, Role, ToolResult};
use crate::typed::shortened;

/// A change that [`History::repair`] made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repair {
    /// The position of the message that was repaired, from 0, in the messages that were passed to `repair`.
    pub position: usize,
    /// The change.
    pub kind: RepairKind,
}

/// The kind of a [`Repair`]. Ids are as they were before the repair.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepairKind {
    /// A call had no result: an error result was added.
    AddedResult {
        /// The id of the call.
        id: String,
    },
    /// A result was moved behind the message with its call.
    MovedResult {
        /// The id of the result.
        id: String,
        /// The position of the message with the call.
        call: usize,
    },
    /// A result without a call, or a second result, was removed.
    RemovedResult {
        /// The id of the result.
        id: String,
    },
    /// A call with an empty id, or with the id of an earlier call of its message, got a new id.
    NewId {
        /// The earlier id.
        before: String,
        /// The new id, also of the call's result.
        after: String,
    },
    /// A part that the role does not allow was removed.
    RemovedPart {
        /// The kind of the part.
        part: &'static str,
    },
    /// A part of a result that is neither a text nor a reference to content was removed.
    RemovedResultPart {
        /// The id of the result.
        id: String,
        /// The kind of the part.
        part: &'static str,
    },
    /// A message without content was removed. Its role is not `assistant`.
    RemovedMessage {
        /// The message's role.
        role: Role,
    },
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {}: ", self.position)?;
        match &self.kind {
            RepairKind::AddedResult { id } => write!(f, "added a result for the call `{}`", shortened(id)),
            RepairKind::MovedResult { id, call } => {
                write!(f, "moved the result `{}` behind its call in message {call}", shortened(id))
            }
            RepairKind::RemovedResult { id } => write!(f, "removed the result `{}`, which has no call", shortened(id)),
            RepairKind::NewId { before, after } => {
                write!(f, "replaced the id `{}` of a call with `{after}`", shortened(before))
            }
            RepairKind::RemovedPart { part } => write!(f, "removed a {part}, which the role does not allow"),
            RepairKind::RemovedResultPart { id, part } => {
                write!(f, "removed a {part} from the result `{}`, which does not allow it", shortened(id))
            }
            RepairKind::RemovedMessage { role } => {
                write!(f, "removed the message with the role `{}`, which is empty", role.as_str())
            }
        }
    }
}

impl History {
    /// Makes a history from any messages, and returns what it changed, in the order of the changes. Valid messages are
    /// not changed.
    ///
    /// - A call without a result gets the error result "no result was recorded".
    /// - A result that does not stand behind the message with its call is moved there. If several calls have its id, it
    ///   belongs to the first call without a result. A result without a call, or before its call, is removed.
    /// - A call with an empty id, or with the id of an earlier call of its message, gets a new id. Its result is the
    ///   next result with the earlier id.
    /// - Parts that the role of their message does not allow are removed, and so are parts of a result that are neither
    ///   texts nor references to content. Empty messages are removed, unless a model wrote them.
    ///
    /// ```
    /// use emitree_agent::{History, Message, ToolCall};
    /// use serde_json::json;
    ///
    /// let asks = Message::assistant("").with_call(ToolCall::new("c1", "count", json!({})));
    /// let (history, repairs) = History::repair([asks, Message::user("Go on.")]);
    /// assert_eq!(history.messages()[1].tool_results().next().unwrap().response, "no result was recorded");
    /// assert_eq!(repairs[0].to_string(), "message 0: added a result for the call `c1`");
    /// ```
    pub fn repair(messages: impl IntoIterator<Item = Message>) -> (Self, Vec<Repair>) {
        let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
        if check(&messages).is_ok() {
            return (Self(Arc::new(messages)), Vec::new());
        }
        let mut repairing = Repairing::default();
        for (position, message) in messages.into_iter().enumerate() {
            repairing.take(position, Arc::unwrap_or_clone(message));
        }
        repairing.finish()
    }
}

#[derive(Default)]
struct Repairing {
    slots: Vec<Slot>,
    /// The calls with each id, in order: the position of the slot, and of the call in the slot. Calls whose result was
    /// found meanwhile stay in the list until they are its first ones.
    by_id: HashMap<String, VecDeque<(usize, usize)>>,
    repairs: Vec<Repair>,
}

/// A message that is no tool message, and the results behind it.
struct Slot {
    position: usize,
    message: Message,
    calls: Vec<Call>,
    /// The calls of this slot with each id.
    by_id: HashMap<String, VecDeque<usize>>,
    behind: Vec<Message>,
}

struct Call {
    /// The id before it was replaced.
    before: String,
    id: String,
    has_result: bool,
}

impl Repairing {
    fn note(&mut self, position: usize, kind: RepairKind) {
        self.repairs.push(Repair { position, kind });
    }

    fn take(&mut self, position: usize, mut message: Message) {
        let role = message.role;
        message.parts.retain(|part| {
            let part = disallowed(role, part);
            self.repairs.extend(part.map(|part| Repair { position, kind: RepairKind::RemovedPart { part } }));
            part.is_none()
        });
        for part in &mut message.parts {
            let Part::ToolCallResponse(result) = part else { continue };
            for part in result.parts.extract_if(.., |part| disallowed_in_result(part).is_some()) {
                let Some(part) = disallowed_in_result(&part) else { continue };
                self.note(position, RepairKind::RemovedResultPart { id: result.id.clone(), part });
            }
        }
        if message.parts.is_empty() && role != Role::Assistant {
            self.note(position, RepairKind::RemovedMessage { role });
        } else if role == Role::Tool {
            self.take_results(position, message);
        } else {
            self.begin_slot(position, message);
        }
    }

    fn begin_slot(&mut self, position: usize, mut message: Message) {
        let mut slot_ids = HashSet::new();
        let mut calls = Vec::new();
        let mut by_id = HashMap::<_, VecDeque<_>>::new();
        for part in &mut message.parts {
            let Part::ToolCall(call) = part else { continue };
            let before = call.id.clone();
            if before.is_empty() || slot_ids.contains(&before) {
                call.id = format!("call_{}", new_id().simple());
                self.note(position, RepairKind::NewId { before: before.clone(), after: call.id.clone() });
            }
            slot_ids.insert(call.id.clone());
            by_id.entry(before.clone()).or_default().push_back(calls.len());
            self.by_id.entry(before.clone()).or_default().push_back((self.slots.len(), calls.len()));
            calls.push(Call { before, id: call.id.clone(), has_result: false });
        }
        self.slots.push(Slot { position, message, calls, by_id, behind: Vec::new() });
    }

    /// Takes a message of results. Those of the message directly before stay together.
    fn take_results(&mut self, position: usize, message: Message) {
        let mut stay = Vec::new();
        for part in message.parts {
            let Part::ToolCallResponse(mut result) = part else { continue };
            let here = self.slots.len().wrapping_sub(1);
            match self.call_of(&result.id, here) {
                Some((slot, call)) => {
                    let id = self.slots[slot].calls[call].id.clone();
                    let before = std::mem::replace(&mut result.id, id);
                    if slot == here {
                        stay.push(result);
                        continue;
                    }
                    self.slots[slot].behind.push(Message::tool([result]));
                    let call = self.slots[slot].position;
                    self.note(position, RepairKind::MovedResult { id: before, call });
                }
                None => self.note(position, RepairKind::RemovedResult { id: result.id }),
            }
        }
        if let Some(slot) = self.slots.last_mut().filter(|_| !stay.is_empty()) {
            slot.behind.push(Message::tool(stay));
        }
    }

    /// Finds the call of a result, and marks it as answered: a call of the message before, or else the first call
    /// without a result.
    fn call_of(&mut self, id: &str, here: usize) -> Option<(usize, usize)> {
        let slots = &mut self.slots;
        let local = slots.get_mut(here).and_then(|slot| slot.by_id.get_mut(id));
        let found = local.and_then(VecDeque::pop_front).map(|call| (here, call)).or_else(|| {
            let calls = self.by_id.get_mut(id)?;
            while let Some((slot, call)) = calls.pop_front() {
                if !slots[slot].calls[call].has_result {
                    slots[slot].by_id.get_mut(id).and_then(VecDeque::pop_front);
                    return Some((slot, call));
                }
            }
            None
        });
        let (slot, call) = found?;
        slots[slot].calls[call].has_result = true;
        Some((slot, call))
    }

    fn finish(mut self) -> (History, Vec<Repair>) {
        let mut messages = Vec::new();
        for Slot { position, message, calls, behind, .. } in self.slots {
            messages.push(Arc::new(message));
            messages.extend(behind.into_iter().map(Arc::new));
            for call in calls.into_iter().filter(|call| !call.has_result) {
                messages.push(Arc::new(Message::tool([ToolResult::error(call.id, "no result was recorded")])));
                self.repairs.push(Repair { position, kind: RepairKind::AddedResult { id: call.before } });
            }
        }
        (History(Arc::new(messages)), self.repairs)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::ToolCall;

    fn asks<const N: usize>(ids: [&str; N]) -> Message {
        let add = |message: Message, id: &&str| message.with_call(ToolCall::new(*id, "t", json!({})));
        ids.iter().fold(Message::assistant(""), add)
    }

    fn gives(id: &str, value: i32) -> Message {
        Message::tool([ToolResult::new(id, value)])
    }

    /// Shows each message: `u` for a user's, `a[id…]` for a model's, `t[id=value…]` for results.
    fn shown(history: &History) -> String {
        let shown = history.messages().iter().map(|message| match message.role {
            Role::Tool => {
                let results = message.tool_results().map(|result| format!("{}={}", result.id, result.response));
                format!("t[{}]", results.collect::<Vec<_>>().join(" "))
            }
            Role::Assistant => {
                let ids: Vec<_> = message.tool_calls().map(|call| call.id.as_str()).collect();
                format!("a[{}]", ids.join(" "))
            }
            _ => "u".to_owned(),
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_fault_is_repaired_and_reported_with_its_position() {
        let user = || Message::user("x");
        let none = r#""no result was recorded""#;
        let table = [
            (
                vec![asks(["a"]), user()],
                format!("a[a] t[a={none}] u"),
                vec!["message 0: added a result for the call `a`"],
            ),
            (
                vec![asks(["a", "b"]), user(), gives("b", 1), gives("a", 2)],
                "a[a b] t[b=1] t[a=2] u".to_owned(),
                vec![
                    "message 2: moved the result `b` behind its call in message 0",
                    "message 3: moved the result `a` behind its call in message 0",
                ],
            ),
            (
                vec![gives("a", 1), asks(["a"]), gives("a", 2), gives("a", 3)],
                "a[a] t[a=2]".to_owned(),
                vec![
                    "message 0: removed the result `a`, which has no call",
                    "message 3: removed the result `a`, which has no call",
                ],
            ),
            // The result behind the second call stays there; the other one belongs to the first call.
            (
                vec![asks(["a"]), user(), asks(["a"]), gives("a", 2), user(), gives("a", 1)],
                "a[a] t[a=1] u a[a] t[a=2] u".to_owned(),
                vec!["message 5: moved the result `a` behind its call in message 0"],
            ),
            (
                vec![asks(["a"]), user(), asks(["a"]), user(), gives("a", 1), gives("a", 2)],
                "a[a] t[a=1] u a[a] t[a=2] u".to_owned(),
                vec![
                    "message 4: moved the result `a` behind its call in message 0",
                    "message 5: moved the result `a` behind its call in message 2",
                ],
            ),
            (
                vec![Message::new(Role::User, []), user().with_call(ToolCall::new("a", "t", json!({})))],
                "u".to_owned(),
                vec![
                    "message 0: removed the message with the role `user`, which is empty",
                    "message 1: removed a tool call, which the role does not allow",
                ],
            ),
            (
                vec![asks(["a"]), with_parts("a")],
                "a[a] t[a=1]".to_owned(),
                vec![
                    "message 1: removed a reasoning from the result `a`, which does not allow it",
                    "message 1: removed a tool call from the result `a`, which does not allow it",
                ],
            ),
            // An empty message between a call and its result does not separate them.
            (
                vec![asks(["a"]), Message::new(Role::User, []), gives("a", 1)],
                "a[a] t[a=1]".to_owned(),
                vec!["message 1: removed the message with the role `user`, which is empty"],
            ),
        ];
        for (messages, expected, says) in table {
            let (history, repairs) = History::repair(messages);
            assert_eq!(shown(&history), expected);
            assert_eq!(repairs.iter().map(ToString::to_string).collect::<Vec<_>>(), says, "{expected}");
            assert_eq!(check(&history.0), Ok(()));
        }
        // The other parts stay, in order.
        let (history, _) = History::repair([asks(["a"]), with_parts("a")]);
        let result = history.messages()[1].tool_results().next().expect("a result");
        assert_eq!(result.parts, [text("x"), image(), text("y")]);
    }

    fn text(content: &str) -> Part {
        Part::Text { content: content.to_owned() }
    }

    fn image() -> Part {
        Part::Uri { modality: "image".to_owned(), mime_type: None, uri: "x:".to_owned() }
    }

    /// Makes a result with parts, two of which are not allowed.
    fn with_parts(id: &str) -> Message {
        let call = Part::ToolCall(ToolCall::new("b", "t", json!({})));
        let parts = vec![text("x"), Part::reasoning("hm", None), image(), call, text("y")];
        Message::tool([ToolResult { parts, ..ToolResult::new(id, 1) }])
    }

    #[test]
    fn doubled_and_empty_ids_become_unique_and_results_follow_their_calls_in_order() {
        let messages = vec![asks(["a", "a", "", ""]), gives("a", 1), gives("", 3), gives("a", 2)];
        let (history, repairs) = History::repair(messages);
        assert_eq!(check(&history.0), Ok(()));
        let new = |at: usize| match &repairs[at].kind {
            RepairKind::NewId { before, after } => (before.clone(), after.clone()),
            other => panic!("{other:?}"),
        };
        let [(a, second), (b, third), (c, fourth)] = [new(0), new(1), new(2)];
        assert_eq!([a, b, c], ["a", "", ""]);
        let expected = format!(
            "a[a {second} {third} {fourth}] t[a=1] t[{third}=3] t[{second}=2] t[{fourth}=\"no result was recorded\"]"
        );
        assert_eq!(shown(&history), expected);
        assert_eq!(repairs[3..], [Repair { position: 0, kind: RepairKind::AddedResult { id: String::new() } }]);
    }

    #[test]
    fn many_calls_with_one_id_cost_linear_time() {
        // With quadratic time, this test is terminated because it takes too long.
        let asks = (0..100_000).map(|_| asks(["a"]));
        let gives = (0..100_000).map(|n| gives("a", n));
        let (history, repairs) = History::repair(asks.chain([Message::user("x")]).chain(gives));
        assert_eq!((history.messages().len(), repairs.len()), (200_001, 100_000));
    }

    fn messages() -> impl Strategy<Value = Vec<Message>> {
        let id = || prop_oneof![Just(""), Just("a"), Just("b"), Just("c")];
        let part = prop_oneof![
            2 => Just(Part::Text { content: "x".to_owned() }),
            4 => id().prop_map(|id| Part::ToolCall(ToolCall::new(id, "t", json!({})))),
            4 => id().prop_map(|id| Part::ToolCallResponse(ToolResult::new(id, 1))),
            1 => id().prop_map(|id| with_parts(id).parts.remove(0)),
            1 => Just(Part::reasoning("x", None)),
            1 => Just(image()),
        ];
        let role = prop_oneof![
            1 => Just(Role::System),
            2 => Just(Role::User),
            4 => Just(Role::Assistant),
            4 => Just(Role::Tool)
        ];
        let message = (role, proptest::collection::vec(part, 0..4)).prop_map(|(role, parts)| Message::new(role, parts));
        proptest::collection::vec(message, 0..12)
    }

    proptest! {
        #[test]
        fn a_repaired_history_is_valid_and_valid_messages_are_not_changed(messages in messages()) {
            let valid = check(&messages.iter().cloned().map(Arc::new).collect::<Vec<_>>()).is_ok();
            let (history, repairs) = History::repair(messages.clone());
            prop_assert_eq!(check(&history.0), Ok(()));
            prop_assert_eq!(repairs.is_empty(), valid, "{:?}", repairs);
            let repaired: Vec<_> = history.messages().iter().map(|message| Message::clone(message)).collect();
            if valid {
                prop_assert_eq!(&repaired, &messages);
            }
            let (again, none) = History::repair(repaired);
            prop_assert_eq!((again, none), (history.clone(), vec![]));
            // Texts and calls of valid messages are kept, in order.
            let texts = |messages: &mut dyn Iterator<Item = &Message>| -> String {
                messages.filter(|message| message.role != Role::Tool).map(Message::text).collect()
            };
            let before = texts(&mut messages.iter());
            prop_assert_eq!(texts(&mut history.messages().iter().map(|message| &**message)), before);
        }

        #[test]
        fn a_history_can_be_cut_at_its_boundaries_and_nowhere_else(messages in messages()) {
            let (history, _) = History::repair(messages);
            let boundaries: Vec<_> = history.boundaries().collect();
            for at in 0..=history.messages().len() {
                let (before, after) = history.messages().split_at(at);
                let is_valid = check(before).is_ok() && check(after).is_ok();
                prop_assert_eq!(boundaries.contains(&at), is_valid, "{}", at);
            }
        }
    }
}
