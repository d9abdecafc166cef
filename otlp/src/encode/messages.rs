//! Conversations in the shapes of the dialects.

use serde_json::{Value, json};

use super::limits::cut;

/// Returns messages without finish reasons, which only messages that a model returned have.
pub(super) fn messages(value: &Value) -> Value {
    list(value).map(|message| json!({"role": message["role"], "parts": message["parts"]})).collect()
}

/// Returns messages that a model returned. Phoenix shows no message at all if one has no finish reason.
pub(super) fn output_messages(value: &Value) -> Value {
    let with_reason = |message: &Value| {
        let reason = message["finish_reason"].as_str().unwrap_or("unknown");
        json!({"role": message["role"], "parts": message["parts"], "finish_reason": reason})
    };
    list(value).map(with_reason).collect()
}

pub(super) fn instructions(value: &Value) -> Value {
    json!([{"type": "text", "content": value}])
}

pub(super) fn tool_definitions(value: &Value) -> Value {
    let function = |tool: &Value| {
        json!({
            "type": "function", "name": tool["name"], "description": tool["description"],
            "parameters": tool["parameters"],
        })
    };
    list(value).map(function).collect()
}

fn list(value: &Value) -> impl DoubleEndedIterator<Item = &Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

/// Returns messages as lists of attributes, one list for each message, in the order of the messages. The names of the
/// attributes follow the number of the message.
pub(super) fn flat_messages(value: &Value) -> Vec<Vec<(String, String)>> {
    list(value).map(flat_message).collect()
}

fn flat_message(message: &Value) -> Vec<(String, String)> {
    let mut flat = vec![("message.role".to_owned(), text(&message["role"]))];
    let texts = list(&message["parts"]).filter(|part| part["type"] == "text").map(|part| text(&part["content"]));
    let mut content: String = texts.collect();
    let mut calls = 0;
    for part in list(&message["parts"]) {
        match part["type"].as_str() {
            Some("tool_call") => {
                let name = |name: &str| format!("message.tool_calls.{calls}.tool_call.{name}");
                flat.push((name("id"), text(&part["id"])));
                flat.push((name("function.name"), text(&part["name"])));
                flat.push((name("function.arguments"), text(&part["arguments"])));
                calls += 1;
            }
            Some("tool_call_response") => {
                flat.push(("message.tool_call_id".to_owned(), text(&part["id"])));
                content.push_str(&text(&part["response"]));
                for part in list(&part["parts"]) {
                    let text = part["content"].as_str().or_else(|| part["uri"].as_str()).unwrap_or_default();
                    content.push_str(&format!("\n\n{text}"));
                }
            }
            _ => {}
        }
    }
    if !content.is_empty() {
        flat.push(("message.content".to_owned(), content));
    }
    flat
}

pub(super) fn flat_tools(value: &Value) -> Vec<Vec<(String, String)>> {
    let schema = |tool: &Value| json!({"type": "function", "function": tool}).to_string();
    list(value).map(|tool| vec![("tool.json_schema".to_owned(), schema(tool))]).collect()
}

/// Returns a string as itself, and any other value as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// Returns the JSON of a value, of at most this number of bytes. A list loses its oldest values first, and then the
/// texts of its last value are cut, so that the result is JSON for every limit above a few bytes.
pub(super) fn json_within(value: &Value, bytes: usize) -> (String, Option<usize>) {
    let whole = value.to_string();
    if whole.len() <= bytes {
        return (whole, None);
    }
    let size = Some(whole.len());
    let Value::Array(values) = value else {
        return (shrunk(value, bytes), size);
    };
    let mut kept = 0;
    let mut used = 2;
    for value in values.iter().rev() {
        used += value.to_string().len() + 1;
        if used > bytes {
            break;
        }
        kept += 1;
    }
    match values.last() {
        // Not even the last message fits, so its texts are cut: something of it is shown.
        Some(last) if kept == 0 => (shrunk(&Value::Array(vec![last.clone()]), bytes), size),
        _ => (Value::from(&values[values.len() - kept..]).to_string(), size),
    }
}

/// Returns the JSON of a value whose texts are cut until it fits.
fn shrunk(value: &Value, bytes: usize) -> String {
    let mut longest = bytes;
    loop {
        longest /= 2;
        let text = with_short_texts(value, longest).to_string();
        if text.len() <= bytes {
            return text;
        }
        if longest == 0 {
            return Value::from("…").to_string();
        }
    }
}

fn with_short_texts(value: &Value, longest: usize) -> Value {
    match value {
        Value::String(text) if text.len() > longest => (cut(text, longest).to_owned() + "…").into(),
        Value::Array(values) => values.iter().map(|value| with_short_texts(value, longest)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), with_short_texts(value, longest))).collect()
        }
        other => other.clone(),
    }
}
