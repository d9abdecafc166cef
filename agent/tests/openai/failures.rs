//! Servers and connections that fail.

use std::sync::Arc;
use std::time::Duration;

use emitree_agent::{
    ChatModel, ChatRequest, FinishReason, NewToken, OpenAi, ResponseHeaders, ServerError, ServerErrorKind,
};
use emitree_runtime::{AbortHandle, Error, Result, Runnable};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::server::{Answer, Server};
use crate::support::Log;

const TEXT: &[u8] = b"data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n";

fn streaming() -> ChatRequest {
    let mut request = ChatRequest::from("hi");
    request.options.stream = Some(true);
    request
}

/// Runs a model whose server sends this answer. Returns the error of the run, and the server's URL.
async fn failure(answer: Answer) -> (Error, String) {
    let server = Server::start([answer]).await;
    let error = server.model().run(streaming()).await.unwrap_err();
    (error, server.url())
}

fn kind(error: &Error) -> ServerErrorKind {
    let cause = error.find::<ServerError>().expect("a typed cause");
    assert_eq!(error.details()["kind"], cause.kind.as_str());
    assert_eq!(error.details().get("status").cloned(), cause.status.map(Value::from));
    cause.kind
}

#[tokio::test]
async fn an_error_status_is_reported_with_the_message_of_the_server() {
    let openai = |message: &str| json!({"error": {"message": message, "type": "x", "code": null}});
    let table = [
        ("400 Bad Request", openai("`n` is too large"), "`n` is too large", false),
        ("401 Unauthorized", openai("no such key"), "no such key", false),
        ("404 Not Found", json!({"error": "model \"m-1\" not found"}), "model \"m-1\" not found", false),
        ("408 Request Timeout", json!({"message": "too slow"}), "too slow", true),
        ("409 Conflict", json!({"detail": "busy"}), "busy", true),
        ("422 Unprocessable Entity", json!({"detail": [{"msg": "field required"}]}), "field required", false),
        ("429 Too Many Requests", openai("slow down"), "slow down", true),
        ("429 Too Many Requests", json!([openai("quota")]), "quota", true),
        ("500 Internal Server Error", json!({"odd": 1}), "{\"odd\":1}", true),
        ("503 Service Unavailable", openai("overloaded"), "overloaded", true),
    ];
    for (status, body, message, is_retryable) in table {
        let (error, url) = failure(Answer::json(status, &body)).await;
        assert_eq!(error.to_string(), format!("`openai` at {url} answered {status}: {message}"));
        assert_eq!(error.is_retryable(), is_retryable, "{status}");
        assert_eq!(kind(&error), ServerErrorKind::Status);
        assert_eq!(error.find::<ServerError>().unwrap().message, message);
        assert_eq!(error.details()["status"], status[..3].parse::<u16>().unwrap());
    }
}

#[tokio::test]
async fn each_form_of_retry_after_becomes_a_detail_of_the_error() {
    let table = [
        (vec![("retry-after-ms", "120")], Some(120)),
        (vec![("retry-after", "0.02")], Some(20)),
        (vec![("retry-after", "3")], Some(3000)),
        (vec![("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")], Some(0)),
        (vec![("retry-after", "soon")], None),
        (vec![], None),
    ];
    for (headers, expected) in table {
        let (error, _) = failure(Answer::new("429 Too Many Requests", &headers, "")).await;
        assert_eq!(error.details().get("retry_after_ms").and_then(Value::as_u64), expected, "{headers:?}");
    }
}

#[tokio::test]
async fn an_html_page_is_shortened_and_quoted_on_one_line() {
    let page = format!("<html>\n<body>\n{}</body>\n</html>", "<p>Bad gateway</p>\n".repeat(500));
    let (error, url) = failure(Answer::new("502 Bad Gateway", &[("content-type", "text/html")], page)).await;
    let message = error.to_string();
    let expected =
        format!("`openai` at {url} answered 502 Bad Gateway with an HTML page: <html> <body> <p>Bad gateway</p>");
    assert!(message.starts_with(&expected), "{message}");
    assert!(message.ends_with('…') && message.len() < 400 && !message.contains('\n'), "{message}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_the_error_names_its_target() {
    let target = Server::start([]).await;
    let location = format!("{}/chat/completions", target.url());
    let (error, url) = failure(Answer::new("307 Temporary Redirect", &[("location", &location)], "")).await;
    assert_eq!(
        error.to_string(),
        format!(
            "`openai` at {url} answered 307 Temporary Redirect, and redirects are not followed: set the base URL to the new address: {location}"
        )
    );
    assert_eq!((kind(&error), error.is_retryable(), target.connections()), (ServerErrorKind::Redirect, false, 0));
}

#[tokio::test]
async fn the_error_for_an_unreachable_server_is_retryable_and_hides_the_query_of_the_url() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    drop(listener);
    let url = format!("http://{address}/v1?user=me&key=s3cr3t");
    let model = ChatModel::new(OpenAi::builder("m").base_url(url).build()?)?;
    let error = model.run("hi".into()).await.unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with(&format!("`openai` at http://{address}/v1 cannot be reached: ")), "{message}");
    assert!(message.to_lowercase().contains("connection refused"), "{message}");
    let explained = error.explain();
    assert!(!explained.contains("user=me") && !explained.contains("s3cr3t"), "{explained}");
    assert_eq!((kind(&error), error.is_retryable()), (ServerErrorKind::Connection, true));
    Ok(())
}

#[tokio::test]
async fn a_connection_that_breaks_before_or_during_a_reply_is_a_retryable_error() {
    let answers = [
        Answer::nothing(),
        Answer::nothing().then_reset(),
        Answer::open_stream([TEXT]).then_close(),
        Answer::open_stream([TEXT]).then_reset(),
        Answer::new("200 OK", &[("content-type", "application/json")], "{\"choices\"").then_reset(),
    ];
    for answer in answers {
        let (error, url) = failure(answer.clone()).await;
        let message = error.to_string();
        let is_cut = message.starts_with(&format!("`openai` at {url} closed the connection: "))
            || message.contains("does not match the protocol (EOF");
        assert!(is_cut, "{answer:?}: {message}");
        assert!(error.is_retryable(), "{answer:?}: {message}");
    }
}

#[tokio::test]
async fn a_stream_is_complete_with_done_or_a_finish_reason_and_otherwise_a_retryable_error() -> Result<()> {
    let (error, url) = failure(Answer::stream([TEXT])).await;
    assert_eq!(
        error.to_string(),
        format!("`openai` at {url} ended the stream without `[DONE]` and without a finish reason")
    );
    assert_eq!((kind(&error), error.is_retryable()), (ServerErrorKind::Incomplete, true));

    let (error, _) = failure(Answer::stream([TEXT, &TEXT[..20]])).await;
    assert_eq!((kind(&error), error.is_retryable()), (ServerErrorKind::Incomplete, true), "cut in a chunk");

    let ends: [&[u8]; 2] =
        [b"data: [DONE]\n\n", b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"];
    for end in ends {
        let server = Server::start([Answer::stream([TEXT, end])]).await;
        let response = server.model().run(streaming()).await?;
        assert_eq!((response.text().as_str(), response.warnings.as_slice()), ("Hel", &[][..]));
    }
    Ok(())
}

#[tokio::test]
async fn a_reply_with_a_finish_reason_is_complete_even_if_its_connection_breaks() -> Result<()> {
    let end = b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n".as_slice();
    let open = || Answer::open_stream([TEXT, end]);
    let cut_in_done = Answer::stream([TEXT, end, b"data: [DO".as_slice()]);
    for answer in [open().then_close(), open().then_reset(), open().then_stall(), cut_in_done] {
        let server = Server::start([answer.clone()]).await;
        let model = ChatModel::new(server.provider().chunk_timeout(Duration::from_millis(200)).build()?)?;
        let response = model.run(streaming()).await?;
        assert_eq!(response.text(), "Hel", "{answer:?}");
        assert_eq!(response.message.finish_reason, Some(FinishReason::Stop), "{answer:?}");
        let [warning] = response.warnings.as_slice() else { panic!("{answer:?}: {:?}", response.warnings) };
        let expected = "the reply was cut off after its finish reason, so token counts may be missing: `openai` at ";
        assert!(warning.starts_with(expected), "{warning}");
    }
    Ok(())
}

#[tokio::test]
async fn after_a_finish_reason_nothing_fails_a_reply() -> Result<()> {
    let end = b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n".as_slice();
    let chunks: [(&[u8], &str); 7] = [
        (b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":-1,\"completion_tokens\":2}}\n\n", "`-1`"),
        (b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":12.0,\"completion_tokens\":2}}\n\n", "`12.0`"),
        (b"data: {\"choices\":[],\"usage\":\"many\"}\n\n", "\"many\""),
        (b"data: garbage\n\n", "garbage"),
        (b"data: {\"choices\":7}\n\n", "integer `7`"),
        (b"data: \xff\xff\n\n", "cannot be read"),
        (b"data: {\"error\":{\"message\":\"no more\"}}\n\n", "no more"),
    ];
    for (chunk, quoted) in chunks {
        let server = Server::start([Answer::stream([TEXT, end, chunk, b"data: [DONE]\n\n"])]).await;
        let response = server.model().run(streaming()).await?;
        assert_eq!((response.text(), response.usage), ("Hel".to_owned(), None), "{quoted}");
        assert_eq!(response.message.finish_reason, Some(FinishReason::Stop), "{quoted}");
        let [warning] = response.warnings.as_slice() else { panic!("{quoted}: {:?}", response.warnings) };
        assert!(warning.contains("token counts") && warning.contains(quoted), "{warning}");
    }
    // Too many bytes after the finish reason do not fail the reply either.
    let server = Server::start([Answer::stream([TEXT, end, [b' '; 4096].as_slice()])]).await;
    let model = ChatModel::new(server.provider().max_reply_bytes(2000).build()?)?;
    assert_eq!(model.run(streaming()).await?.text(), "Hel");
    Ok(())
}

#[tokio::test]
async fn unreadable_token_counts_are_a_warning_and_the_reply_is_kept() -> Result<()> {
    for usage in [json!({"prompt_tokens": -1}), json!({"prompt_tokens": 12.0}), json!("many"), json!([1])] {
        let choices = json!([{"message": {"content": "Hello."}, "finish_reason": "stop"}]);
        let whole = Answer::json("200 OK", &json!({"choices": choices, "usage": usage}));
        // A server that sends counts in each chunk.
        let chunk = |text: &str| {
            let choices = json!([{"delta": {"content": text}}]);
            format!("data: {}\n\n", json!({"choices": choices, "usage": usage}))
        };
        let stream = format!("{}{}data: [DONE]\n\n", chunk("Hel"), chunk("lo."));
        let server = Server::start([whole, Answer::stream([stream.as_bytes()])]).await;
        for request in [ChatRequest::from("hi"), streaming()] {
            let response = server.model().run(request).await?;
            assert_eq!((response.text(), response.usage), ("Hello.".to_owned(), None), "{usage}");
            let [warning] = response.warnings.as_slice() else { panic!("{usage}: {:?}", response.warnings) };
            assert!(warning.starts_with("token counts are missing: `openai` at "), "{warning}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_reply_without_choices_is_an_error_and_not_an_empty_answer() {
    for body in [json!({"status": "ok"}), json!({"choices": null})] {
        let (error, url) = failure(Answer::json("200 OK", &body)).await;
        assert_eq!(
            error.to_string(),
            format!(
                "`openai` at {url} sent a reply that does not match the protocol (missing field `choices`): {body}"
            )
        );
        assert_eq!((kind(&error), error.is_retryable()), (ServerErrorKind::Malformed, false));
    }
}

#[tokio::test]
async fn a_chunk_that_does_not_fit_the_protocol_is_an_error_that_quotes_its_beginning() {
    let long = format!("data: {{\"choices\": \"{}\"}}\n\n", "a".repeat(1000));
    let (error, url) = failure(Answer::stream([TEXT, long.as_bytes()])).await;
    let message = error.to_string();
    let expected =
        format!("`openai` at {url} sent a chunk that does not match the protocol (invalid type: string \"aaa");
    assert!(message.starts_with(&expected), "{message}");
    assert!(message.contains("{\"choices\": \"aaa") && message.ends_with('…'), "{message}");
    assert_eq!((kind(&error), error.is_retryable()), (ServerErrorKind::Malformed, false));

    let (error, _) = failure(Answer::stream([b"data: \xff\xff\n\n".as_slice()])).await;
    assert_eq!(kind(&error), ServerErrorKind::Malformed, "{error}");

    let (error, url) = failure(Answer::json("200 OK", &json!("Hello."))).await;
    assert!(error.to_string().starts_with(&format!("`openai` at {url} sent a reply that does not match")), "{error}");
}

#[tokio::test]
async fn an_error_in_a_stream_fails_the_run_with_the_servers_message() {
    let chunk = b"data: {\"error\":{\"code\":502,\"message\":\"Provider disconnected\"},\"choices\":[{\"delta\":{\"content\":\"\"},\"finish_reason\":\"error\"}]}\n\n";
    let (error, url) = failure(Answer::stream([TEXT, chunk])).await;
    assert_eq!(error.to_string(), format!("`openai` at {url} answered with an error: Provider disconnected"));
    assert_eq!((kind(&error), error.is_retryable()), (ServerErrorKind::Status, true));
    assert_eq!(error.details()["status"], 502);
}

#[tokio::test]
async fn the_status_or_type_of_an_error_in_a_stream_decides_whether_it_is_retryable() {
    let table = [
        ("data: {\"error\":{\"type\":\"server_error\",\"code\":null,\"message\":\"m\"}}", None, true),
        ("data: {\"error\":{\"code\":\"rate_limit_exceeded\",\"message\":\"m\"}}", None, true),
        ("data: {\"error\":{\"type\":\"overloaded_error\",\"message\":\"m\"}}", None, true),
        ("data: {\"error\":{\"type\":\"invalid_request_error\",\"message\":\"m\"}}", None, false),
        ("data: {\"error\":{\"code\":\"429\",\"message\":\"m\"}}", Some(429), true),
        ("data: {\"error\":{\"code\":400,\"message\":\"m\"}}", Some(400), false),
        ("data: {\"error\":\"m\"}", None, false),
        ("event: error\ndata: {\"code\":500,\"message\":\"m\"}", Some(500), true),
        ("event: error\ndata: {\"error\":{\"code\":500,\"message\":\"m\"}}", Some(500), true),
        ("event: error\ndata: m", None, false),
    ];
    for (event, status, is_retryable) in table {
        let (error, url) = failure(Answer::stream([TEXT, format!("{event}\n\n").as_bytes()])).await;
        assert_eq!(error.to_string(), format!("`openai` at {url} answered with an error: m"), "{event}");
        assert_eq!((kind(&error), error.is_retryable()), (ServerErrorKind::Status, is_retryable), "{event}");
        assert_eq!(error.find::<ServerError>().and_then(|cause| cause.status), status, "{event}");
    }
}

#[tokio::test]
async fn the_headers_of_an_error_status_are_emitted_and_kept_in_the_cause() {
    let headers = [("x-ratelimit-remaining-tokens", "0"), ("retry-after", "7"), ("set-cookie", "a=b")];
    let server = Server::start([Answer::new("429 Too Many Requests", &headers, "slow"), Answer::nothing()]).await;
    let log = Log::default();
    let to = log.clone();
    let model = server.model();
    let run = model.run("hi".into()).on("response_headers", move |event: &mut ResponseHeaders, _| {
        to.add(format!("{:?} {}", event.rate_limits.remaining_tokens, event.headers["retry-after"]));
    });
    let error = run.await.unwrap_err();
    assert_eq!(log.lines(), ["Some(0) 7"]);
    let cause = error.find::<ServerError>().expect("a typed cause");
    assert_eq!((cause.headers["retry-after"].as_str(), cause.headers["set-cookie"].as_str()), ("7", "…"));
    let error = model.run("hi".into()).await.unwrap_err();
    assert!(error.find::<ServerError>().expect("a typed cause").headers.is_empty());
}

#[tokio::test]
async fn an_error_status_is_reported_even_if_its_body_never_ends() -> Result<()> {
    let endless = Answer::endless("503 Service Unavailable", "so busy");
    let server = Server::start([endless]).await;
    let provider = server.provider().first_byte_timeout(Duration::from_millis(200)).build()?;
    let error = ChatModel::new(provider)?.run(streaming()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("`openai` at {} answered 503 Service Unavailable: so busy", server.url()));
    server.client_closes().await;

    // The text is longer than the part that the client reads, and the connection stays open.
    let server = Server::start([Answer::endless("400 Bad Request", &"a".repeat(70_000))]).await;
    let error = server.model().run(streaming()).await.unwrap_err();
    assert!(error.to_string().ends_with("aaa…"), "{error}");
    server.client_closes().await;
    Ok(())
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn connecting_to_a_server_that_accepts_no_connection_times_out() -> Result<()> {
    // One queued connection fills the accept queue, so the system does not answer the next connection.
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind("127.0.0.1:0".parse().expect("an address"))?;
    let listener = socket.listen(0)?;
    let address = listener.local_addr()?;
    let _queued = tokio::net::TcpStream::connect(address).await?;
    let provider = OpenAi::builder("m")
        .base_url(format!("http://{address}/v1"))
        .connect_timeout(Duration::from_millis(200))
        .build()?;
    let model = ChatModel::new(provider)?;
    // The error arrives before the default timeout of 10 s.
    let ended = tokio::time::timeout(Duration::from_secs(9), model.run("hi".into()).into_future()).await;
    let error = ended.expect("the limit that was set").unwrap_err();
    assert_eq!(error.to_string(), format!("`openai` at http://{address}/v1 did not accept a connection in time"));
    assert_eq!((kind(&error), error.is_retryable()), (ServerErrorKind::Timeout, true));
    Ok(())
}

#[tokio::test]
async fn a_server_that_keeps_a_connection_open_with_comments_does_not_time_out() -> Result<()> {
    let server = Server::start([Answer::slow(Duration::from_millis(200), 8, b": wait\n\n")]).await;
    let provider = server.provider().chunk_timeout(Duration::from_secs(1)).build()?;
    assert_eq!(ChatModel::new(provider)?.run(streaming()).await?.text(), "");
    Ok(())
}

#[tokio::test]
async fn each_timeout_may_be_the_maximum_duration() -> Result<()> {
    let server = Server::start([Answer::stream([TEXT, b"data: [DONE]\n\n"])]).await;
    let max = Duration::MAX;
    let provider = server.provider().connect_timeout(max).first_byte_timeout(max).chunk_timeout(max).build()?;
    assert_eq!(ChatModel::new(provider)?.run(streaming()).await?.text(), "Hel");
    Ok(())
}

#[tokio::test]
async fn a_server_that_stalls_before_the_first_byte_or_between_chunks_times_out() -> Result<()> {
    let answers = [
        (Answer::nothing().then_stall(), "did not answer in time"),
        (Answer::open_stream([]).then_stall(), "did not answer in time"),
        (Answer::open_stream([TEXT]).then_stall(), "stopped in the middle of a reply"),
    ];
    for (answer, what) in answers {
        let server = Server::start([answer]).await;
        let short = Duration::from_millis(200);
        let provider = server.provider().first_byte_timeout(short).chunk_timeout(short).build()?;
        let error = ChatModel::new(provider)?.run(streaming()).await.unwrap_err();
        assert_eq!(error.to_string(), format!("`openai` at {} {what}", server.url()));
        assert_eq!((kind(&error), error.is_retryable()), (ServerErrorKind::Timeout, true));
        server.client_closes().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_reply_that_is_too_large_is_an_error_whether_whole_or_streamed() -> Result<()> {
    let whole = json!({"choices": [{"message": {"content": "a".repeat(2000)}}]});
    let stream = TEXT.repeat(100);
    for answer in [Answer::json("200 OK", &whole), Answer::open_stream([&stream[..]]).then_stall()] {
        let server = Server::start([answer]).await;
        let model = ChatModel::new(server.provider().max_reply_bytes(1000).build()?)?;
        let error = model.run(streaming()).await.unwrap_err();
        assert_eq!(error.to_string(), format!("`openai` at {} sent a reply of more than 1000 bytes", server.url()));
        assert_eq!((kind(&error), error.is_retryable()), (ServerErrorKind::TooLarge, false));
    }
    Ok(())
}

#[tokio::test]
async fn dropping_a_run_closes_its_connection() {
    let server = Server::start([Answer::open_stream([TEXT]).then_stall()]).await;
    let (model, arrived) = (server.model(), Arc::new(Notify::new()));
    let first = Arc::clone(&arrived);
    let run = model.run(streaming()).on("new_token", move |_: &mut NewToken, _| first.notify_one());
    tokio::select! {
        ended = run.into_future() => panic!("{ended:?}"),
        () = arrived.notified() => {}
    }
    server.client_closes().await;
}

#[tokio::test]
async fn aborting_a_run_closes_its_connection() {
    let server = Server::start([Answer::open_stream([TEXT]).then_stall()]).await;
    let (model, user) = (server.model(), AbortHandle::new());
    let handle = user.clone();
    let run = model.run(streaming()).abort_on(&user);
    let run = run.on("new_token", move |_: &mut NewToken, _| {
        handle.abort("enough");
    });
    assert!(run.await.unwrap_err().is_aborted());
    server.client_closes().await;
}

#[tokio::test]
async fn a_run_that_ends_before_its_reply_closes_its_connection() {
    let whole = Answer::endless("200 OK", "{\"choices\"");
    let answers = [Answer::nothing().then_stall(), Answer::open_stream([]).then_stall(), whole];
    for is_dropped in [true, false] {
        for answer in answers.clone() {
            let server = Server::start([answer]).await;
            let (model, user) = (server.model(), AbortHandle::new());
            let mut run = Box::pin(model.run(streaming()).abort_on(&user).into_future());
            tokio::select! {
                ended = &mut run => panic!("{ended:?}"),
                () = server.receives() => {}
            }
            if is_dropped {
                drop(run);
            } else {
                user.abort("enough");
                assert!(run.await.unwrap_err().is_aborted());
            }
            server.client_closes().await;
        }
    }
}

#[tokio::test]
async fn stopping_a_stream_closes_its_connection_and_keeps_the_text() -> Result<()> {
    let server = Server::start([Answer::open_stream([TEXT]).then_stall()]).await;
    let model = server.model();
    let response = model.run(streaming()).on("new_token", |token: &mut NewToken, _| token.stop()).await?;
    assert_eq!(response.text(), "Hel");
    server.client_closes().await;
    Ok(())
}

/// Sends a request, and prints the error. [`run_with`] executes this test in another process, with other variables.
#[tokio::test]
#[ignore = "is executed by another test"]
async fn prints_the_error_of_a_request() {
    let url = std::env::var("TEST_URL").expect("is executed by another test");
    let provider = OpenAi::builder("m").base_url(url).build().expect("a provider");
    let error = ChatModel::new(provider).expect("a model").run("hi".into()).await.expect_err("no server");
    println!("<{error} {error:?}>");
}

/// Returns the error of a request in a process with these variables.
fn run_with(variables: &[(&str, &str)]) -> String {
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"] {
        command.env_remove(name).env_remove(name.to_ascii_lowercase());
    }
    command.args(["--exact", "failures::prints_the_error_of_a_request", "--ignored", "--nocapture"]);
    let output = command.envs(variables.iter().copied()).output().expect("a process");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_error_for_a_proxy_that_cannot_be_reached_names_the_proxy() {
    // No process listens on the port 1.
    let (url, proxy) = (("TEST_URL", "http://127.0.0.2:1/v1"), "http://me:s3cr3t-pass@127.0.0.1:1");
    let through = "through the proxy http://127.0.0.1:1, which the environment sets (see `NO_PROXY`): ";
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        let error = run_with(&[url, (name, proxy)]);
        let expected = format!("<`openai` at http://127.0.0.2:1/v1 cannot be reached {through}");
        assert!(error.contains(&expected) && !error.contains("s3cr3t-pass"), "{name}: {error}");
    }
    for other in [("NO_PROXY", "127.0.0.2"), ("HTTPS_PROXY", proxy)] {
        let http = if other.0 == "NO_PROXY" { proxy } else { "" };
        let error = run_with(&[url, ("HTTP_PROXY", http), other]);
        assert!(error.contains("<`openai` at http://127.0.0.2:1/v1 cannot be reached: "), "{other:?}: {error}");
    }
}

// A9
#[tokio::test]
async fn a_whole_reply_that_breaks_off_or_is_malformed_is_charged_the_request() -> Result<()> {
    let broken = [
        Answer::endless("200 OK", "{\"choices\":[{\"mess").then_close(),
        Answer::new("200 OK", &[("content-type", "application/json")], "{\"choices\":"),
        Answer::new("200 OK", &[("content-type", "text/plain")], "Hello"),
    ];
    for answer in broken {
        let server = Server::start([answer]).await;
        let budget = emitree_middleware::Budget::builder().tokens(1_000).build()?;
        let log = Log::default();
        let to = log.clone();
        budget.emitter().on("charged", move |event: &mut emitree_middleware::budget::Charged, _| {
            to.add(format!("{} {}", event.usage.input_tokens, event.usage.estimated));
        })?;
        server.model().run("hi".into()).middleware(budget).await.unwrap_err();
        assert_eq!(log.lines(), ["9 true"]);
    }
    // A request that is refused costs nothing.
    let server = Server::start([Answer::json("400 Bad Request", &json!({"error": {"message": "no"}}))]).await;
    let budget = emitree_middleware::Budget::builder().tokens(1).build()?;
    let error = server.model().run("hi".into()).middleware(budget).await.unwrap_err();
    assert!(error.find::<ServerError>().is_some(), "{error}");
    Ok(())
}
