//! The UI message stream of the AI SDK. All parts of a run are one step of its message: only the last step can be reset.

use serde_json::{Value, json};

use crate::encode::{Ids, Reads};
use crate::question;
use crate::step::{Asked, Call, CallResult, Content, End, Owner, Part, ResultKind, Step, TextKind};

/// Returns the chunks of a step. A sub-agent works within the call that runs it, so its parts are left out.
pub(super) fn chunks(step: &Step, ids: &Ids, reads: Reads) -> Vec<Value> {
    match step {
        Step::Started => vec![json!({"type": "start", "messageId": ids.message})],
        Step::Resumed(_) if reads == Reads::On => Vec::new(),
        Step::Resumed(before) => {
            let last_question = before.iter().rposition(|part| matches!(part.content, Content::User(_)));
            let of_message = &before[last_question.map_or(0, |at| at + 1)..];
            [json!({"type": "start-step"})].into_iter().chain(of_message.iter().flat_map(part)).collect()
        }
        Step::Began => vec![json!({"type": "start-step"})],
        _ if is_of_sub_agent(step) => Vec::new(),
        Step::Opened { id, kind, .. } => vec![json!({"type": text_chunk(*kind, "start"), "id": id})],
        Step::Delta { id, kind, text, .. } => {
            vec![json!({"type": text_chunk(*kind, "delta"), "id": id, "delta": text})]
        }
        Step::Closed { id, kind, .. } => vec![json!({"type": text_chunk(*kind, "end"), "id": id})],
        Step::CallOpened { id, name, .. } => {
            vec![json!({"type": "tool-input-start", "toolCallId": id, "toolName": name, "dynamic": true})]
        }
        Step::CallDelta { id, text, .. } => {
            vec![json!({"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": text})]
        }
        Step::CallClosed { id, name, input, .. } => vec![call_closed(id, name, input)],
        Step::Returned { id, result, .. } => vec![returned(id, result)],
        Step::CallCut { .. } | Step::AgentStarted { .. } | Step::AgentEnded { .. } => Vec::new(),
        Step::Shown { id, path, value } => vec![shown(id, path, value)],
        // The last step of the message is one of an earlier run, which holds. Events that are shown again change nothing.
        Step::Reset { has_begun: false, parts, .. } => {
            parts.iter().filter(|part| part.is_shown()).flat_map(part).collect()
        }
        Step::Reset { parts, .. } => {
            [json!({"type": "reset-step"})].into_iter().chain(parts.iter().flat_map(part)).collect()
        }
        Step::Ended(end) => ended(end),
    }
}

fn is_of_sub_agent(step: &Step) -> bool {
    let (Step::Opened { owner, .. }
    | Step::Delta { owner, .. }
    | Step::Closed { owner, .. }
    | Step::CallOpened { owner, .. }
    | Step::CallDelta { owner, .. }
    | Step::CallClosed { owner, .. }
    | Step::CallCut { owner, .. }
    | Step::Returned { owner, .. }) = step
    else {
        return false;
    };
    owner.is_some()
}

fn text_chunk(kind: TextKind, suffix: &str) -> String {
    match kind {
        TextKind::Answer => format!("text-{suffix}"),
        TextKind::Reasoning => format!("reasoning-{suffix}"),
    }
}

fn call_closed(id: &str, name: &str, input: &Value) -> Value {
    json!({"type": "tool-input-available", "toolCallId": id, "toolName": name, "input": input, "dynamic": true})
}

fn returned(id: &str, result: &CallResult) -> Value {
    match result.kind {
        ResultKind::Done => json!({"type": "tool-output-available", "toolCallId": id, "output": result.response}),
        ResultKind::Failed => json!({"type": "tool-output-error", "toolCallId": id, "errorText": result.text()}),
        ResultKind::Denied => json!({"type": "tool-output-denied", "toolCallId": id}),
    }
}

fn shown(id: &str, path: &str, value: &Value) -> Value {
    let name = path.rsplit('.').next().unwrap_or(path);
    json!({"type": format!("data-emitree-{name}"), "id": id, "data": {"path": path, "value": value}})
}

/// Returns the chunks of a part that is known as a whole.
fn part(part: &Part) -> Vec<Value> {
    let (id, owner): (_, &Owner) = (&*part.id, &part.owner);
    if owner.is_some() {
        return Vec::new();
    }
    match &part.content {
        Content::Text { text, .. } if text.is_empty() => Vec::new(),
        Content::Text { kind, text } => vec![
            json!({"type": text_chunk(*kind, "start"), "id": id}),
            json!({"type": text_chunk(*kind, "delta"), "id": id, "delta": text}),
            json!({"type": text_chunk(*kind, "end"), "id": id}),
        ],
        Content::Call(call) => part_of_call(id, call),
        Content::Shown { path, value } => vec![shown(id, path, value)],
        // The result of an earlier step is not reset.
        Content::Result(_) | Content::User(_) => Vec::new(),
    }
}

fn part_of_call(id: &str, call: &Call) -> Vec<Value> {
    let begun = match &call.input {
        Some(input) => vec![call_closed(id, &call.name, input)],
        None => vec![
            json!({"type": "tool-input-start", "toolCallId": id, "toolName": call.name, "dynamic": true}),
            json!({"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": call.text}),
        ],
    };
    begun.into_iter().chain(call.result.as_ref().map(|result| returned(id, result))).collect()
}

fn ended(end: &End) -> Vec<Value> {
    let finish = |reason: &str| [json!({"type": "finish-step"}), json!({"type": "finish", "finishReason": reason})];
    match end {
        End::Answered { reason } => finish(reason).into(),
        End::Asks(asked) => {
            let questions = asked.iter().enumerate().filter_map(|(at, one)| asked_chunk(one, &asked[..at]));
            questions.chain(finish("tool-calls")).collect()
        }
        End::Aborted { reason } => vec![json!({"type": "abort", "reason": reason})],
        End::Failed { message, .. } => vec![json!({"type": "error", "errorText": message})],
    }
}

/// Returns the chunk of a question. A call shows one approval at a time: a sub-agent asks for the next one again.
fn asked_chunk(asked: &Asked, before: &[Asked]) -> Option<Value> {
    let Asked { question, outer, .. } = asked;
    if !question::is_approval(question) {
        let data = json!({
            "id": question.id,
            "kind": question.kind,
            "data": question.data,
            "toolCallId": outer,
            "message": question::text(question),
            "schema": question::schema(question),
        });
        return Some(json!({"type": "data-emitree-question", "id": question.id, "data": data}));
    }
    let is_shown = |earlier: &&Asked| earlier.outer == *outer && question::is_approval(&earlier.question);
    if before.iter().find(is_shown).is_some() {
        return None;
    }
    let descriptor = json!({"message": question::text(question), "data": question.data});
    Some(json!({
        "type": "tool-approval-request",
        "approvalId": question.id,
        "toolCallId": outer,
        "approvalDescriptor": descriptor,
    }))
}
