//! Replies of servers: recorded streams that are split or cut off, whole replies, and deviations from the protocol.

use std::iter::StepBy;
use std::ops::Range;

use emitree_agent::{ChatRequest, ChatResponse, FinishReason, NewToken, Part, ResponseHeaders, Usage};
use emitree_runtime::{Result, Runnable};
use serde_json::{Value, json};

use super::server::{Answer, Server};
use crate::support::Log;

/// A recorded stream: its server, its bytes, and the parts, the finish reason and the usage of the response.
type Recorded = (&'static str, &'static [u8], Value, FinishReason, Option<Usage>);

fn recorded() -> Vec<Recorded> {
    let call = |id: &str, name: &str, arguments: Value| json!({"type": "tool_call", "id": id, "name": name, "arguments": arguments});
    let text = |content: &str| json!({"type": "text", "content": content});
    let reasoning = |content: &str| json!({"type": "reasoning", "content": content});
    let mut usage = Usage::new(31, 12);
    (usage.cached_input_tokens, usage.reasoning_tokens) = (8, 3);
    vec![
        (
            "llama.cpp",
            include_bytes!("streams/llama-cpp.txt"),
            json!([text("Hello! I'm here to help with any")]),
            FinishReason::Length,
            Some(Usage::new(33, 9)),
        ),
        (
            "OpenAI, interleaved calls",
            include_bytes!("streams/openai-interleaved-calls.txt"),
            json!([call("call_a", "count", json!({"path": "aä.md"})), call("call_b", "list", json!({"dir": "."}))]),
            FinishReason::ToolCall,
            Some(usage),
        ),
        (
            "OpenRouter, comments and CRLF",
            include_bytes!("streams/openrouter-comments-crlf.txt"),
            json!([text("Grüße, 日本語 🦀")]),
            FinishReason::Stop,
            Some(usage),
        ),
        (
            "DeepSeek, reasoning",
            include_bytes!("streams/deepseek-reasoning.txt"),
            json!([reasoning("Two and two."), text("Four.")]),
            FinishReason::Stop,
            Some(usage),
        ),
        (
            "Gemini, each call has the index 0",
            include_bytes!("streams/gemini-index-0.txt"),
            json!([call("f1", "count", json!({"path": "a"})), call("f2", "count", json!({"path": "b"}))]),
            FinishReason::Stop,
            Some(usage),
        ),
        (
            "Ollama, calls without index and id, no `[DONE]`, no last empty line",
            include_bytes!("streams/ollama-no-index-no-done.txt"),
            json!([reasoning("Hm."), call("", "count", json!({"path": "a"})), call("", "now", json!({}))]),
            FinishReason::ToolCall,
            None,
        ),
        (
            "an id in each piece, lines that end with CR",
            include_bytes!("streams/repeated-ids-cr.txt"),
            json!([call("x", "count", json!({"path": "a"}))]),
            FinishReason::ToolCall,
            None,
        ),
    ]
}

fn streaming() -> ChatRequest {
    let mut request = ChatRequest::from("hi");
    request.options.stream = Some(true);
    request
}

async fn receive(answers: Vec<Answer>) -> Result<Vec<ChatResponse>> {
    let requests = answers.len();
    let server = Server::start(answers).await;
    let model = server.model();
    let mut responses = Vec::with_capacity(requests);
    for _ in 0..requests {
        responses.push(model.run(streaming()).await?);
    }
    assert_eq!(server.connections(), 1, "each response was read to its end, so its connection was used again");
    Ok(responses)
}

/// Returns the parts of a response without the data that the server needs back.
fn plain_parts(response: &ChatResponse) -> Vec<Part> {
    let without = |part: &Part| match part {
        Part::Reasoning { content, .. } => Part::reasoning(content, None),
        Part::ToolCall(call) => {
            let mut call = call.clone();
            call.extra = None;
            Part::ToolCall(call)
        }
        part => part.clone(),
    };
    response.message.parts.iter().map(without).collect()
}

fn parts_of(response: &ChatResponse) -> Value {
    json!(plain_parts(response))
}

/// Returns the positions at which a stream is cut: all of them if `EMITREE_LONG` is set, and otherwise every eighth one, in
/// each process from another beginning.
fn positions(range: Range<usize>) -> StepBy<Range<usize>> {
    if std::env::var_os("EMITREE_LONG").is_some() {
        return range.step_by(1);
    }
    let first = range.start + std::process::id() as usize % 8;
    (first..range.end).step_by(8)
}

#[tokio::test]
async fn a_recorded_stream_results_in_the_same_response_wherever_its_bytes_are_split() -> Result<()> {
    for (name, bytes, parts, finish_reason, usage) in recorded() {
        let cuts = || positions(0..bytes.len());
        let answers = cuts().map(|cut| Answer::stream([&bytes[..cut], &bytes[cut..]]));
        for (cut, response) in cuts().zip(receive(answers.collect()).await?) {
            assert_eq!(parts_of(&response), parts, "{name}, cut at {cut}");
            assert_eq!(response.message.finish_reason.as_ref(), Some(&finish_reason), "{name}, cut at {cut}");
            assert_eq!(response.usage, usage, "{name}, cut at {cut}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_recorded_stream_that_is_cut_off_is_complete_or_a_retryable_error() -> Result<()> {
    for (name, bytes, parts, finish_reason, _) in recorded() {
        // Long streams are cut only near their end, because the earlier chunks are alike.
        let cuts = || positions(bytes.len().saturating_sub(700)..bytes.len());
        // The server ends the stream properly after the cut, or closes the connection.
        let ended = cuts().map(|cut| Answer::stream([&bytes[..cut]]));
        let closed = cuts().step_by(17).map(|cut| Answer::open_stream([&bytes[..cut]]).then_close());
        let server = Server::start(ended.chain(closed)).await;
        let model = server.model();
        for cut in cuts().chain(cuts().step_by(17)) {
            match model.run(streaming()).await {
                Ok(response) => {
                    assert_eq!(parts_of(&response), parts, "{name}, cut at {cut}");
                    assert_eq!(response.message.finish_reason.as_ref(), Some(&finish_reason), "{name}, cut at {cut}");
                }
                Err(error) => assert!(error.is_retryable(), "{name}, cut at {cut}: {error}"),
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_recorded_stream_may_arrive_byte_by_byte() -> Result<()> {
    for (name, bytes, parts, ..) in recorded() {
        let response = receive(vec![Answer::stream(bytes.chunks(1))]).await?.remove(0);
        assert_eq!(parts_of(&response), parts, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn a_whole_reply_is_read_with_its_reasoning_text_calls_and_usage() -> Result<()> {
    let whole = json!({
        "id": "c1", "model": "m-1",
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": "Let me look.", "reasoning_content": "A file.", "refusal": null,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "count", "arguments": "{\"path\": \"a\"}"}},
                {"id": "", "type": "function", "function": {"name": "now", "arguments": ""}},
                {"id": "c", "type": "function", "function": {"name": "count", "arguments": "{\"path\": "}},
            ],
        }}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    });
    let server = Server::start([Answer::json("200 OK", &whole)]).await;
    let response = server.model().run("hi".into()).await?;
    assert_eq!(
        parts_of(&response),
        json!([
            {"type": "reasoning", "content": "A file."},
            {"type": "text", "content": "Let me look."},
            {"type": "tool_call", "id": "a", "name": "count", "arguments": {"path": "a"}},
            {"type": "tool_call", "id": "", "name": "now", "arguments": {}},
            {"type": "tool_call", "id": "c", "name": "count", "arguments": "{\"path\": ", "malformed": true},
        ])
    );
    assert_eq!((response.id.as_deref(), response.model.as_deref()), (Some("c1"), Some("m-1")));
    assert_eq!(response.usage, Some(Usage::new(3, 4)));
    Ok(())
}

#[tokio::test]
async fn a_server_may_send_a_whole_reply_to_a_streaming_request() -> Result<()> {
    let whole = json!({"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]});
    let server = Server::start([Answer::json("200 OK", &whole)]).await;
    let log = Log::default();
    let to = log.clone();
    let model = server.model();
    let run = model.run(streaming()).on("new_token", move |token: &mut NewToken, _| to.add(token.text()));
    assert_eq!(run.await?.text(), "Hello.");
    assert_eq!(log.lines(), ["Hello."]);
    Ok(())
}

#[tokio::test]
async fn the_content_type_decides_how_a_reply_is_read_and_without_one_the_request_decides() -> Result<()> {
    let whole = json!({"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}).to_string();
    let chunk = json!({"choices": [{"delta": {"content": "Hello."}, "finish_reason": "stop"}]});
    let stream = format!("data: {chunk}\n\ndata: [DONE]\n\n");
    let table = [
        (Some("Text/Event-Stream; charset=utf-8"), &stream, false),
        (Some("application/json"), &whole, true),
        (None, &stream, true),
        (None, &whole, false),
    ];
    for (content_type, body, streams) in table {
        let headers: Vec<_> = content_type.map(|value| ("content-type", value)).into_iter().collect();
        let server = Server::start([Answer::new("200 OK", &headers, body)]).await;
        let request = if streams { streaming() } else { "hi".into() };
        assert_eq!(server.model().run(request).await?.text(), "Hello.", "{content_type:?}, {streams}");
    }
    Ok(())
}

#[tokio::test]
async fn content_parts_and_refusals_are_read_and_further_choices_are_ignored_with_a_warning() -> Result<()> {
    let chunks = [
        json!({"choices": [{"index": 0, "delta": {"content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "Yes"},
        ]}}]}),
        json!({"choices": [{"index": 1, "delta": {"content": "No"}}, {"index": 0, "delta": {"refusal": ", but no."}}]}),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
    ];
    let bytes: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    let response = receive(vec![Answer::stream([bytes.as_bytes()])]).await?.remove(0);
    let reasoning = Part::reasoning("Hm.", None);
    assert_eq!(plain_parts(&response), [reasoning, Part::Text { content: "Yes, but no.".into() }]);
    assert_eq!(
        response.warnings,
        [
            "the server sent several answers: only the first is used",
            "the model refused the request: the answer contains its refusal"
        ]
    );
    Ok(())
}

#[tokio::test]
async fn response_headers_are_emitted_with_the_rate_limits_and_without_cookies() -> Result<()> {
    let headers = [
        ("content-type", "application/json"),
        ("set-cookie", "session=s3cr3t"),
        ("x-ratelimit-remaining-requests", "4"),
        ("x-ratelimit-reset-requests", "1m30s"),
        ("x-many", "a"),
        ("x-many", "b"),
    ];
    let whole = json!({"choices": [{"message": {"content": "Hello."}}]}).to_string();
    let server = Server::start([Answer::new("200 OK", &headers, whole)]).await;
    let log = Log::default();
    let to = log.clone();
    let model = server.model();
    let run = model.run("hi".into()).on("response_headers", move |event: &mut ResponseHeaders, _| {
        let limits = &event.rate_limits;
        to.add(format!("{:?} {:?}", limits.remaining_requests, limits.reset_requests_ms));
        to.add(format!("{} {}", event.headers["x-many"], event.headers["set-cookie"]));
    });
    let response = run.await?;
    assert_eq!(log.lines(), ["Some(4) Some(90000)", "a, b …"]);
    assert_eq!(response.headers["content-type"], "application/json");
    Ok(())
}

fn stream_of(chunks: &[Value]) -> Answer {
    let bytes: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    Answer::stream([bytes.as_bytes()])
}

#[tokio::test]
async fn reasoning_is_read_from_the_field_with_text_and_only_once_if_both_fields_have_it() -> Result<()> {
    let deltas = [
        json!({"reasoning": "a", "reasoning_content": ""}),
        json!({"reasoning": "", "reasoning_content": "b"}),
        json!({"reasoning": "c", "reasoning_content": "c"}),
        json!({"reasoning": null, "reasoning_content": null, "content": "d"}),
    ];
    let mut chunks: Vec<_> = deltas.iter().map(|delta| json!({"choices": [{"delta": delta}]})).collect();
    chunks.push(json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}));
    let response = receive(vec![stream_of(&chunks)]).await?.remove(0);
    let reasoning = Part::reasoning("abc", None);
    assert_eq!(plain_parts(&response), [reasoning, Part::Text { content: "d".into() }]);
    Ok(())
}

#[tokio::test]
async fn null_and_empty_fields_are_treated_as_missing() -> Result<()> {
    let chunks = [
        json!({"id": null, "model": null, "error": null, "usage": {}, "choices": [
            {"index": null, "delta": {"content": "a", "tool_calls": null, "refusal": null}, "finish_reason": null},
        ]}),
        // Some servers add the field `message` to each chunk.
        json!({"usage": null, "choices": [{"delta": {"content": "b"}, "message": {"content": null}, "finish_reason": ""}]}),
        json!({"choices": null}),
        json!({"choices": [{"delta": null, "message": null, "finish_reason": "stop"}]}),
    ];
    let response = receive(vec![stream_of(&chunks)]).await?.remove(0);
    assert_eq!((response.text().as_str(), response.usage), ("ab", None));
    Ok(())
}

#[tokio::test]
async fn the_last_token_counts_of_a_stream_are_the_counts_of_the_reply() -> Result<()> {
    let counts = |input: Value, output: Value| json!({"prompt_tokens": input, "completion_tokens": output});
    let text = |text: &str, usage: Value| json!({"choices": [{"delta": {"content": text}}], "usage": usage});
    let chunks = [
        text("a", counts(json!(5), Value::Null)),
        text("b", counts(json!(5), json!(2))),
        json!({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": counts(json!(5), json!(3))}),
        json!({"choices": [], "usage": {}}),
    ];
    let response = receive(vec![stream_of(&chunks)]).await?.remove(0);
    assert_eq!(response.usage, Some(Usage::new(5, 3)));
    Ok(())
}

/// Streams chunks with these pieces of tool calls. Returns the tool calls of the response.
async fn calls(chunks: Value) -> Result<Value> {
    let event = |pieces: &Value| format!("data: {}\n\n", json!({"choices": [{"delta": {"tool_calls": pieces}}]}));
    let events: String = chunks.as_array().expect("chunks").iter().map(event).collect();
    let response = receive(vec![Answer::stream([events.as_bytes(), b"data: [DONE]\n\n"])]).await?.remove(0);
    let call = |call: &emitree_agent::ToolCall| json!([call.id, call.name, call.arguments.to_string()]);
    Ok(response.message.tool_calls().map(call).collect())
}

fn piece(index: impl Into<Value>, id: &str, name: &str, arguments: &str) -> Value {
    json!({"index": index.into(), "id": id, "function": {"name": name, "arguments": arguments}})
}

#[tokio::test]
async fn calls_are_distinguished_even_if_indices_or_ids_are_missing_or_repeated() -> Result<()> {
    let (none, zero) = (Value::Null, json!(0));
    let two = json!([["", "a", "{\"n\":1}"], ["", "a", "{\"n\":2}"]]);
    let (one, other) = ("{\"n\":1}", "{\"n\":2}");
    let table = [
        (
            "no index, no ids, one chunk",
            json!([[piece(none.clone(), "", "a", one), piece(none.clone(), "", "a", other)]]),
            two.clone(),
        ),
        (
            "no index, no ids",
            json!([[piece(none.clone(), "", "a", one)], [piece(none.clone(), "", "a", other)]]),
            two.clone(),
        ),
        ("index 0, no ids", json!([[piece(zero.clone(), "", "a", one)], [piece(zero.clone(), "", "a", other)]]), two),
        (
            "index 0, no ids, the arguments in pieces",
            json!([
                [piece(zero.clone(), "", "a", "")],
                [piece(zero.clone(), "", "", "{\"n\"")],
                [piece(zero.clone(), "", "", ":1}")],
                [piece(zero.clone(), "", "b", "")],
                [piece(zero.clone(), "", "", "{}")],
            ]),
            json!([["", "a", "{\"n\":1}"], ["", "b", "{}"]]),
        ),
        (
            "equal ids, no index",
            json!([[piece(none.clone(), "x", "a", one)], [piece(none.clone(), "x", "a", other)]]),
            json!([["x", "a", "{\"n\":1}"], ["x", "a", "{\"n\":2}"]]),
        ),
        (
            "equal ids, the indices differ",
            json!([
                [piece(json!(0), "x", "a", ""), piece(json!(1), "x", "a", "")],
                [piece(json!(1), "", "", other), piece(json!(0), "", "", one)],
            ]),
            json!([["x", "a", "{\"n\":1}"], ["x", "a", "{\"n\":2}"]]),
        ),
        (
            "id and name in each piece",
            json!([
                [piece(zero.clone(), "x", "a", "{\"n\"")],
                [piece(zero.clone(), "x", "a", ":")],
                [piece(zero, "x", "a", "1}")]
            ]),
            json!([["x", "a", "{\"n\":1}"]]),
        ),
        (
            "the name in each piece, no index, no ids",
            json!([[piece(none.clone(), "", "a", "{\"n\"")], [piece(none, "", "a", ":1}")]]),
            json!([["", "a", "{\"n\":1}"]]),
        ),
    ];
    for (name, chunks, expected) in table {
        assert_eq!(calls(chunks).await?, expected, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn calls_without_arguments_are_distinguished_by_their_ids_or_positions() -> Result<()> {
    let now = |index: Value, id: &str| piece(index, id, "now", "");
    let none = Value::Null;
    let two_chunks = json!([[now(json!(0), "x")], [now(json!(0), "y")]]);
    assert_eq!(calls(two_chunks).await?, json!([["x", "now", "{}"], ["y", "now", "{}"]]));
    let one_chunk = json!([[now(none.clone(), ""), now(none, "")]]);
    assert_eq!(calls(one_chunk).await?, json!([["", "now", "{}"], ["", "now", "{}"]]));
    Ok(())
}

#[tokio::test]
async fn the_pieces_of_a_call_stay_together_even_if_later_ids_or_indices_differ() -> Result<()> {
    let none = Value::Null;
    let table = [
        (
            "another id in each piece",
            json!([
                [piece(json!(0), "x", "a", "{\"n\"")],
                [piece(json!(0), "y", "", ":")],
                [piece(json!(0), "z", "", "1}")],
            ]),
            json!([["x", "a", "{\"n\":1}"]]),
        ),
        (
            "another id in each piece, no index",
            json!([[piece(none.clone(), "x", "a", "{\"n\"")], [piece(none.clone(), "y", "", ":1}")]]),
            json!([["x", "a", "{\"n\":1}"]]),
        ),
        (
            "no index, interleaved by their ids",
            json!([
                [piece(none.clone(), "x", "a", "{\"n\""), piece(none.clone(), "y", "a", "{\"n\"")],
                [piece(none.clone(), "x", "", ":1}")],
                [piece(none.clone(), "y", "", ":2}")],
            ]),
            json!([["x", "a", "{\"n\":1}"], ["y", "a", "{\"n\":2}"]]),
        ),
        (
            "an index only in the first piece",
            json!([[piece(json!(0), "x", "a", "{\"n\"")], [piece(none, "", "", ":1}")]]),
            json!([["x", "a", "{\"n\":1}"]]),
        ),
    ];
    for (name, chunks, expected) in table {
        assert_eq!(calls(chunks).await?, expected, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn calls_of_a_whole_reply_stay_separate_even_if_their_ids_are_equal() -> Result<()> {
    let call =
        |zone: &str| json!({"id": "x", "function": {"name": "now", "arguments": format!("{{\"zone\":\"{zone}\"}}")}});
    let whole = json!({"choices": [{"message": {"tool_calls": [call("UTC"), call("CET")]}}]});
    let server = Server::start([Answer::json("200 OK", &whole)]).await;
    assert_eq!(server.model().run("hi".into()).await?.message.tool_calls().count(), 2);
    Ok(())
}

#[tokio::test]
async fn the_calls_of_a_stream_are_in_the_order_of_their_index() -> Result<()> {
    let call =
        |index: u64, name: &str| json!({"index": index, "id": name, "function": {"name": name, "arguments": "{}"}});
    let chunks = [
        json!({"choices": [{"delta": {"tool_calls": [call(2, "c"), call(0, "a")]}}]}),
        json!({"choices": [{"delta": {"tool_calls": [call(1, "b")]}}]}),
        json!({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}),
    ];
    let response = receive(vec![stream_of(&chunks)]).await?.remove(0);
    let names: Vec<_> = response.message.tool_calls().map(|call| call.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    Ok(())
}
