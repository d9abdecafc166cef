//! Messages of users.

use axum::http::StatusCode;
use emitree_agent::{Message, Part, Role};
use serde_json::Value;

use crate::serve::failure::Refusal;

/// Reads the content of a message: a text, or a list of parts.
pub(super) fn read(content: &Value) -> Result<Message, Refusal> {
    let parts = match content {
        Value::String(text) => vec![text_part(text)],
        Value::Array(parts) => parts.iter().map(part_of).collect::<Result<_, _>>()?,
        other => return Err(Refusal::bad(format!("the content of the message is {other}, and not a text"))),
    };
    if parts.is_empty() {
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "the last message is empty"));
    }
    Ok(Message::new(Role::User, parts))
}

fn part_of(part: &Value) -> Result<Part, Refusal> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let uri = |kind: &str, uri: Option<String>, mime_type: Option<String>| {
        let modality = mime_type.as_deref().and_then(modality_of).unwrap_or(kind).to_owned();
        uri.map(|uri| Part::Uri { modality, mime_type, uri })
    };
    let source = &part["source"];
    let read = match part["type"].as_str() {
        Some("text") => text(&part["text"]).map(|text| text_part(&text)),
        // The AI SDK.
        Some("file") => uri("document", text(&part["url"]), text(&part["mediaType"])),
        // AG-UI.
        Some(kind @ ("image" | "audio" | "video" | "document")) => match source["type"].as_str() {
            Some("url") => uri(kind, text(&source["value"]), text(&source["mimeType"])),
            Some("data") => {
                let mime_type = text(&source["mimeType"]);
                let data = text(&source["value"]).zip(mime_type.clone());
                uri(kind, data.map(|(data, mime_type)| format!("data:{mime_type};base64,{data}")), mime_type)
            }
            _ => None,
        },
        _ => None,
    };
    read.ok_or_else(|| {
        let kind = &part["type"];
        let text = format!("a part of the type {kind} cannot be read: send texts, and files as URLs or data");
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, text)
    })
}

fn text_part(text: &str) -> Part {
    Part::Text { content: text.to_owned() }
}

/// Returns the kind of content that a media type is.
fn modality_of(mime_type: &str) -> Option<&str> {
    let kind = mime_type.split('/').next()?;
    ["image", "audio", "video"].contains(&kind).then_some(kind)
}
