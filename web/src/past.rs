//! The conversation before a run, as parts of a page.

use std::collections::HashMap;
use std::sync::Arc;

use emitree_agent::{History, Message, Part as MessagePart, Role, ToolResult};

use crate::fold::input_of;
use crate::step::{Call, CallResult, Content, Owner, Part, ResultKind, TextKind};

/// The ids of calls on a page. A server may give several calls of a conversation one id, and pages find calls by id: the
/// second call with the id `0` is shown as `0~2`. The numbers depend on the history alone, so they stay the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallIds(HashMap<(Owner, Arc<str>), u32>);

impl CallIds {
    /// Returns the id of the next call to which the server of an agent's model gives an id.
    pub(crate) fn next(&mut self, owner: &Owner, given: &str) -> Arc<str> {
        *self.0.entry((owner.clone(), given.into())).or_default() += 1;
        self.last(owner, given)
    }

    /// Forgets a call that was taken back, so that the history alone makes the numbers.
    pub(crate) fn forget(&mut self, owner: &Owner, given: &str, id: &str) {
        if *self.last(owner, given) == *id
            && let Some(number) = self.0.get_mut(&(owner.clone(), given.into()))
        {
            *number -= 1;
        }
    }

    /// Returns the id of the last call with a given id.
    pub(crate) fn last(&self, owner: &Owner, given: &str) -> Arc<str> {
        let number = self.0.get(&(owner.clone(), given.into())).copied().unwrap_or(1);
        let agent = owner.iter().map(|owner| format!("{owner}:")).collect::<String>();
        match number {
            0 | 1 => format!("{agent}{given}").into(),
            number => format!("{agent}{given}~{number}").into(),
        }
    }
}

/// Returns the messages of a history as parts, and the ids of its calls.
pub(crate) fn parts_of(history: &History) -> (Vec<Part>, CallIds) {
    let (mut parts, mut calls) = (Vec::new(), CallIds::default());
    for (position, message) in history.messages().iter().enumerate() {
        match message.role {
            Role::User => parts.push(Part::new(format!("past-{position}"), Content::User(message.text()))),
            Role::Assistant => add_reply(position, message, &mut parts, &mut calls),
            Role::Tool => message.tool_results().for_each(|result| add_result(result, &mut parts)),
            // Pages do not show instructions.
            _ => {}
        }
    }
    (parts, calls)
}

fn add_reply(position: usize, message: &Message, parts: &mut Vec<Part>, calls: &mut CallIds) {
    let id = |part: usize| format!("past-{position}-{part}");
    let first_text = |part: &MessagePart| matches!(part, MessagePart::Text { content } if !content.is_empty());
    let of_calls: Arc<str> = id(message.parts.iter().position(first_text).unwrap_or_default()).into();
    for (number, part) in message.parts.iter().enumerate() {
        let text = |kind, text: &str| Content::Text { kind, text: text.to_owned() };
        match part {
            MessagePart::Text { content } if !content.is_empty() => {
                parts.push(Part::new(id(number), text(TextKind::Answer, content)));
            }
            MessagePart::Reasoning { content, .. } if !content.is_empty() => {
                parts.push(Part::new(format!("{}-r", id(number)), text(TextKind::Reasoning, content)));
            }
            MessagePart::ToolCall(call) => {
                let given = call.id.as_str().into();
                let (name, message) = (call.name.as_str().into(), Arc::clone(&of_calls));
                let (text, input) = (call.arguments.to_string(), Some(input_of(call)));
                let content = Content::Call(Call { given, name, message, text, input, result: None });
                parts.push(Part { id: calls.next(&None, &call.id), owner: None, content });
            }
            _ => {}
        }
    }
}

fn add_result(result: &ToolResult, parts: &mut [Part]) {
    let mut calls = parts.iter_mut().rev().filter_map(Part::call_mut);
    if let Some(call) = calls.find(|call| *call.given == *result.id) {
        call.result = Some(CallResult { response: result.response.clone(), kind: denied_or(result) });
    }
}

/// Returns the kind of a result. Agents answer a denied call with a text that begins so.
pub(crate) fn denied_or(result: &ToolResult) -> ResultKind {
    let is_denied = |text: &str| text.starts_with("denied by ");
    match (result.is_error, result.response.as_str()) {
        (true, Some(text)) if is_denied(text) => ResultKind::Denied,
        (true, _) => ResultKind::Failed,
        (false, _) => ResultKind::Done,
    }
}

impl Part {
    pub(crate) fn new(id: impl Into<Arc<str>>, content: Content) -> Self {
        Self { id: id.into(), owner: None, content }
    }
}
