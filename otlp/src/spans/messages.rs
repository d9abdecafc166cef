//! Messages with the fields of OpenTelemetry's GenAI conventions. Messages of emitree have this shape, and fields beside
//! it, such as data that only the provider reads. A span has no bytes of images, sounds and files.

use emitree_emitter::media::data_head;
use serde_json::{Map, Value};

/// Returns a list of messages with the fields of the conventions. A single message becomes a list.
pub(super) fn list(value: &Value) -> Value {
    let messages = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    messages.iter().map(message).collect()
}

fn message(value: &Value) -> Value {
    let mut message = fields(value, &["role", "finish_reason"]);
    let parts = value["parts"].as_array().into_iter().flatten().map(part);
    message.insert("parts".to_owned(), parts.collect());
    message.into()
}

fn part(part: &Value) -> Value {
    let names: &[&str] = match part["type"].as_str() {
        Some("text" | "reasoning") => &["type", "content"],
        Some("tool_call") => &["type", "id", "name", "arguments"],
        Some("tool_call_response") => &["type", "id", "response"],
        Some("uri") => &["type", "modality", "mime_type", "uri"],
        _ => return part.clone(),
    };
    let mut fields = fields(part, names);
    if let Some(parts) = part["parts"].as_array().filter(|_| part["type"] == "tool_call_response") {
        fields.insert("parts".to_owned(), parts.iter().map(self::part).collect());
    }
    fields.into()
}

fn fields(value: &Value, names: &[&str]) -> Map<String, Value> {
    names.iter().filter_map(|name| Some(((*name).to_owned(), value.get(name)?.clone()))).collect()
}

/// Returns a value without the bytes of its `data:` URIs.
pub(super) fn without_bytes(mut value: Value) -> Value {
    match &mut value {
        Value::Object(members) => {
            let is_uri = members.get("type").is_some_and(|kind| kind == "uri");
            for (name, member) in members {
                *member = match member.as_str().and_then(data_head).filter(|_| is_uri && name == "uri") {
                    Some(head) => format!("{head}…").into(),
                    None => without_bytes(member.take()),
                };
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| *value = without_bytes(value.take())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    value
}
