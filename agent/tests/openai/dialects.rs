//! What servers send beside the protocol: each thing is read as its sender meant it, or the error says what came. The
//! sources are in `docs/models.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use emitree_agent::{
    Agent, ChatRequest, ChatResponse, NewToken, Part, ServerError, ServerErrorKind, ToolCall, tool_fn,
};
use emitree_runtime::{Error, Result, RunContext, Runnable};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::server::{Answer, Server};
use crate::support::{Log, results};

const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n";
const END: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"lo.\"},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn streaming() -> ChatRequest {
    let mut request = ChatRequest::from("hi");
    request.options.stream = Some(true);
    request
}

fn labelled(label: &str, body: impl AsRef<[u8]>) -> Answer {
    Answer::new("200 OK", &[("content-type", label)], body)
}

async fn receive(answer: Answer) -> Result<ChatResponse> {
    Server::start([answer]).await.model().run(streaming()).await
}

fn stream(chunks: &[Value]) -> Answer {
    let events: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    Answer::stream([events.as_bytes(), DONE.as_bytes()])
}

fn cause(error: &Error) -> &ServerError {
    error.find::<ServerError>().expect("a typed cause")
}

/// Chunks with one call, whose arguments have these pieces.
fn call(pieces: &[&str]) -> Vec<Value> {
    let first = json!({"index": 0, "id": "a", "function": {"name": "now", "arguments": ""}});
    let later = pieces.iter().map(|piece| json!({"index": 0, "function": {"arguments": piece}}));
    let chunks = [first].into_iter().chain(later).map(|call| json!({"choices": [{"delta": {"tool_calls": [call]}}]}));
    chunks.chain([json!({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})]).collect()
}

#[tokio::test]
async fn numeric_ids_are_read_as_text() -> Result<()> {
    let call = json!({"index": 0, "id": 123, "function": {"name": "now", "arguments": "{}"}});
    let message = json!({"tool_calls": [call]});
    let stream = stream(&[
        json!({"id": 7, "model": 4.5, "choices": [{"delta": message}]}),
        json!({"id": 7, "model": 4.5, "choices": [{"delta": {}, "finish_reason": "tool_calls"}]}),
    ]);
    let choice = json!({"message": message, "finish_reason": "tool_calls"});
    let whole = Answer::json("200 OK", &json!({"id": 7, "model": 4.5, "choices": [choice]}));
    for answer in [stream, whole] {
        let response = receive(answer).await?;
        assert_eq!((response.id.as_deref(), response.model.as_deref()), (Some("7"), Some("4.5")));
        let ids: Vec<_> = response.message.tool_calls().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["123"]);
    }
    Ok(())
}

#[tokio::test]
async fn an_event_stream_is_read_as_one_whatever_its_label_says() -> Result<()> {
    let labels = ["text/plain", "application/octet-stream", "application/json; charset=utf-8", "application/x-ndjson"];
    let begins = ["", "\n", "\u{feff}", ": wait\n\n", "event: message\n", "id: 1\r\n", "retry:5\n"];
    for label in labels {
        for begin in begins {
            for request in [streaming(), ChatRequest::from("hi")] {
                let server = Server::start([labelled(label, [begin, TEXT, END, DONE].concat())]).await;
                let log = Log::default();
                let to = log.clone();
                let model = server.model();
                let run = model.run(request.clone());
                let run = run.on("new_token", move |token: &mut NewToken, _| to.add(token.text()));
                assert_eq!(run.await?.text(), "Hello.", "{label}, {begin:?}");
                if request == streaming() {
                    assert_eq!(log.lines(), ["Hel", "lo."], "{label}, {begin:?}");
                }
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn chunks_and_whole_replies_without_the_framing_of_events_are_read() -> Result<()> {
    let chunk = |text: &str, end: Value| json!({"choices": [{"delta": {"content": text}, "finish_reason": end}]});
    let lines = format!("{}\n{}\n", chunk("Hel", Value::Null), chunk("lo.", json!("stop")));
    let whole = json!({"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]});
    let pretty = serde_json::to_string_pretty(&whole)?;
    let table = [
        ("application/x-ndjson", lines.clone()),
        ("application/jsonl", lines.clone()),
        ("text/event-stream", lines),
        ("text/event-stream", pretty.clone()),
        ("text/event-stream", pretty.replace('\n', "\r\n")),
        ("text/event-stream", whole.to_string()),
        ("text/plain", pretty.clone()),
        ("application/octet-stream", whole.to_string()),
        ("application/json", format!("\u{feff}{whole}")),
    ];
    for (label, body) in table {
        assert_eq!(receive(labelled(label, &body)).await?.text(), "Hello.", "{label}: {body}");
    }
    Ok(())
}

/// A `gzip` stream with one stored block, whose contents do not matter.
const GZIP: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x01\x02\0\xfd\xff{}\xa3\xef\xbf\x43\x02\0\0\0";

#[tokio::test]
async fn a_reply_that_nobody_asked_to_compress_is_an_error_that_names_the_compression() -> Result<()> {
    let json = ("content-type", "application/json");
    let stream = ("content-type", "text/event-stream");
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [u8], &'a str, bool);
    let table: [Row<'_>; 6] = [
        ("200 OK", &[json, ("content-encoding", "gzip")], GZIP, "gzip", false),
        ("200 OK", &[stream, ("content-encoding", "gzip")], GZIP, "gzip", false),
        ("200 OK", &[stream], GZIP, "gzip", false),
        ("200 OK", &[json, ("content-encoding", "br")], b"\x0b\x01\x80{}\x03", "br", false),
        ("500 Internal Server Error", &[json, ("content-encoding", "gzip")], GZIP, "gzip", true),
        ("400 Bad Request", &[json, ("content-encoding", "Zstd")], b"(\xb5/\xfd", "zstd", false),
    ];
    for (status, headers, body, name, is_retryable) in table {
        let server = Server::start([Answer::new(status, headers, body)]).await;
        let error = server.model().run(streaming()).await.unwrap_err();
        let message = error.to_string();
        assert!(message.contains(&format!("compressed with `{name}`")), "{message}");
        assert!(!message.contains(char::REPLACEMENT_CHARACTER) && !message.contains('\u{1f}'), "{message}");
        assert_eq!(error.is_retryable(), is_retryable, "{message}");
        let is_error_status = status != "200 OK";
        let kind = if is_error_status { ServerErrorKind::Status } else { ServerErrorKind::Malformed };
        assert_eq!((cause(&error).kind, cause(&error).status.is_some()), (kind, is_error_status));
        // Without this header, a server may choose any compression.
        let head = &server.requests()[0].head;
        assert!(head.contains("accept-encoding: identity\r\n"), "{head}");
    }
    // The header is wrong: the reply is not compressed.
    for encoding in ["gzip", "identity", "utf-8", ""] {
        let answer = Answer::new("200 OK", &[stream, ("content-encoding", encoding)], [TEXT, END].concat());
        assert_eq!(receive(answer).await?.text(), "Hello.", "{encoding}");
    }
    Ok(())
}

/// An error that a server sends with the status 200, its message, status and whether it is retryable.
type Refusal = (String, &'static str, Option<u16>, bool);

fn refusals() -> Vec<Refusal> {
    let llama_cpp = r#"{"code":500,"message":"out of memory","type":"server_error"}"#;
    let context = r#"{"error":{"code":400,"message":"too long","type":"exceed_context_size_error"}}"#;
    let pretty = "{\n  \"error\": {\n    \"code\": 429,\n    \"message\": \"quota\",\n    \"status\": \"RESOURCE_EXHAUSTED\"\n  }\n}";
    let of = |text: &str, message, status, is_retryable| (text.to_owned(), message, status, is_retryable);
    vec![
        of(&format!("error: {llama_cpp}\n\n"), "out of memory", Some(500), true),
        of(&format!("error:{llama_cpp}\n"), "out of memory", Some(500), true),
        of(&format!("error: {context}\r\n\r\n"), "too long", Some(400), false),
        of("error: slot unavailable\n\n", "slot unavailable", None, false),
        of("error: {\"type\":\"rate_limit_error\",\"message\":\"slow\"}\n\n", "slow", None, true),
        of(&format!("{context}\n"), "too long", Some(400), false),
        of(&format!("{context}\n\n"), "too long", Some(400), false),
        of(&format!("{pretty}\n\n"), "quota", Some(429), true),
        of(&format!("[{pretty}]\n\n").replace('\n', "\r\n"), "quota", Some(429), true),
        of("{\"error\":\"busy\",\"status\":503}\n\n", "busy", Some(503), true),
        of("data: {\"error\":\"busy\",\"status_code\":\"503\"}\n\n", "busy", Some(503), true),
        of("data: {\"error\":{\"message\":\"busy\"},\"code\":503}\n\n", "busy", Some(503), true),
        of("data: [{\"error\":{\"code\":503,\"message\":\"busy\"}}]\n\n", "busy", Some(503), true),
        of("data: {\"object\":\"error\",\"message\":\"bad\",\"code\":400}\n\n", "bad", Some(400), false),
        of("data: {\"detail\":\"Method Not Allowed\"}\n\n", "Method Not Allowed", None, false),
        of("{\"message\":\"upstream\",\"code\":\"502\"}\n\n", "upstream", Some(502), true),
        of("data: {\"choices\":[{\"error\":{\"code\":502,\"message\":\"gone\"}}]}\n\n", "gone", Some(502), true),
        of("data: {\"error\":{\"message\":\"m\"},\"choices\":\"none\"}\n\n", "m", None, false),
        of("event: error\ndata: {\"message\":\"m\",\"code\":\"overloaded_error\"}\n\n", "m", None, true),
    ]
}

#[tokio::test]
async fn an_error_in_any_form_is_the_servers_message_and_never_a_success() {
    for (text, message, status, is_retryable) in refusals() {
        for (before, after) in [("", ""), ("", DONE), (TEXT, ""), (TEXT, DONE), (": wait\n\n", DONE)] {
            let body = [before, &text, after].concat();
            let answer = Answer::stream([body.as_bytes()]);
            let error = receive(answer).await.expect_err(&body);
            assert!(error.to_string().ends_with(&format!(" answered with an error: {message}")), "{body}: {error}");
            assert_eq!((cause(&error).kind, cause(&error).status), (ServerErrorKind::Status, status), "{body}");
            assert_eq!(error.is_retryable(), is_retryable, "{body}");
        }
    }
}

#[tokio::test]
async fn an_error_without_framing_is_found_wherever_its_bytes_are_split() {
    let (llama_cpp, _, pretty) = (&refusals()[0].0, (), &refusals()[7].0);
    for text in [llama_cpp, pretty] {
        let body = [TEXT, text, DONE].concat();
        let cuts = body.len() - DONE.len();
        let answers = (TEXT.len() - 2..cuts).map(|cut| {
            let (begin, end) = body.as_bytes().split_at(cut);
            Answer::stream([begin, end])
        });
        let server = Server::start(answers.chain([Answer::stream(body.as_bytes().chunks(1))])).await;
        let model = server.model();
        for cut in TEXT.len() - 2..=cuts {
            let error = model.run(streaming()).await.expect_err("an error");
            assert!(error.to_string().contains(" answered with an error: "), "{cut}: {error}");
        }
    }
}

#[tokio::test]
async fn a_whole_reply_that_is_an_error_in_any_form_fails_with_the_servers_message() {
    let table = [
        json!([{"error": {"code": 429, "message": "m"}}]),
        json!({"object": "error", "message": "m", "code": 429}),
        json!({"detail": "m", "status": 429}),
        json!({"error": "m", "code": 429, "choices": null}),
    ];
    for body in table {
        let error = receive(Answer::json("200 OK", &body)).await.unwrap_err();
        assert!(error.to_string().ends_with(" answered with an error: m"), "{body}: {error}");
        assert_eq!((cause(&error).status, error.is_retryable()), (Some(429), true), "{body}");
    }
}

#[tokio::test]
async fn halves_of_a_surrogate_pair_in_two_chunks_are_one_character() -> Result<()> {
    let chunk = |delta: &str| format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\n\n");
    let of = |[first, second]: [&str; 2]| [&chunk(first), &chunk(second), DONE].concat();
    let text = [r#"{"content":"a \ud83d"}"#, r#"{"content":"\ude00 b"}"#];
    let reasoning = [
        r#"{"reasoning":"a \ud83d","reasoning_content":"a \ud83d"}"#,
        r#"{"reasoning":"\ude00 b","reasoning_content":"\ude00 b"}"#,
    ];
    let parts = [r#"{"content":[{"type":"text","text":"a \ud83d"}]}"#, r#"{"content":[{"text":"\ude00 b"}]}"#];
    let both = [r#"{"content":"a \ud83d"}"#, r#"{"content":"\ude00 b \\ud83d\""}"#];
    let table = [
        (of(text), Part::Text { content: "a 😀 b".into() }),
        (
            of(text.map(|delta| delta.replace("\\ud83d", "\\uD83D")).each_ref().map(String::as_str)),
            Part::Text { content: "a 😀 b".into() },
        ),
        (of(parts), Part::Text { content: "a 😀 b".into() }),
        (of(both), Part::Text { content: "a 😀 b \\ud83d\"".into() }),
        // A half without its other half is a replacement character, as everywhere else.
        (of([r#"{"content":"a \ud83d b"}"#, r#"{"content":" \ude00 c"}"#]), Part::Text { content: "a � b � c".into() }),
        (of([r#"{"content":"\ude00"}"#, r#"{"content":"\ud83d\ude00\ud83d"}"#]), Part::Text { content: "�😀".into() }),
    ];
    for (body, expected) in table {
        let response = receive(Answer::stream([body.as_bytes()])).await?;
        assert_eq!(response.message.parts, [expected], "{body}");
    }
    let response = receive(Answer::stream([of(reasoning).as_bytes()])).await?;
    let [Part::Reasoning { content, .. }] = &*response.message.parts else { panic!("{response:?}") };
    assert_eq!(content, "a 😀 b");

    let piece = |arguments: &str| format!(r#"{{"tool_calls":[{{"index":0,"function":{arguments}}}]}}"#);
    let pieces = [
        piece(r#"{"name":"say","arguments":"{\"text\":\"\ud83d"}"#),
        piece(r#"{"arguments":"\ude00\\ud83d\\ude00\"}"}"#),
    ];
    let response = receive(Answer::stream([of(pieces.each_ref().map(String::as_str)).as_bytes()])).await?;
    let arguments = response.message.tool_calls().next().and_then(|call| call.arguments.json().cloned());
    assert_eq!(arguments, Some(json!({"text": "😀😀"})));
    Ok(())
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[tokio::test]
async fn null_and_an_empty_list_are_no_arguments() -> Result<()> {
    for arguments in [&["null"][..], &["nu", "ll"], &["[]"], &["[", " ]"], &[" null\n"], &[]] {
        let said = json!({"choices": [{"delta": {"content": "Noon."}, "finish_reason": "stop"}]});
        let server = Server::start([stream(&call(arguments)), stream(&[said])]).await;
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let now = tool_fn("now", "Returns the time", move |_: Nothing, _: RunContext| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Ok("12:00") }
        });
        let answer = Agent::builder("tester", server.model()).tool(now).build()?.ask("What time is it?").await?;
        assert_eq!((answer.text().as_str(), calls.load(Ordering::Relaxed)), ("Noon.", 1), "{arguments:?}");
        assert_eq!(results(&answer.messages), ["12:00"]);
        let back = &server.requests()[1].body["messages"][1]["tool_calls"][0]["function"]["arguments"];
        assert_eq!(back, "{}", "{arguments:?}");
    }
    // The same values where a server sends arguments as JSON.
    for arguments in [json!(null), json!([]), json!({})] {
        let call = json!({"id": "a", "function": {"name": "now", "arguments": arguments}});
        let whole = json!({"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]});
        let response = receive(Answer::json("200 OK", &whole)).await?;
        let call = response.message.tool_calls().next().expect("a call");
        assert_eq!(*call, ToolCall::new("a", "now", json!({})));
    }
    Ok(())
}

#[tokio::test]
async fn arguments_that_are_sent_twice_are_read_once() -> Result<()> {
    let once = "{\"city\": \"Köln}{\"}";
    let table: [(&[&str], Option<Value>); 6] = [
        (&[once, once], Some(json!({"city": "Köln}{"}))),
        (&["{\"city\": ", "\"Köln}{\"}", once], Some(json!({"city": "Köln}{"}))),
        (&[once, "\n", "{\"city\"", ":\"Köln}{\"}"], Some(json!({"city": "Köln}{"}))),
        (&["{}", "{}"], Some(json!({}))),
        // Different values are not one, and the end of a repetition is missing.
        (&["{\"a\":1}", "{\"a\":2}"], None),
        (&["{\"a\":1}", "{\"a\":"], None),
    ];
    for (pieces, expected) in table {
        let response = receive(stream(&call(pieces))).await?;
        let calls: Vec<_> = response.message.tool_calls().map(|call| call.arguments.json().cloned()).collect();
        assert_eq!(calls, [expected], "{pieces:?}");
    }
    Ok(())
}

#[tokio::test]
async fn keep_alive_comments_that_arrive_as_data_are_ignored() -> Result<()> {
    let comments = [
        "data: : OPENROUTER PROCESSING\n\n",
        "data: : keepalive\n\n",
        "data::\n\n",
        "data: : ping - 2024-01-03 08:15:18.493163\n\n",
        "data: ping\n\n",
        "data: [PING]\n\n",
        "data: OPENROUTER PROCESSING\n\n",
        "data: {\"type\":\"ping\"}\n\n",
        "data: {}\n\n",
        "data: null\n\n",
        "data:\n\n",
        "data: \"\"\n\n",
        "event: ping\ndata: 2024-04-07 20:20:50.554328\n\n",
        "event: keepalive\ndata: {\"message\": \"still here\"}\n\n",
        "ping\n\n",
        "data\n\n",
    ];
    for comment in comments {
        let body = [comment, TEXT, comment, END, comment, DONE].concat();
        let response = receive(Answer::stream([body.as_bytes()])).await?;
        assert_eq!((response.text().as_str(), response.warnings.len()), ("Hello.", 0), "{comment:?}: {response:?}");
    }
    Ok(())
}

#[tokio::test]
async fn an_error_quotes_at_most_200_printable_characters_of_what_cannot_be_read() {
    let page = format!("<html>\x1b[2J\u{202e}\u{7}{}</html>", "<p>Ä</p> ".repeat(200));
    let value = format!("{{\"choices\": \"{}\"}}", "\u{1b}ab\u{85}".repeat(1000).escape_default());
    let table = [
        labelled("text/html", &page),
        labelled("text/event-stream", &page),
        labelled("text/event-stream", format!("data: {page}\n\n")),
        labelled("application/json", &value),
        labelled("text/event-stream", format!("data: {value}\n\n")),
        labelled("text/event-stream", format!("data: {}\n\n", json!({"choices": page}))),
        labelled("text/event-stream", format!("{}\n\n", json!({"choices": page}))),
        labelled("text/event-stream", format!("{}\n\n", json!({"data": page}))),
        labelled("text/event-stream", "Internal Server Error\n".repeat(100)),
        labelled("application/octet-stream", [0, 1, 2, 3, 0xff, 0xfe].repeat(200)),
    ];
    for answer in table {
        let server = Server::start([answer.clone()]).await;
        let error = server.model().run(streaming()).await.unwrap_err();
        let message = error.to_string();
        let (_, said) = message.split_once(&server.url()).expect("the address");
        assert!(said.chars().count() < 330, "{} characters: {said}", said.chars().count());
        let is_unprintable = |c: char| c.is_control() || matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}');
        assert!(!said.contains(is_unprintable), "{said:?}");
        assert!(cause(&error).message.chars().count() <= 201, "{}", cause(&error).message);
        assert!(!cause(&error).message.is_empty(), "{answer:?}: nothing is quoted: {message}");
    }
}
