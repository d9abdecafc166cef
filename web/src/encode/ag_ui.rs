//! AG-UI 1.0.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::encode::Ids;
use crate::encode::cut_json::rest_of;
use crate::question;
use crate::step::{AgentEnd, Asked, Content, End, Owner, Part, Step, TextKind};

/// Returns the events of a step.
pub(super) fn events(step: &Step, ids: &Ids) -> Vec<Value> {
    match step {
        Step::Started => vec![of_run("RUN_STARTED", ids, json!({"protocolVersion": "1.0"}))],
        Step::Resumed(before) => vec![json!({"type": "MESSAGES_SNAPSHOT", "messages": messages(before, &[])})],
        Step::Began => Vec::new(),
        Step::Opened { id, kind, owner } => opened(id, *kind, owner),
        Step::Delta { id, kind, owner, text } => {
            vec![owned(owner, json!({"type": message_event(*kind, "CONTENT"), "messageId": id, "delta": text}))]
        }
        Step::Closed { id, kind, owner } => closed(id, *kind, owner),
        Step::CallOpened { id, name, message, owner } => vec![call_start(id, name, message, owner)],
        Step::CallDelta { id, owner, text } => vec![call_delta(id, owner, text)],
        Step::CallClosed { id, malformed: None, owner, .. } => vec![call_end(id, owner)],
        // Clients expect JSON. Models write other arguments mostly because their reply was cut.
        Step::CallClosed { id, malformed: Some(text), owner, .. } | Step::CallCut { id, owner, text } => {
            let rest = rest_of(text);
            let delta = (!text.is_empty() && !rest.is_empty()).then(|| call_delta(id, owner, &rest));
            delta.into_iter().chain([call_end(id, owner)]).collect()
        }
        Step::Returned { id, result, owner } => {
            let content =
                json!({"messageId": result_id(id), "toolCallId": id, "content": result.text(), "role": "tool"});
            vec![owned(owner, with_type("TOOL_CALL_RESULT", content))]
        }
        Step::AgentStarted { id, name, call, above } => vec![agent_started(id, name, call.as_ref(), above)],
        Step::AgentEnded { id, end } => vec![agent_ended(id, *end)],
        Step::Shown { path, value, .. } => {
            vec![json!({"type": "CUSTOM", "name": format!("emitree.{path}"), "value": value})]
        }
        Step::Reset { before, parts, .. } => {
            let snapshot = json!({"type": "MESSAGES_SNAPSHOT", "messages": messages(before, parts)});
            [snapshot].into_iter().chain(parts.iter().flat_map(open_call)).collect()
        }
        Step::Ended(end) => vec![ended(end, ids)],
    }
}

fn with_type(kind: &str, mut event: Value) -> Value {
    event["type"] = kind.into();
    event
}

fn of_run(kind: &str, ids: &Ids, event: Value) -> Value {
    let mut event = with_type(kind, event);
    (event["threadId"], event["runId"]) = ((*ids.thread).into(), (*ids.run).into());
    event
}

/// Adds the sub-agent to an event or a message.
fn owned(owner: &Owner, mut event: Value) -> Value {
    if let Some(owner) = owner {
        event["subagentRunId"] = (**owner).into();
    }
    event
}

fn message_event(kind: TextKind, suffix: &str) -> String {
    match kind {
        TextKind::Answer => format!("TEXT_MESSAGE_{suffix}"),
        TextKind::Reasoning => format!("REASONING_MESSAGE_{suffix}"),
    }
}

fn opened(id: &str, kind: TextKind, owner: &Owner) -> Vec<Value> {
    let role = if kind == TextKind::Answer { "assistant" } else { "reasoning" };
    let start = owned(owner, json!({"type": message_event(kind, "START"), "messageId": id, "role": role}));
    match kind {
        TextKind::Answer => vec![start],
        TextKind::Reasoning => vec![owned(owner, json!({"type": "REASONING_START", "messageId": id})), start],
    }
}

fn closed(id: &str, kind: TextKind, owner: &Owner) -> Vec<Value> {
    let end = owned(owner, json!({"type": message_event(kind, "END"), "messageId": id}));
    match kind {
        TextKind::Answer => vec![end],
        TextKind::Reasoning => vec![end, owned(owner, json!({"type": "REASONING_END", "messageId": id}))],
    }
}

/// Returns the events of a call whose arguments are not complete: a page that has closed it, or does not know it, opens
/// it.
fn open_call(part: &Part) -> Vec<Value> {
    let Some(call) = part.call().filter(|call| call.input.is_none()) else { return Vec::new() };
    let start = call_start(&part.id, &call.name, &call.message, &part.owner);
    let delta = (!call.text.is_empty()).then(|| call_delta(&part.id, &part.owner, &call.text));
    [start].into_iter().chain(delta).collect()
}

fn call_start(id: &str, name: &str, message: &str, owner: &Owner) -> Value {
    owned(owner, json!({"type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": name, "parentMessageId": message}))
}

fn call_delta(id: &str, owner: &Owner, text: &str) -> Value {
    owned(owner, json!({"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": text}))
}

fn call_end(id: &str, owner: &Owner) -> Value {
    owned(owner, json!({"type": "TOOL_CALL_END", "toolCallId": id}))
}

fn result_id(call: &str) -> String {
    format!("{call}-result")
}

fn agent_started(id: &str, name: &str, call: Option<&Arc<str>>, above: &Owner) -> Value {
    let mut event = json!({"type": "SUBAGENT_STARTED", "subagentRunId": id, "name": name});
    if let Some(call) = call {
        event["parentToolCallId"] = (**call).into();
    }
    if let Some(above) = above {
        event["parentSubagentRunId"] = (**above).into();
    }
    event
}

fn agent_ended(id: &str, end: AgentEnd) -> Value {
    let outcome = match end {
        AgentEnd::Answered => "success",
        AgentEnd::Asks => "suspended",
        AgentEnd::Withheld => return agent_error(id, "withheld"),
        AgentEnd::Failed => return agent_error(id, "failed"),
    };
    json!({"type": "SUBAGENT_FINISHED", "subagentRunId": id, "outcome": {"type": outcome}})
}

fn agent_error(id: &str, code: &str) -> Value {
    json!({"type": "SUBAGENT_ERROR", "subagentRunId": id, "message": "the sub-agent has no answer", "code": code})
}

fn ended(end: &End, ids: &Ids) -> Value {
    let outcome = match end {
        End::Answered { .. } => json!({"type": "success"}),
        End::Asks(asked) => json!({"type": "interrupt", "interrupts": asked.iter().map(interrupt).collect::<Vec<_>>()}),
        End::Aborted { .. } => json!({"type": "cancelled"}),
        End::Failed { code, message } => return json!({"type": "RUN_ERROR", "message": message, "code": code}),
    };
    of_run("RUN_FINISHED", ids, json!({"outcome": outcome}))
}

fn interrupt(asked: &Asked) -> Value {
    let question = &asked.question;
    let metadata = json!({"emitree": {"kind": question.kind, "data": question.data}});
    let mut event = json!({
        "id": question.id,
        "reason": question.kind,
        "message": question::text(question),
        "responseSchema": question::schema(question),
        "metadata": metadata,
    });
    if question::is_approval(question) {
        event["toolCallId"] = (*asked.call).into();
    }
    owned(&asked.owner, event)
}

/// Returns the conversation and the parts of a run as messages.
fn messages(before: &[Part], parts: &[Part]) -> Vec<Value> {
    let mut messages: Vec<Value> = Vec::new();
    let mut results = Vec::new();
    for part in before.iter().chain(parts) {
        let id = &*part.id;
        let message = match &part.content {
            Content::User(text) => json!({"id": id, "role": "user", "content": text}),
            Content::Text { kind: TextKind::Answer, text } => json!({"id": id, "role": "assistant", "content": text}),
            Content::Text { kind: TextKind::Reasoning, text } => {
                json!({"id": id, "role": "reasoning", "content": text})
            }
            // It is opened behind the snapshot.
            Content::Call(call) if call.input.is_none() => continue,
            Content::Call(call) => {
                results.extend(call.result.as_ref().map(|result| result_message(part, &result.text())));
                let function = json!({"name": call.name, "arguments": call.text});
                let written = json!({"id": id, "type": "function", "function": function});
                add_call(&mut messages, &call.message, written, &part.owner);
                continue;
            }
            Content::Result(result) => result_message(part, &result.text()),
            Content::Shown { .. } => continue,
        };
        // The results of a reply's calls come behind the reply.
        messages.append(&mut results);
        messages.push(owned(&part.owner, message));
    }
    messages.append(&mut results);
    messages
}

fn result_message(part: &Part, content: &str) -> Value {
    let id = result_id(&part.id);
    owned(&part.owner, json!({"id": id, "role": "tool", "toolCallId": &*part.id, "content": content}))
}

/// Adds a call to the message of its reply, or to a message of its own if the reply has no text.
fn add_call(messages: &mut Vec<Value>, message: &str, call: Value, owner: &Owner) {
    let known = messages.iter_mut().rev().find(|known| known["id"] == message);
    let of = match known {
        Some(known) => known,
        None => {
            messages.push(owned(owner, json!({"id": message, "role": "assistant"})));
            let last = messages.len() - 1;
            &mut messages[last]
        }
    };
    match of.get_mut("toolCalls").and_then(Value::as_array_mut) {
        Some(calls) => calls.push(call),
        None => of.as_object_mut().unwrap_or(&mut Map::new()).extend([("toolCalls".to_owned(), json!([call]))]),
    }
}
