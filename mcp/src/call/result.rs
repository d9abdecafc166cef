//! The output of a call, from the result of a server.

use emitree_agent::{Part, ToolOutput};
use rmcp::model::{Annotations, CallToolResult, ContentBlock, Resource, ResourceContents, Role, ServerResult};
use serde_json::json;

/// Returns the output of a call: the structured content, or else the texts, and the other blocks as parts.
pub(super) fn output(result: CallToolResult) -> ToolOutput {
    let CallToolResult { content, structured_content, is_error, .. } = result;
    let (for_user, content): (Vec<_>, Vec<_>) = content.into_iter().partition(is_for_user_only);
    let mut texts = Vec::new();
    let mut parts = Vec::new();
    for block in content {
        match block {
            ContentBlock::Text(text) => texts.push(text.text),
            block => parts.extend(parts_of(block)),
        }
    }
    // The texts repeat the structured content.
    let mut output = ToolOutput::new(structured_content.unwrap_or_else(|| texts.join("\n").into()));
    output.parts = parts;
    output.is_error = is_error == Some(true);
    if !for_user.is_empty() {
        output = output.detail("for_user", json!(for_user));
    }
    output
}

/// Returns the output of a call whose result has no content. rmcp reads such a result as another one.
pub(super) fn without_content(result: &ServerResult) -> Option<ToolOutput> {
    let is_empty = matches!(result, ServerResult::EmptyResult(_) | ServerResult::TaskAckResult(_));
    is_empty.then(|| ToolOutput::new(""))
}

fn is_for_user_only(block: &ContentBlock) -> bool {
    let annotations = match block {
        ContentBlock::Text(text) => &text.annotations,
        ContentBlock::Image(image) => &image.annotations,
        ContentBlock::Audio(audio) => &audio.annotations,
        ContentBlock::Resource(resource) => &resource.annotations,
        ContentBlock::ResourceLink(link) => &link.annotations,
        _ => &None,
    };
    let audience = annotations.as_ref().and_then(|Annotations { audience, .. }| audience.as_deref());
    audience.is_some_and(|audience| !audience.is_empty() && audience.iter().all(|role| *role == Role::User))
}

/// Returns the parts of a block that is no text. The name of a link, and the address of a file, are a text before it.
fn parts_of(block: ContentBlock) -> Vec<Part> {
    match block {
        ContentBlock::Image(image) => vec![data("image", Some(&image.mime_type), &image.data)],
        ContentBlock::Audio(audio) => vec![data("audio", Some(&audio.mime_type), &audio.data)],
        ContentBlock::Resource(resource) => match resource.resource {
            ResourceContents::TextResourceContents { uri, text: content, .. } => vec![text(uri), text(content)],
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                let modality = mime_type.as_deref().map_or("document", modality_of);
                vec![text(uri), data(modality, mime_type.as_deref(), &blob)]
            }
            _ => vec![text("[a resource of an unknown kind]")],
        },
        ContentBlock::ResourceLink(Resource { uri, name, title, description, mime_type, .. }) => {
            let title = title.unwrap_or(name);
            let title = description.map_or_else(|| title.clone(), |description| format!("{title}: {description}"));
            // Not an image, even if it is one: the server of the model would fetch it.
            vec![text(title), Part::Uri { modality: "document".to_owned(), mime_type, uri }]
        }
        _ => vec![text("[content of an unknown kind]")],
    }
}

fn text(content: impl Into<String>) -> Part {
    Part::Text { content: content.into() }
}

fn modality_of(mime_type: &str) -> &str {
    let kind = mime_type.split('/').next().unwrap_or_default();
    if ["image", "audio", "video"].contains(&kind) { kind } else { "document" }
}

/// Returns data in base64 as a part. What is no base64 becomes a text: the server of a model would refuse the whole
/// history.
fn data(modality: &str, mime_type: Option<&str>, base64: &str) -> Part {
    let mime_type = mime_type.and_then(without_parameters).unwrap_or("application/octet-stream");
    let base64: String = base64.split_ascii_whitespace().collect();
    if !is_base64(&base64) {
        return text(format!("[{mime_type}: not shown, because its data is no base64]"));
    }
    let uri = format!("data:{mime_type};base64,{base64}");
    Part::Uri { modality: modality.to_owned(), mime_type: Some(mime_type.to_owned()), uri }
}

/// Returns a media type without its parameters, or `None` for what is none and could end the head of a `data:` URI.
fn without_parameters(mime_type: &str) -> Option<&str> {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte))
    };
    let essence = mime_type.split(';').next()?.trim();
    let (kind, name) = essence.split_once('/')?;
    if is_part(kind) && is_part(name) { Some(essence) } else { None }
}

fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let is_whole = text.len().is_multiple_of(4) && text.len() - digits.len() <= 2 && !digits.is_empty();
    is_whole && digits.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/')
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn of(result: Value) -> ToolOutput {
        output(serde_json::from_value(result).unwrap())
    }

    fn uri(modality: &str, mime_type: Option<&str>, uri: &str) -> Part {
        let mime_type = mime_type.map(str::to_owned);
        Part::Uri { modality: modality.to_owned(), mime_type, uri: uri.to_owned() }
    }

    #[test]
    fn structured_content_comes_first_and_other_blocks_are_parts() {
        let line = |text: &str| json!({"type": "text", "text": text});
        let image = json!({"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="});
        let shown = || uri("image", Some("image/png"), "data:image/png;base64,iVBORw0KGgo=");
        for (result, content, parts) in [
            (json!({"content": [line("a"), line("b")]}), json!("a\nb"), vec![]),
            (json!({"content": [line("{}")], "structuredContent": {"n": 5}}), json!({"n": 5}), vec![]),
            (json!({"content": [image], "structuredContent": {"n": 5}}), json!({"n": 5}), vec![shown()]),
            (json!({"content": [line("see"), image, line("it")]}), json!("see\nit"), vec![shown()]),
            (json!({"content": []}), json!(""), vec![]),
        ] {
            let made = of(result.clone());
            assert_eq!((made.content, made.parts), (content, parts), "{result}");
        }
    }

    #[test]
    fn each_kind_of_block_has_its_parts() {
        let blob = |mime: Value| json!({"type": "resource", "resource": {"uri": "file:///a", "mimeType": mime, "blob": "AAAA"}});
        for (block, parts) in [
            (
                json!({"type": "audio", "mimeType": "audio/wav; codecs=1", "data": "AA\nAA\n"}),
                vec![uri("audio", Some("audio/wav"), "data:audio/wav;base64,AAAA")],
            ),
            (
                blob(json!("video/mp4")),
                vec![text("file:///a"), uri("video", Some("video/mp4"), "data:video/mp4;base64,AAAA")],
            ),
            (
                blob(Value::Null),
                vec![
                    text("file:///a"),
                    uri("document", Some("application/octet-stream"), "data:application/octet-stream;base64,AAAA"),
                ],
            ),
            (
                json!({"type": "resource", "resource": {"uri": "file:///a", "text": "lines"}}),
                vec![text("file:///a"), text("lines")],
            ),
            // The server of a model that reads images would fetch an image.
            (
                json!({"type": "resource_link", "name": "n", "title": "Map", "description": "of Lima", "mimeType": "image/png", "uri": "https://host/a.png"}),
                vec![text("Map: of Lima"), uri("document", Some("image/png"), "https://host/a.png")],
            ),
            (
                json!({"type": "resource_link", "name": "log", "uri": "file:///log"}),
                vec![text("log"), uri("document", None, "file:///log")],
            ),
        ] {
            assert_eq!(of(json!({"content": [block.clone()]})).parts, parts, "{block}");
        }
    }

    #[test]
    fn what_is_no_base64_is_a_text_and_a_type_stays_in_the_head() {
        let image = |mime: &str, data: &str| {
            of(json!({"content": [{"type": "image", "mimeType": mime, "data": data}]})).parts.remove(0)
        };
        for data in ["", "AAA", "====", "AA%A", "AA=A", "https://host/a.png", "AAA\u{e9}"] {
            assert_eq!(
                image("image/png", data),
                text("[image/png: not shown, because its data is no base64]"),
                "{data}"
            );
        }
        for mime in ["", "png", "image/", "image/png,AAAA", "image/p\u{202e}ng", "a/b/c"] {
            let uri = uri("image", Some("application/octet-stream"), "data:application/octet-stream;base64,AAAA");
            assert_eq!(image(mime, "AAAA"), uri, "{mime}");
        }
    }

    #[test]
    fn content_for_the_user_only_does_not_reach_the_model() {
        let shown = json!({"type": "text", "text": "for you", "annotations": {"audience": ["user"]}});
        let both = json!({"type": "text", "text": "for both", "annotations": {"audience": ["user", "assistant"]}});
        let made = of(json!({"content": [shown, both], "isError": true}));
        assert_eq!(made.content, "for both");
        assert_eq!(made.details["for_user"][0]["text"], "for you");
        assert!(made.is_error);
    }
}
