//! The contents of messages in OpenAI's protocol: texts, images, and texts in the place of what a server cannot read.

use emitree_emitter::media::label;
use emitree_runtime::{Error, Result};
use serde_json::{Value, json};

use crate::{Message, Part, ToolResult};

/// The images that a server reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Images {
    /// None: a text stands in the place of each.
    Never,
    /// Those of users, and those of results behind all results of their turn, in a message of the user.
    OfUsers,
    /// Those of tool messages too.
    Anywhere,
}

/// Returns the content of a message: a text, or a list of parts if the message has attachments.
///
/// # Errors
///
/// Returns an error if the message has an attachment that is not an image.
pub(super) fn content(message: &Message, images: Images) -> Result<Value> {
    let mut parts = Vec::with_capacity(message.parts.len());
    for part in &message.parts {
        match part {
            Part::Text { content } => parts.push(text(content)),
            Part::Uri { modality, .. } if modality != "image" => {
                return Err(Error::new(format!(
                    "an attachment of the kind `{modality}` cannot be sent in OpenAI's protocol: send an `image`, or text"
                )));
            }
            Part::Uri { .. } if images == Images::Never => parts.push(text(&not_shown(part))),
            Part::Uri { uri, .. } => parts.push(image(uri)),
            // A valid history has these parts only in messages of models and tools.
            Part::Reasoning { .. } | Part::ToolCall(_) | Part::ToolCallResponse(_) => {}
        }
    }
    // Texts stay one text, because not all servers read lists.
    match message.parts.iter().all(|part| matches!(part, Part::Text { .. })) {
        true => Ok(message.text().into()),
        false => Ok(joined(parts)),
    }
}

/// Returns the content of a tool message. Images that the server does not read there are appended to `behind`, with
/// texts that the content refers to.
pub(super) fn result(result: &ToolResult, images: Images, behind: &mut Vec<Value>) -> Value {
    let response = result.response.as_str().map_or_else(|| result.response.to_string(), str::to_owned);
    let mut parts = Vec::with_capacity(1 + result.parts.len());
    if !response.is_empty() || result.parts.is_empty() {
        parts.push(text(&response));
    }
    for part in &result.parts {
        match part {
            Part::Text { content } => parts.push(text(content)),
            Part::Uri { modality, uri, .. } if modality == "image" && images == Images::Anywhere => {
                parts.push(image(uri));
            }
            Part::Uri { modality, uri, .. } if modality == "image" && images == Images::OfUsers => {
                let number = behind.len() / 2 + 1;
                parts.push(text(&format!("[image {number}: see below]")));
                behind.extend([text(&format!("[image {number} of the results]")), image(uri)]);
            }
            part => parts.push(text(&not_shown(part))),
        }
    }
    joined(parts)
}

/// Returns parts as a list, or as one text if all of them are texts.
fn joined(parts: Vec<Value>) -> Value {
    if parts.iter().any(|part| part["type"] != "text") {
        return parts.into();
    }
    let texts = parts.iter().filter_map(|part| part["text"].as_str());
    texts.collect::<Vec<_>>().join("\n\n").into()
}

/// Returns the text in the place of content that the model does not see.
fn not_shown(part: &Part) -> String {
    match part {
        Part::Uri { modality, mime_type, uri } => {
            format!("[{}: not shown]", label(modality, mime_type.as_deref(), uri))
        }
        // A valid history has only texts and references in results.
        _ => String::new(),
    }
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn image(uri: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": uri}})
}
