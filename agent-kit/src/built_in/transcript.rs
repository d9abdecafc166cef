//! Messages as text that a model reads.

use std::fmt::Write as _;
use std::sync::Arc;

use emitree_agent::{Message, Part, Role};
use emitree_emitter::media::label;

/// Writes messages as text, for a request about a conversation: one paragraph for each text, call and result. Reasoning
/// is left out, and of an image or a file only the type and the size or address are written.
///
/// ```
/// use std::sync::Arc;
/// use emitree_agent_kit::built_in::transcript;
/// use emitree_agent::{Message, ToolCall, ToolResult};
/// use serde_json::json;
///
/// let messages = [
///     Message::user("How many?"),
///     Message::assistant("").with_call(ToolCall::new("c1", "count", json!({"path": "README.md"}))),
///     Message::tool([ToolResult::new("c1", 18)]),
/// ];
/// let text = transcript(&messages.map(Arc::new));
/// assert_eq!(text, "user: How many?\n\ncall of count: {\"path\":\"README.md\"}\n\nresult of count: 18");
/// ```
#[must_use]
pub fn transcript(messages: &[Arc<Message>]) -> String {
    let mut text = String::new();
    // The last message that is not from a tool: it has the calls to which results belong.
    let mut asks = None;
    for message in messages {
        if message.role != Role::Tool {
            asks = Some(message);
        }
        for part in &message.parts {
            if matches!(part, Part::Reasoning { .. }) {
                continue;
            }
            if !text.is_empty() {
                text.push_str("\n\n");
            }
            // Writing to a `String` cannot fail.
            write_part(&mut text, message.role, part, asks).ok();
        }
    }
    text
}

fn write_part(text: &mut String, role: Role, part: &Part, asks: Option<&Arc<Message>>) -> std::fmt::Result {
    let role = role.as_str();
    match part {
        Part::Text { content } => write!(text, "{role}: {content}"),
        Part::Uri { .. } => write!(text, "{role}: {}", shown(part)),
        Part::ToolCall(call) => write!(text, "call of {}: {}", call.name, call.arguments),
        Part::ToolCallResponse(result) => {
            let call = asks.and_then(|message| message.tool_calls().find(|call| call.id == result.id));
            let name = call.map_or("a tool", |call| call.name.as_str());
            let kind = if result.is_error { "error" } else { "result" };
            match result.response.as_str() {
                Some(response) => write!(text, "{kind} of {name}: {response}"),
                None => write!(text, "{kind} of {name}: {}", result.response),
            }?;
            result.parts.iter().try_for_each(|part| write!(text, " {}", shown(part)))
        }
        // Reasoning is no part of a transcript.
        _ => Ok(()),
    }
}

/// Returns the text of a part of a result, or the type and the size of content.
pub(crate) fn shown(part: &Part) -> String {
    match part {
        Part::Text { content } => content.clone(),
        Part::Uri { modality, mime_type, uri } => format!("[{}]", label(modality, mime_type.as_deref(), uri)),
        // A result has no other parts.
        _ => String::new(),
    }
}
