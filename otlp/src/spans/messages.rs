//! Messages with the fields of OpenTelemetry's GenAI conventions. Messages of emitree have this shape, and fields beside
//! it, such as data that only the provider reads.

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
    fields(part, names).into()
}

fn fields(value: &Value, names: &[&str]) -> Map<String, Value> {
    names.iter().filter_map(|name| Some(((*name).to_owned(), value.get(name)?.clone()))).collect()
}
