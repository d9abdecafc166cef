//! Keys and passwords appear only in requests.

use emitree_agent::{ChatModel, OpenAi};
use emitree_emitter::Emitter;
use emitree_runtime::{Result, Runnable};
use emitree_secrets::Scanner;
use emitree_sinks::Memory;
use serde_json::json;

use super::server::{Answer, Server};

/// Returns a text that looks like a real key. The parts are joined at run time, so that no secret scanner reports this
/// file.
fn key() -> String {
    ["sk", "proj", "Zk3vQ8rT1mX7bN5cW2yH9dL4sF6gJ0pA"].join("-")
}

#[tokio::test]
async fn a_key_is_in_no_error_event_debug_output_or_recording_even_if_the_server_sends_it_back() -> Result<()> {
    let key = key();
    assert_eq!(Scanner::keys().find(&key).len(), 1, "the scanner knows keys of this form");
    let echo = json!({"error": {"message": format!("no such key: {key}"), "code": "invalid_api_key"}}).to_string();
    let event =
        |error: &str| format!("data: {{\"error\": {{\"message\": \"no such key: {error}\"}}}}\n\n").into_bytes();
    let answers = [
        Answer::new("401 Unauthorized", &[("content-type", "application/json"), ("x-echo", &key)], &echo),
        Answer::new("500 Internal Server Error", &[("content-type", "text/html")], format!("<p>{key}</p>")),
        Answer::new("302 Found", &[("location", &format!("http://localhost/?key={key}"))], ""),
        Answer::stream([&event(&key)[..]]),
        Answer::stream([format!("data: {{\"choices\": \"{key}\"}}\n\n").as_bytes()]),
        Answer::new("200 OK", &[("content-type", "application/json"), ("x-echo", &key)], "{\"choices\": []}"),
    ];
    let server = Server::start(answers.clone()).await;
    let builder = server.provider().api_key(&key).header("X-Api-Key", &key);
    let mut seen = format!("{builder:?}");
    let provider = builder.build()?;
    seen += &format!("{provider:?}");
    let model = ChatModel::new(provider)?;
    seen += &format!("{model:?}");
    let memory = Memory::new();
    let recording = Emitter::root().pipe_to(memory.clone())?;
    for _ in &answers {
        match model.run("hi".into()).on_start(|start, _| start.input.options.stream = Some(true)).await {
            Ok(response) => seen += &format!("{response:?}"),
            Err(error) => seen += &format!("{error:?} {} {:?}", error.explain(), error.report()),
        }
    }
    recording.flush().await.complete()?;
    seen += &format!("{:?}", memory.records());
    assert!(seen.contains("no such key: …") && seen.contains("\"x-echo\":\"…\""), "{seen}");
    assert!(!seen.contains(&key), "{seen}");
    let found: Vec<_> = Scanner::keys().find(&seen).into_iter().map(|found| &seen[found.span]).collect();
    assert!(found.is_empty(), "{found:?}");
    // The server has received the key in two headers.
    assert_eq!(server.requests()[0].head.matches(&key.to_ascii_lowercase()).count(), 2);
    Ok(())
}

#[tokio::test]
async fn a_secret_that_the_server_sends_back_is_redacted_wherever_it_was_configured() -> Result<()> {
    let key = key();
    let echo = Answer::json("401 Unauthorized", &json!({"message": format!("no such key: `{key}`")}));
    let server = Server::start(vec![echo; 5]).await;
    let at = server.url();
    let with_password = at.replacen("http://", &format!("http://me:{key}@"), 1);
    let builders = [
        server.provider().header("Authorization", format!("Bearer {key}")),
        server.provider().header("api-key", &key),
        server.provider().base_url(with_password),
        server.provider().base_url(format!("{at}?api-version=1&subscription-key={key}")),
        // A secret may be the prefix of another secret.
        server.provider().api_key(&key[..20]).header("x-goog-api-key", &key),
    ];
    for builder in builders {
        let error = ChatModel::new(builder.build()?)?.run("hi".into()).await.unwrap_err();
        assert_eq!(error.to_string(), format!("`openai` at {at} answered 401 Unauthorized: no such key: `…`"));
        let requests = server.requests();
        let request = requests.last().expect("a request");
        assert!(request.head.contains("basic ") || request.head.contains(&key.to_ascii_lowercase()), "{request:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_password_in_the_base_url_is_redacted_in_each_form_in_which_a_server_can_send_it_back() -> Result<()> {
    // `sent` is the base64 of `me:p@ss/w0rd`.
    let (written, decoded, sent) = ("p%40ss%2Fw0rd", "p@ss/w0rd", "bWU6cEBzcy93MHJk");
    let echo = format!("not {written}, not {decoded}, not Basic {sent}");
    let server = Server::start([Answer::json("401 Unauthorized", &json!({"message": echo}))]).await;
    let at = server.url().replacen("http://", &format!("http://me:{written}@"), 1);
    let error = ChatModel::new(server.provider().base_url(at).build()?)?.run("hi".into()).await.unwrap_err();
    assert!(error.to_string().ends_with("401 Unauthorized: not …, not …, not Basic …"), "{error}");
    assert!(server.requests()[0].head.contains(&format!("basic {}", sent.to_ascii_lowercase())));
    Ok(())
}

#[tokio::test]
async fn a_password_or_a_key_in_the_base_url_is_in_no_error() -> Result<()> {
    let model = |url: &str| OpenAi::builder("m").base_url(url).build();
    let table = [
        ("ftp://me:s3cr3t@localhost/v1", "ftp://localhost/v1` is not an HTTP URL"),
        ("http://me:s3cr3t@:bad", ":bad` is not a URL (empty host)"),
        ("me:s3cr3t@localhost/v1", "localhost/v1` is not an HTTP URL"),
        ("localhost:8000/v1?key=s3cr3t", "localhost:8000/v1` is not an HTTP URL"),
        ("http://:8000/v1?key=s3cr3t", "http://:8000/v1` is not a URL (empty host)"),
        ("http://:8000/v1#s3cr3t", "http://:8000/v1` is not a URL (empty host)"),
    ];
    for (url, what) in table {
        let error = model(url).unwrap_err();
        assert!(error.to_string().starts_with(&format!("the base URL `{what}")), "{error}");
        assert!(!error.explain().contains("s3cr3t"), "{}", error.explain());
    }
    let error = ChatModel::new(model("http://me:s3cr3t@127.0.0.1:1/v1")?)?.run("hi".into()).await.unwrap_err();
    assert!(!format!("{error:?}").contains("s3cr3t"), "{error:?}");
    Ok(())
}

fn json_escapes(text: &str) -> String {
    text.chars().map(|c| if c.is_alphanumeric() { c.to_string() } else { format!("\\u{:04x}", c as u32) }).collect()
}

fn slashes(text: &str) -> String {
    text.replace('\\', "\\\\").replace('/', "\\/").replace('"', "\\\"")
}

fn percent(text: &str) -> String {
    text.bytes().map(|b| if b.is_ascii_alphanumeric() { char::from(b).into() } else { format!("%{b:02X}") }).collect()
}

fn html(text: &str) -> String {
    text.chars().map(|c| if c.is_alphanumeric() { c.to_string() } else { format!("&#{};", c as u32) }).collect()
}

fn html_names(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('/', "&sol;")
        .replace('+', "&plus;")
        .replace('%', "&percnt;")
        .replace('\\', "&bsol;")
}

#[tokio::test]
async fn a_text_that_contains_the_key_in_any_nesting_of_encodings_is_not_quoted() -> Result<()> {
    // The second key looks like encodings.
    let keys = ["sk/Zk3vQ8r+T1mX7b=N5cW2y".to_owned(), "sk%2FZk3v&amp;Q8r\\u002fT1mX7bN5cW2y".to_owned()];
    let encodings = [json_escapes, slashes, percent, html, html_names];
    for key in keys {
        let mut texts: Vec<String> = encodings.iter().map(|encode| encode(&key)).collect();
        for _ in 0..2 {
            let nested = texts.iter().flat_map(|text| encodings.iter().map(|encode| encode(text)));
            texts = texts.iter().cloned().chain(nested.collect::<Vec<_>>()).collect();
        }
        texts.retain(|text| !text.contains(&key));
        texts.sort();
        texts.dedup();
        let body = |text: &String| json!({"error": {"message": format!("no such key: {text}.")}});
        let mut answers: Vec<_> = texts.iter().map(|text| Answer::json("401 Unauthorized", &body(text))).collect();
        // The text is not the message of an error, but the body, a header or a chunk.
        answers.push(Answer::new("500 Internal Server Error", &[("x-echo", &percent(&key))], html(&percent(&key))));
        let location = format!("http://localhost/?key={}", percent(&key));
        answers.push(Answer::new("302 Found", &[("location", &location)], ""));
        answers.push(Answer::stream([format!("data: {{\"choices\": \"{}\"}}\n\n", json_escapes(&key)).as_bytes()]));
        let server = Server::start(answers.clone()).await;
        let model = ChatModel::new(server.provider().api_key(&key).build()?)?;
        for answer in answers {
            let error = model.run("hi".into()).await.unwrap_err();
            assert!(error.to_string().ends_with("(not quoted, because the text contains the key in an encoded form)"));
            let seen = format!("{error:?} {}", error.explain());
            let parts = ["Zk3vQ8r", "T1mX7b", "N5cW2y", "Zk3v"];
            assert!(!parts.iter().any(|part| seen.contains(part)), "{answer:?}: {seen}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_encoded_text_without_the_key_is_quoted_as_it_is() -> Result<()> {
    let server = Server::start([Answer::new("500 Internal Server Error", &[], "a%2Fb &amp; c\\/d")]).await;
    let model = ChatModel::new(server.provider().api_key(key()).build()?)?;
    let error = model.run("hi".into()).await.unwrap_err();
    assert!(error.to_string().ends_with("500 Internal Server Error: a%2Fb &amp; c\\/d"), "{error}");
    Ok(())
}
