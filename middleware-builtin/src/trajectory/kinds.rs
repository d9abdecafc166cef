//! The values of a run as text: a table from the kind of a run to the fields that its lines show.
//!
//! The table has names of kinds and of JSON fields, because the crates that define these kinds depend on this one. A
//! kind that is not in the table shows its whole input and output.

use emitree_emitter::media::label;
use serde_json::Value;

/// The fields that the lines of a kind show.
struct Kind {
    name: &'static str,
    input: Field,
    output: Field,
}

/// A field: a JSON pointer, and the form of its value.
struct Field {
    at: &'static str,
    form: Form,
}

#[derive(Clone, Copy)]
enum Form {
    /// Any value.
    Value,
    /// The content of a tool's output, which may explain a failure.
    Content,
    /// A message.
    Message,
    /// A conversation, of which the messages behind the last reply are shown: the history is in earlier lines.
    NewMessages,
}

const KINDS: [Kind; 3] = [
    Kind { name: "Agent", input: field("/messages", Form::NewMessages), output: field("/answer", Form::Message) },
    Kind { name: "ChatModel", input: field("/messages", Form::NewMessages), output: field("/message", Form::Message) },
    Kind { name: "Tool", input: WHOLE, output: field("", Form::Content) },
];

const WHOLE: Field = field("", Form::Value);

const fn field(at: &'static str, form: Form) -> Field {
    Field { at, form }
}

/// Returns the input of a run as text.
pub(super) fn input(kind: &str, input: &Value) -> String {
    KINDS.iter().find(|row| row.name == kind).map_or(&WHOLE, |row| &row.input).text(input)
}

/// Returns the output of a run as text.
pub(super) fn output(kind: &str, output: &Value) -> String {
    KINDS.iter().find(|row| row.name == kind).map_or(&WHOLE, |row| &row.output).text(output)
}

impl Field {
    fn text(&self, value: &Value) -> String {
        // Another crate may use the name of a kind for its own values: show a value without the field as it is.
        let shown = value.pointer(self.at).and_then(|value| match self.form {
            Form::Value => None,
            Form::Content => content(value),
            Form::Message => message(value, &[]),
            Form::NewMessages => new_messages(value.as_array()?),
        });
        shown.unwrap_or_else(|| text(value))
    }
}

/// Returns the content of a tool's output, or `None` for a value of another form.
fn content(output: &Value) -> Option<String> {
    const OTHERS: [&str; 5] = ["details", "is_error", "parts", "terminate", "is_answer"];
    let members = output.as_object()?;
    let content = members.get("content")?;
    if members.keys().any(|key| key != "content" && !OTHERS.contains(&&**key)) {
        return None;
    }
    let failed = if output["is_error"] == true { "failed: " } else { "" };
    Some(format!("{failed}{}{}", text(content), of_parts(&output["parts"])))
}

fn new_messages(messages: &[Value]) -> Option<String> {
    let last_reply = messages.iter().rposition(|message| message["role"] == "assistant");
    let since = last_reply.map_or(0, |at| at + 1);
    let (before, new) = messages.split_at(since);
    let calls = before.last().and_then(|reply| reply["parts"].as_array()).map_or(&[][..], Vec::as_slice);
    let texts: Option<Vec<_>> = new.iter().map(|new| message(new, calls)).collect();
    Some(texts?.join("; "))
}

/// Returns a message as text, or `None` for a value of another form. The parts of the reply before it have the names of
/// the calls to which it has results.
fn message(message: &Value, calls: &[Value]) -> Option<String> {
    let parts = message["parts"].as_array()?;
    let mut texts = Vec::new();
    for part in parts {
        match part["type"].as_str()? {
            "text" => texts.push(part["content"].as_str()?.to_owned()),
            "tool_call" => texts.push(format!("{}({})", part["name"].as_str()?, text(&part["arguments"]))),
            "tool_call_response" => {
                let call = calls.iter().find(|call| call["id"] == part["id"] && call["name"].is_string());
                let name = call.and_then(|call| call["name"].as_str()).unwrap_or("a tool");
                let failed = if part["is_error"] == true { "failed: " } else { "" };
                texts.push(format!("{name} → {failed}{}{}", text(&part["response"]), of_parts(&part["parts"])));
            }
            "reasoning" => {}
            _ => texts.push(content_label(part)),
        }
    }
    if texts.is_empty() && parts.iter().any(|part| part["type"] == "reasoning") {
        texts.push("(only reasoning)".to_owned());
    }
    match message["finish_reason"].as_str() {
        None | Some("stop" | "tool_call") => {}
        Some(reason) => texts.push(format!("(finish reason: {reason})")),
    }
    match message["role"].as_str()? {
        "user" | "assistant" | "tool" => Some(texts.join(" ")),
        role => Some(format!("{role}: {}", texts.join(" "))),
    }
}

/// Returns the parts of a result as text, each behind a space.
fn of_parts(parts: &Value) -> String {
    let text = |part: &Value| match part["content"].as_str() {
        Some(text) => format!(" {text}"),
        None => format!(" {}", content_label(part)),
    };
    parts.as_array().into_iter().flatten().map(text).collect()
}

/// Returns the type and the size of an image, a sound or a file.
fn content_label(part: &Value) -> String {
    let modality = part["modality"].as_str().unwrap_or("data");
    match part["uri"].as_str() {
        Some(uri) => format!("[{}]", label(modality, part["mime_type"].as_str(), uri)),
        None => format!("[{modality}]"),
    }
}

/// Returns any value as text: `path: README.md, top: 5` for an object, the text of a string, and JSON for the rest.
/// Null is empty, and so are members that are null.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text.clone(),
        Value::Object(members) => {
            let members: Vec<_> = members.iter().filter(|(_, member)| !member.is_null()).collect();
            let mut text = String::new();
            for (nth, (key, member)) in members.iter().enumerate() {
                text.push_str(if nth == 0 { "" } else { ", " });
                text.push_str(key);
                text.push_str(": ");
                match member {
                    Value::String(alone) if members.len() == 1 && !alone.is_empty() => text.push_str(alone),
                    Value::String(plain) if is_plain(plain) => text.push_str(plain),
                    member => text.push_str(&without_nulls(member).to_string()),
                }
            }
            text
        }
        Value::Array(_) | Value::Bool(_) | Value::Number(_) => without_nulls(value).to_string(),
    }
}

/// Returns `true` if the end of a string is seen without quotes.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && !text.contains([',', '"', '\n'])
}

/// Returns a value without the null members of its objects. Nulls in arrays stay, so that the other items keep their
/// positions.
pub(super) fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.iter().filter(|(_, member)| !member.is_null());
            members.map(|(key, member)| (key.clone(), without_nulls(member))).collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        plain => plain.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_shown_as_text() {
        for (value, expected) in [
            (json!(null), ""),
            (json!("plain, and \"quoted\""), "plain, and \"quoted\""),
            (json!(""), "\"\""),
            (json!(42), "42"),
            (json!([null, {"a": null, "b": "x"}]), r#"[null,{"b":"x"}]"#),
            (json!({}), ""),
            (json!({"question": "one, two?", "none": null}), "question: one, two?"),
            (
                json!({"a": "b c", "d": "e, f", "g": 1, "h": "", "i": ["j"]}),
                r#"a: b c, d: "e, f", g: 1, h: "", i: ["j"]"#,
            ),
        ] {
            assert_eq!(text(&value), expected, "{value}");
        }
    }

    #[test]
    fn a_message_is_shown_as_its_text_its_calls_or_its_results() {
        let user = json!({"role": "user", "parts": [{"type": "text", "content": "How many?"}]});
        let call = json!({"type": "tool_call", "id": "0", "name": "count", "arguments": {"path": "a.md"}});
        let reply = json!({"role": "assistant", "parts": [call], "finish_reason": "tool_call"});
        let results = json!({"role": "tool", "parts": [
            {"type": "tool_call_response", "id": "0", "response": 7},
            {"type": "tool_call_response", "id": "1", "response": "no such file", "is_error": true},
        ]});
        let cut =
            json!({"role": "assistant", "parts": [{"type": "text", "content": "Sev"}], "finish_reason": "length"});
        let thought = json!({"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}]});
        let picture = json!({"role": "user", "parts": [{"type": "uri", "modality": "image", "uri": "data:,a"}]});
        let image = json!({"type": "uri", "modality": "image", "mime_type": "image/png", "uri": "https://host/a.png"});
        let shown = json!([{"type": "text", "content": "Of May."}, image]);
        let drawn = json!({"role": "tool", "parts": [
            {"type": "tool_call_response", "id": "0", "response": "A chart.", "parts": shown},
        ]});
        for (text, expected) in [
            (input("ChatModel", &json!({"system": "Count.", "messages": [user]})), "How many?"),
            (output("ChatModel", &json!({"message": reply})), "count(path: a.md)"),
            (
                input("ChatModel", &json!({"messages": [user, reply, results]})),
                "count → 7 a tool → failed: no such file",
            ),
            (output("ChatModel", &json!({"message": cut})), "Sev (finish reason: length)"),
            (output("ChatModel", &json!({"message": thought})), "(only reasoning)"),
            (input("Agent", &json!({"messages": [picture, user]})), "[image, 1 B]; How many?"),
            (
                input("ChatModel", &json!({"messages": [reply, drawn]})),
                "count → A chart. Of May. [image/png, https://host/a.png]",
            ),
            (
                output("Tool", &json!({"content": "A chart.", "parts": shown})),
                "A chart. Of May. [image/png, https://host/a.png]",
            ),
            (
                output("Agent", &json!({"answer": cut, "messages": [user, cut], "turns": 1})),
                "Sev (finish reason: length)",
            ),
            (output("Tool", &json!({"content": 7, "details": {"a": 1}})), "7"),
            (output("Tool", &json!({"content": "no", "is_error": true})), "failed: no"),
            // Values of other forms.
            (output("Tool", &json!({"content": 7, "size": 8})), "content: 7, size: 8"),
            (input("Agent", &json!({"messages": 3})), "messages: 3"),
            (output("ChatModel", &json!({"message": "hi"})), "message: hi"),
            (output("Other", &json!({"answer": 1})), "answer: 1"),
        ] {
            assert_eq!(text, expected);
        }
    }
}
