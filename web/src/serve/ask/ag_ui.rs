//! The input of AG-UI.

use serde_json::Value;

use crate::serve::ask::{Asked, Asks, Reply, asks_nothing, message, messages_of, text_of};
use crate::serve::failure::Refusal;

pub(super) fn read(body: &Value) -> Result<Asked, Refusal> {
    let (thread, run) = (text_of(body, "threadId")?.to_owned(), text_of(body, "runId")?);
    let messages = messages_of(body)?;
    let asks = match &body["resume"] {
        Value::Null => asked(messages)?,
        Value::Array(entries) if entries.is_empty() => asked(messages)?,
        Value::Array(entries) => {
            let answers = entries.iter().map(answer_of).collect::<Result<_, _>>()?;
            Asks::Answers { answers, are_all: true, continues: None }
        }
        other => return Err(Refusal::bad(format!("`resume` is {other}, and not a list"))),
    };
    Ok(Asked { thread, run: Some(run.into()), asks })
}

fn asked(messages: &[Value]) -> Result<Asks, Refusal> {
    let last = messages.last().filter(|last| last["role"] == "user").ok_or_else(asks_nothing)?;
    Ok(Asks::Message { id: last["id"].as_str().map(Into::into), message: message::read(&last["content"])? })
}

fn answer_of(entry: &Value) -> Result<(String, Reply), Refusal> {
    let reply = match text_of(entry, "status")? {
        "resolved" => Reply::Value(entry["payload"].clone()),
        "cancelled" => Reply::Cancelled,
        other => return Err(Refusal::bad(format!("the status {other:?} is neither `resolved` nor `cancelled`"))),
    };
    Ok((text_of(entry, "interruptId")?.to_owned(), reply))
}
