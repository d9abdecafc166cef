//! The requests that a server receives, and providers that cannot be built.

use std::sync::{Arc, OnceLock};

use emitree_agent::{
    Agent, Arguments, ChatModel, ChatRequest, Message, OpenAi, Part, Provider, ResponseFormat, Role, ToolCall,
    ToolChoice, ToolResult, ToolSpec,
};
use emitree_runtime::{Result, RunContext, Runnable, TraceParent};
use schemars::JsonSchema;
use serde_json::{Value, json};

use super::server::{Answer, Server};

fn hello() -> Answer {
    Answer::json("200 OK", &json!({"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}))
}

/// Sends a request, and returns the body that the server received and the warnings of the response.
async fn sent(request: ChatRequest) -> Result<(Value, Vec<String>)> {
    let server = Server::start([hello()]).await;
    let response = server.model().run(request).await?;
    Ok((server.requests()[0].body.clone(), response.warnings))
}

/// R16.
#[tokio::test]
async fn a_request_names_its_run_as_the_parent_if_this_is_asked_for() -> Result<()> {
    let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let parent = || TraceParent::parse(header).map(|parent| parent.with_state("vendor=7,other=8"));
    for is_sent in [false, true] {
        let server = Server::start([hello(), hello()]).await;
        let model = ChatModel::new(server.provider().trace_parent(is_sent).build()?)?;
        let sent = Arc::new(OnceLock::new());
        let own = Arc::clone(&sent);
        let note = move |ctx: &RunContext| -> Result<()> {
            _ = own.set(ctx.trace_parent().to_string());
            Ok(())
        };
        model.run("Hello.".into()).trace_parent(parent()?).middleware(note).await?;
        model.run("Hello.".into()).await?;
        let requests = server.requests();
        let has = |request: usize, line: &str| requests[request].head.to_lowercase().contains(line);
        let own = sent.get().expect("a run");
        assert!(own.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && own.ends_with("-01") && own != header);
        assert_eq!(has(0, &format!("traceparent: {own}\r\n")), is_sent, "{}", requests[0].head);
        assert_eq!(has(0, "tracestate: vendor=7,other=8\r\n"), is_sent);
        assert_eq!([has(1, "traceparent: 00-"), has(1, "tracestate")], [is_sent, false]);
    }
    Ok(())
}

/// E19.
#[test]
fn a_provider_states_the_host_and_the_port_of_its_base_url() -> Result<()> {
    let rows = [
        ("https://api.example.org/v1", ("api.example.org", 443)),
        ("http://me:secret@localhost:8000", ("localhost", 8000)),
        ("http://[::1]/v1?key=secret", ("::1", 80)),
    ];
    for (url, server) in rows {
        assert_eq!(OpenAi::builder("m").base_url(url).build()?.server(), Some(server));
    }
    Ok(())
}

#[tokio::test]
async fn a_conversation_is_sent_in_the_form_of_the_protocol() -> Result<()> {
    let calls = Message::new(
        Role::Assistant,
        [
            Part::reasoning("not sent back", None),
            Part::Text { content: "Let me look.".into() },
            Part::ToolCall(ToolCall::new("a", "count", json!({"path": "x"}))),
            Part::ToolCall(ToolCall::new("b", "count", Arguments::Malformed("{\"path\"".into()))),
        ],
    );
    let image = Part::Uri { modality: "image".into(), mime_type: None, uri: "data:image/png;base64,AA".into() };
    let mut request = ChatRequest::new([
        Message::user("How many?"),
        calls,
        Message::tool([ToolResult::new("a", 4), ToolResult::error("b", "not JSON")]),
        Message::assistant("Four."),
        Message::new(Role::User, [Part::Text { content: "And here?".into() }, image]),
    ]);
    request.system = Some("Answer briefly.".into());
    let (body, warnings) = sent(request).await?;
    let function = |name: &str, arguments: &str| json!({"name": name, "arguments": arguments});
    assert_eq!(
        body,
        json!({"model": "m-1", "messages": [
            {"role": "system", "content": "Answer briefly."},
            {"role": "user", "content": "How many?"},
            {"role": "assistant", "content": "Let me look.", "tool_calls": [
                {"id": "a", "type": "function", "function": function("count", "{\"path\":\"x\"}")},
                {"id": "b", "type": "function", "function": function("count", "{\"malformed\":\"{\\\"path\\\"\"}")},
            ]},
            {"role": "tool", "tool_call_id": "a", "content": "4"},
            {"role": "tool", "tool_call_id": "b", "content": "not JSON"},
            {"role": "assistant", "content": "Four."},
            {"role": "user", "content": [
                {"type": "text", "text": "And here?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
            ]},
        ]})
    );
    assert!(warnings.is_empty(), "{warnings:?}");
    Ok(())
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Person {
    name: String,
}

#[tokio::test]
async fn each_option_is_sent_under_its_name() -> Result<()> {
    let mut request = ChatRequest::from("hi");
    let spec = ToolSpec::new("count", "Counts", json!({"type": "object"}));
    request.tools = Arc::new(vec![spec]);
    let options = &mut request.options;
    (options.temperature, options.max_tokens, options.seed) = (Some(0.5), Some(100), Some(7));
    options.stop = vec!["END".into()];
    options.response_format = Some(ResponseFormat::of::<Person>());
    options.tool_choice = Some(ToolChoice::Tool("count".into()));
    let extra = json!({"reasoning_effort": "low", "temperature": 0.25, "seed": null});
    options.extra = extra.as_object().expect("an object").clone();
    let (mut body, _) = sent(request).await?;
    body.as_object_mut().expect("an object").remove("messages");
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    assert_eq!(
        body,
        json!({
            "model": "m-1", "temperature": 0.25, "max_tokens": 100, "stop": ["END"], "reasoning_effort": "low",
            "response_format": {"type": "json_schema", "json_schema": {"name": "Person", "schema": schema}},
            "tools": [{"type": "function", "function": {
                "name": "count", "description": "Counts", "parameters": {"type": "object", "properties": {}},
            }}],
            "tool_choice": {"type": "function", "function": {"name": "count"}},
        })
    );
    Ok(())
}

#[tokio::test]
async fn a_stream_requests_token_counts_unless_stream_usage_is_off() -> Result<()> {
    let stream = || Answer::stream([&b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"[..]]);
    let server = Server::start([stream(), stream()]).await;
    for (stream_usage, options) in [(true, json!({"include_usage": true})), (false, Value::Null)] {
        let model = ChatModel::new(server.provider().stream_usage(stream_usage).build()?)?;
        model.run("hi".into()).on_start(|start, _| start.input.options.stream = Some(true)).await?;
        let body = server.requests().pop().expect("a request").body;
        assert_eq!((&body["stream"], &body["stream_options"]), (&json!(true), &options));
    }
    Ok(())
}

#[tokio::test]
async fn a_tool_choice_without_tools_is_a_warning_and_an_unsupported_attachment_is_an_error() -> Result<()> {
    let mut request = ChatRequest::from("hi");
    request.options.tool_choice = Some(ToolChoice::Required);
    let (body, warnings) = sent(request).await?;
    assert_eq!(body["tool_choice"], Value::Null);
    assert_eq!(warnings, ["the tool choice Required was not sent, because the request has no tools"]);

    let sound = Part::Uri { modality: "audio".into(), mime_type: None, uri: "https://example.com/a.mp3".into() };
    let error = sent(Message::new(Role::User, [sound]).into()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "an attachment of the kind `audio` cannot be sent in OpenAI's protocol: send an `image`, or text"
    );
    Ok(())
}

#[tokio::test]
async fn the_key_the_headers_and_the_query_of_the_base_url_are_sent_with_each_request() -> Result<()> {
    let server = Server::start([hello(), hello()]).await;
    let provider = server
        .provider()
        .base_url(format!("{}/?api-version=2", server.url()))
        .api_key("sk-1")
        .header("X-Title", "emitree")
        .build()?;
    let model = ChatModel::new(provider)?;
    model.run("hi".into()).await?;
    model.run("and again".into()).await?;
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    for head in requests.into_iter().map(|request| request.head) {
        assert!(head.starts_with("post /v1/chat/completions?api-version=2 http/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nauthorization: bearer sk-1"), "{head}");
        assert!(head.contains("\r\nx-title: emitree"), "{head}");
    }
    Ok(())
}

#[tokio::test]
async fn clones_of_a_provider_share_their_connections() -> Result<()> {
    let server = Server::start([hello(), hello()]).await;
    let provider = server.provider().build()?;
    let agent = Agent::builder("one", ChatModel::new(provider.clone())?).build()?;
    agent.ask("hi").await?;
    Agent::builder("two", ChatModel::new(provider)?).build()?.ask("hi").await?;
    assert_eq!(server.connections(), 1);
    Ok(())
}

#[test]
fn a_provider_with_an_invalid_url_key_header_or_model_is_refused_by_build() {
    let local = || OpenAi::builder("m").base_url("http://localhost:1/v1");
    let table = [
        (
            local().base_url("localhost:8000").build(),
            "the base URL `localhost:8000` is not an HTTP URL: give an address such as `http://localhost:8000/v1`",
        ),
        (
            local().base_url("file:///tmp").build(),
            "the base URL `file:///tmp` is not an HTTP URL: give an address such as `http://localhost:8000/v1`",
        ),
        (
            local().base_url("").build(),
            "the base URL `` is not a URL (relative URL without a base): give an address such as `http://localhost:8000/v1`",
        ),
        (
            local().api_key("a\nb").build(),
            "the API key has characters that are not allowed in a header, such as a line break",
        ),
        (local().header("a b", "c").build(), "`a b` is not a valid header name"),
        (
            local().header("a", "c\nd").build(),
            "the value of the header `a` has characters that are not allowed in a header, such as a line break",
        ),
        (OpenAi::builder(" ").build(), "the model's name is empty: use the name that the server uses for the model"),
        (
            OpenAi::builder("gpt-5").build(),
            "`openai` needs an API key: set the environment variable `OPENAI_API_KEY` and use `from_name(\"openai:gpt-5\")`, or call `api_key`",
        ),
    ];
    for (built, message) in table {
        assert_eq!(built.unwrap_err().to_string(), message);
    }
}

#[test]
fn a_provider_has_the_name_of_its_known_server_and_an_unknown_server_is_quoted() -> Result<()> {
    let provider = OpenAi::from_name("llamacpp:qwen3:4b")?.build()?;
    let model = ChatModel::new(provider)?;
    assert_eq!(model.emitter().namespace().to_string(), "backend.chat.llamacpp");
    assert_eq!(model.name(), "qwen3:4b");
    let message = OpenAi::from_name("claude:opus").unwrap_err().to_string();
    assert!(
        message.starts_with("the server `claude` of `claude:opus` is not known; known servers are `openai`, "),
        "{message}"
    );
    assert!(ChatModel::from_name("llamacpp:qwen3")?.emitter().namespace().to_string().ends_with("llamacpp"));
    let error = ChatModel::register("llamacpp", |_| unreachable!("never registered")).unwrap_err();
    assert_eq!(error.to_string(), "the provider `llamacpp` is already known: choose another name");
    Ok(())
}
