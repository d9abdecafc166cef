//! The request of the AI SDK. Answers to questions that are no approvals are in its body: `{"answers": {"<id>": …}}`.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::serve::ask::{Asked, Asks, Continued, Reply, asks_nothing, message, messages_of, text_of};
use crate::serve::failure::Refusal;

pub(super) fn read(body: &Value) -> Result<Asked, Refusal> {
    let thread = text_of(body, "id")?.to_owned();
    let last = messages_of(body)?.last().ok_or_else(asks_nothing)?;
    let mut answers = match &body["answers"] {
        Value::Null => Vec::new(),
        Value::Object(answers) => answers.iter().map(|(id, value)| (id.clone(), Reply::Value(value.clone()))).collect(),
        other => return Err(Refusal::bad(format!("`answers` is {other}, and not an object"))),
    };
    let parts = last["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_reply = last["role"] == "assistant";
    if is_reply {
        answers.extend(parts.iter().filter_map(approval_of));
    }
    if !answers.is_empty() {
        let id = last["id"].as_str().filter(|_| is_reply);
        let calls = parts.iter().filter_map(|part| part["toolCallId"].as_str()).map(str::to_owned).collect();
        let continues = id.map(|id| Continued { id: id.into(), calls });
        return Ok(Asked { thread, run: None, asks: Asks::Answers { answers, are_all: false, continues } });
    }
    if body["trigger"] == "regenerate-message" {
        let text = "an answer is not made again: the session keeps it. Send another message";
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, text));
    }
    if last["role"] != "user" {
        return Err(asks_nothing());
    }
    let asks = Asks::Message { id: last["id"].as_str().map(Into::into), message: message::read(&last["parts"])? };
    Ok(Asked { thread, run: None, asks })
}

/// Returns the answer to an approval, if a part has one that its call has not taken yet.
fn approval_of(part: &Value) -> Option<(String, Reply)> {
    let approval = Some(&part["approval"]).filter(|_| part["state"] == "approval-responded")?;
    let value = json!({"approved": approval["approved"], "reason": approval["reason"]});
    Some((approval["id"].as_str()?.to_owned(), Reply::Value(value)))
}
