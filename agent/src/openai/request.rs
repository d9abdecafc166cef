//! A request in OpenAI's protocol.

use std::sync::atomic::Ordering;

use emitree_runtime::{Error, Result};
use serde_json::{Map, Value, json};

use crate::openai::Shared;
use crate::openai::rules::Rules;
use crate::openai::signature::{Peer, Returning};
use crate::{Arguments, ChatOptions, ChatRequest, Message, Part, ResponseFormat, Role, ToolCall, ToolChoice, ToolSpec};

/// Returns the body of a request, the server and model that it is for, and a warning for each option that is not sent.
///
/// # Errors
///
/// Returns an error if a system or user message has an attachment that is not an image.
pub(super) fn body(shared: &Shared, request: &ChatRequest) -> Result<(Map<String, Value>, Peer, Vec<String>)> {
    let ChatRequest { system, messages: _, tools, options } = request;
    let mut warnings = Vec::new();
    let mut list = Vec::new();
    if let Some(system) = system {
        list.push(json!({"role": "system", "content": system}));
    }
    let peer = push_all(&mut list, shared, request, &mut warnings)?;
    let mut body =
        Map::from_iter([("model".to_owned(), shared.model.as_str().into()), ("messages".to_owned(), list.into())]);
    let ChatOptions { temperature, max_tokens, stop, seed, response_format, tool_choice, stream, extra } = options;
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    };
    set("temperature", temperature.map(Value::from));
    // OpenAI's newer models refuse `max_tokens`, and many other servers do not support `max_completion_tokens`.
    let max = if shared.is_official { "max_completion_tokens" } else { "max_tokens" };
    set(max, max_tokens.map(Value::from));
    set("stop", (!stop.is_empty()).then(|| stop.clone().into()));
    set("seed", seed.map(Value::from));
    set("response_format", response_format.as_ref().map(format));
    if tools.is_empty() {
        // Servers refuse a tool choice without tools.
        if let Some(choice) = tool_choice {
            warnings.push(format!("the tool choice {choice:?} was not sent, because the request has no tools"));
        }
    } else {
        set("tools", Some(tools.iter().map(tool).collect()));
        set("tool_choice", tool_choice.as_ref().map(choice));
    }
    if *stream == Some(true) {
        set("stream", Some(true.into()));
        set("stream_options", shared.stream_usage.then(|| json!({"include_usage": true})));
    }
    for (name, value) in extra {
        match value {
            Value::Null => drop(body.remove(name)),
            value => drop(body.insert(name.clone(), value.clone())),
        }
    }
    Ok((body, peer, warnings))
}

/// Appends the messages of a request, with the data that the server needs back.
fn push_all(list: &mut Vec<Value>, shared: &Shared, request: &ChatRequest, warnings: &mut Vec<String>) -> Result<Peer> {
    let ChatRequest { messages, options, .. } = request;
    // `extra` may replace the model.
    let model = options.extra.get("model").and_then(Value::as_str).unwrap_or(&shared.model);
    let peer = Peer { server: shared.server.address.clone(), model: model.to_owned() };
    let mut returning = Returning { peer, rules: shared.rules.with_model(model), has_changed: false };
    let turn = messages.iter().rposition(|message| message.role == Role::User).unwrap_or(0);
    for (position, message) in messages.iter().enumerate() {
        push(list, message, &mut returning, position >= turn)?;
    }
    if returning.has_changed && !shared.has_warned.swap(true, Ordering::Relaxed) {
        warnings.push(format!(
            "data that `{}` needs back was not sent, because middleware has changed the text or the call that it belongs to",
            shared.server.provider
        ));
    }
    Ok(returning.peer)
}

/// Appends a message. Each tool result becomes a message of its own.
fn push(list: &mut Vec<Value>, message: &Message, returning: &mut Returning, is_current: bool) -> Result<()> {
    match message.role {
        Role::Tool => {
            for result in message.tool_results() {
                let id = returning.rules.ids.fit(&result.id);
                list.push(json!({"role": "tool", "tool_call_id": id, "content": text_of(&result.response)}));
            }
        }
        Role::Assistant => {
            let text = message.text();
            let calls = message.tool_calls().map(|one| call(one, returning.rules)).collect::<Vec<_>>();
            let is_only_calls = text.is_empty() && !calls.is_empty();
            let content = if is_only_calls { Value::Null } else { text.into() };
            let mut sent = Map::from_iter([("role".to_owned(), "assistant".into()), ("content".to_owned(), content)]);
            if !calls.is_empty() {
                sent.insert("tool_calls".to_owned(), calls.into());
            }
            returning.add(&mut sent, message, is_current);
            list.push(sent.into());
        }
        Role::System | Role::User => {
            list.push(json!({"role": message.role.as_str(), "content": content(message)?}));
        }
    }
    Ok(())
}

/// Returns the content of a message: a text, or a list of parts if the message has attachments.
fn content(message: &Message) -> Result<Value> {
    if message.parts.iter().all(|part| matches!(part, Part::Text { .. })) {
        return Ok(message.text().into());
    }
    let mut parts = Vec::with_capacity(message.parts.len());
    for part in &message.parts {
        match part {
            Part::Text { content } => parts.push(json!({"type": "text", "text": content})),
            Part::Uri { modality, uri, .. } if modality == "image" => {
                parts.push(json!({"type": "image_url", "image_url": {"url": uri}}));
            }
            Part::Uri { modality, .. } => {
                return Err(Error::new(format!(
                    "an attachment of the kind `{modality}` cannot be sent in OpenAI's protocol: send an `image`, or text"
                )));
            }
            // A valid history has these parts only in messages of models and tools.
            Part::Reasoning { .. } | Part::ToolCall(_) | Part::ToolCallResponse(_) => {}
        }
    }
    Ok(parts.into())
}

fn call(call: &ToolCall, rules: Rules) -> Value {
    let arguments = match &call.arguments {
        Arguments::Json(value) => value.to_string(),
        Arguments::Malformed(text) => json!({"malformed": text}).to_string(),
    };
    json!({"id": rules.ids.fit(&call.id), "type": "function", "function": {"name": call.name, "arguments": arguments}})
}

fn tool(spec: &ToolSpec) -> Value {
    let ToolSpec { name, description, parameters } = spec;
    json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
}

fn choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Tool(name) => json!({"type": "function", "function": {"name": name}}),
    }
}

fn format(format: &ResponseFormat) -> Value {
    match format {
        ResponseFormat::Text => json!({"type": "text"}),
        ResponseFormat::JsonObject => json!({"type": "json_object"}),
        ResponseFormat::JsonSchema { name, schema } => {
            json!({"type": "json_schema", "json_schema": {"name": name, "schema": schema}})
        }
    }
}

/// Returns a string unchanged, and any other value as JSON.
fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenAi;

    #[test]
    fn the_token_limit_is_max_completion_tokens_for_openai_and_max_tokens_for_other_servers() {
        let table = [
            ("https://api.openai.com/v1", "max_completion_tokens", "max_tokens"),
            ("https://eu.api.openai.com/v1", "max_completion_tokens", "max_tokens"),
            ("http://localhost:8000/v1", "max_tokens", "max_completion_tokens"),
            ("http://api.openai.com.localhost/v1", "max_tokens", "max_completion_tokens"),
        ];
        let mut request = ChatRequest::from("hi");
        request.options.max_tokens = Some(7);
        for (url, name, other) in table {
            let provider = OpenAi::builder("m").base_url(url).build().unwrap();
            let (body, ..) = body(&provider.shared, &request).unwrap();
            assert_eq!((body.get(name), body.get(other)), (Some(&json!(7)), None), "{url}");
        }
    }
}
