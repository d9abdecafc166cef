//! A request in OpenAI's protocol.

use std::sync::atomic::Ordering;

use emitree_runtime::Result;
use serde_json::{Map, Value, json};

use crate::openai::Shared;
use crate::openai::content::{Images, content, result};
use crate::openai::rules::{self, Dialect, Order, Rules};
use crate::openai::schema;
use crate::openai::signature::{Peer, Returning};
use crate::{Arguments, ChatOptions, ChatRequest, Message, ResponseFormat, Role, ToolCall, ToolChoice, ToolSpec};

/// Returns the body of a request, the server and model that it is for, and a warning for each option that is not sent.
///
/// # Errors
///
/// Returns an error if a system or user message has an attachment that is not an image, or if the server refuses the
/// schema of a tool or of the response format.
pub(super) fn body(shared: &Shared, request: &ChatRequest) -> Result<(Map<String, Value>, Peer, Vec<String>)> {
    let ChatRequest { tools, options, .. } = request;
    let mut warnings = Vec::new();
    // `extra` may replace the model.
    let model = options.extra.get("model").and_then(Value::as_str).unwrap_or(&shared.model);
    let peer = Peer { server: shared.server.address.clone(), model: model.to_owned() };
    let mut rules = shared.rules.with_model(model);
    if !shared.images {
        rules.images = Images::Never;
    }
    let mut returning = Returning { peer, rules, has_changed: false };
    let messages = ordered(written(request, &mut returning)?, rules.order);
    if returning.has_changed && !shared.has_warned.swap(true, Ordering::Relaxed) {
        warnings.push(format!(
            "data that `{}` needs back was not sent, because middleware has changed the text or the call that it belongs to",
            shared.server.provider
        ));
    }
    let messages = messages.into_iter().map(Value::Object).collect::<Vec<_>>();
    let mut body =
        Map::from_iter([("model".to_owned(), shared.model.as_str().into()), ("messages".to_owned(), messages.into())]);
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
    set("response_format", response_format.as_ref().map(|answer| format(answer, rules.dialect)).transpose()?);
    if tools.is_empty() {
        // Servers refuse a tool choice without tools.
        if let Some(choice) = tool_choice {
            warnings.push(format!("the tool choice {choice:?} was not sent, because the request has no tools"));
        }
    } else {
        let tools = tools.iter().map(|spec| tool(spec, rules)).collect::<Result<Vec<_>>>()?;
        set("tools", Some(tools.into()));
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
    Ok((body, returning.peer, warnings))
}

/// A message in the form of the protocol.
type Sent = Map<String, Value>;

fn message_of(role: &str, content: impl Into<Value>) -> Sent {
    Map::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), content.into())])
}

/// Returns the messages of a request in the form of the protocol, with the data that the server needs back.
fn written(request: &ChatRequest, returning: &mut Returning) -> Result<Vec<Sent>> {
    let ChatRequest { system, messages, .. } = request;
    let mut list = Vec::with_capacity(messages.len() + 1);
    if let Some(system) = system {
        list.push(message_of("system", system.as_str()));
    }
    let turn = messages.iter().rposition(|message| message.role == Role::User).unwrap_or(0);
    // The images of the results since the last message that is none.
    let mut behind = Vec::new();
    for (position, message) in messages.iter().enumerate() {
        if message.role == Role::Tool {
            write_results(&mut list, message, returning.rules, &mut behind);
            continue;
        }
        list.extend(message_of_images(&mut behind));
        write(&mut list, message, returning, position >= turn)?;
    }
    list.extend(message_of_images(&mut behind));
    Ok(list)
}

/// Appends a message for each tool result.
fn write_results(list: &mut Vec<Sent>, message: &Message, rules: Rules, behind: &mut Vec<Value>) {
    for one in message.tool_results() {
        let mut sent = message_of("tool", result(one, rules.images, behind));
        sent.insert("tool_call_id".to_owned(), rules.ids.fit(&one.id).into());
        list.push(sent);
    }
}

/// Returns a message of the user with the images of results, if there are any.
fn message_of_images(behind: &mut Vec<Value>) -> Option<Sent> {
    (!behind.is_empty()).then(|| message_of("user", std::mem::take(behind)))
}

/// Appends a message that has no results.
fn write(list: &mut Vec<Sent>, message: &Message, returning: &mut Returning, is_current: bool) -> Result<()> {
    match message.role {
        Role::Tool => {}
        Role::Assistant => {
            let text = message.text();
            let calls = message.tool_calls().map(|one| call(one, returning.rules)).collect::<Vec<_>>();
            let is_silent = text.trim().is_empty();
            let content = match (is_silent, returning.rules.content_of_calls) {
                (true, Some(content)) if !calls.is_empty() => content.into(),
                (true, None) if !calls.is_empty() => Value::Null,
                _ => text.into(),
            };
            let mut sent = message_of("assistant", content);
            let has_calls = !calls.is_empty();
            if has_calls {
                sent.insert("tool_calls".to_owned(), calls.into());
            }
            returning.add(&mut sent, message, is_current);
            // Most servers refuse a message of the model without content, which says nothing anyway.
            if !is_silent || has_calls || Returning::needs(&sent) {
                list.push(sent);
            }
        }
        Role::System | Role::User => {
            list.push(message_of(message.role.as_str(), content(message, returning.rules.images)?));
        }
    }
    Ok(())
}

/// Stands before a model's message at the beginning, if a conversation must begin with the user.
const BEGINNING: &str = "(The beginning of the conversation is left out.)";
/// Stands between a result and a message of the user, if the server refuses this order. The user has interrupted the
/// model, for example.
const BETWEEN: &str = "(The user sends a message.)";

/// Returns messages in an order of roles that the server accepts. What comes before a message depends on no later
/// message, so a server's cache of prompts keeps its use.
fn ordered(messages: Vec<Sent>, order: Order) -> Vec<Sent> {
    if order == Order::Any {
        return messages;
    }
    let alternates = order == Order::Alternating;
    let mut ordered = Vec::<Sent>::with_capacity(messages.len() + 1);
    for mut message in messages {
        let before = ordered.last().map(role);
        if alternates && role(&message) == "system" && before.is_some_and(|before| before != "system") {
            message.insert("role".to_owned(), "user".into());
        }
        match (before, role(&message)) {
            (None | Some("system"), "assistant") => ordered.push(message_of("user", BEGINNING)),
            (Some("tool"), "user") if alternates => ordered.push(message_of("assistant", BETWEEN)),
            _ => {}
        }
        match ordered.last_mut() {
            Some(last) if is_joined(last, &message, alternates) => join(last, message),
            _ => ordered.push(message),
        }
    }
    ordered
}

fn role(message: &Sent) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

/// Returns `true` if a message must become a part of the message before it.
fn is_joined(last: &Sent, message: &Sent, alternates: bool) -> bool {
    let role = role(message);
    // Results follow directly behind their calls, and each is a message of its own.
    let is_answer = role == "assistant" && !last.contains_key("tool_calls");
    role == self::role(last) && (is_answer || alternates && matches!(role, "user" | "system"))
}

/// Appends a message to a message of the same role: its texts after a blank line, its parts and its calls.
fn join(last: &mut Sent, message: Sent) {
    for (name, value) in message {
        if name == "role" || value.is_null() {
            continue;
        }
        let joined = match (last.remove(&name), value) {
            (None | Some(Value::Null), value) => value,
            (Some(Value::String(text)), Value::String(more)) if text.is_empty() => more.into(),
            (Some(Value::String(text)), Value::String(more)) => format!("{text}\n\n{more}").into(),
            (Some(before), value) if name == "content" => [content_parts(before), content_parts(value)].concat().into(),
            (Some(Value::Array(before)), Value::Array(more)) => [before, more].concat().into(),
            (Some(_), value) => value,
        };
        last.insert(name, joined);
    }
}

/// Returns the parts of a content that is a text or a list.
fn content_parts(content: Value) -> Vec<Value> {
    match content {
        Value::Array(parts) => parts,
        text => vec![json!({"type": "text", "text": text})],
    }
}

/// Returns a call. Its arguments are an object: many servers refuse a conversation with any other value.
fn call(call: &ToolCall, rules: Rules) -> Value {
    let arguments = match &call.arguments {
        Arguments::Json(Value::Object(_)) => call.arguments_text().into_owned(),
        Arguments::Json(Value::Null) => "{}".to_owned(),
        other => json!({"malformed": other.to_string()}).to_string(),
    };
    let function = json!({"name": rules::fit_name(&call.name, rules.dialect), "arguments": arguments});
    json!({"id": rules.ids.fit(&call.id), "type": "function", "function": function})
}

fn tool(spec: &ToolSpec, rules: Rules) -> Result<Value> {
    let ToolSpec { name, description, .. } = spec;
    let parameters = schema::adapted(spec, rules.dialect)?;
    Ok(json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}))
}

fn choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Tool(name) => json!({"type": "function", "function": {"name": name}}),
    }
}

fn format(format: &ResponseFormat, dialect: Dialect) -> Result<Value> {
    Ok(match format {
        ResponseFormat::Text => json!({"type": "text"}),
        ResponseFormat::JsonObject => json!({"type": "json_object"}),
        ResponseFormat::JsonSchema { name, schema } => {
            let schema = schema::adapted_format(name, schema, dialect)?;
            json!({"type": "json_schema", "json_schema": {"name": rules::fit_name(name, dialect), "schema": schema}})
        }
    })
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
