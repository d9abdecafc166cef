//! O9: no content without being asked, and no secret with `Redact`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use emitree_agent::{Agent, AgentRun, ChatModel, ChatOptions, Reply, ScriptedModel, Session, tool_fn};
use emitree_emitter::{BoxError, Emitter, Sink};
use emitree_middleware::Redact;
use emitree_otlp::{Dialect, Otlp};
use emitree_runtime::{Error, RunContext, Runnable, for_tree, runnable_fn};
use prost::Message;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;

use crate::collector::{Collector, attributes};
use crate::records::{TOP, exported, finish, record};

const LONG: Duration = Duration::from_secs(60);
const EMAIL: &str = "ada.lovelace@example.com";
const SECRETS: [&str; 4] =
    [EMAIL, "ada.lovelace%40example.com", "ada.lovelace\\u0040example.com", "YWRhLmxvdmVsYWNlQGV4YW1wbGUuY29t"];

#[derive(Deserialize, JsonSchema)]
struct Text {
    text: String,
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// An agent whose messages, arguments, results and errors contain a text.
fn agent(text: &'static str) -> Result<Agent, BoxError> {
    let script = ScriptedModel::new("small")
        .reply(Reply::calls([("note", json!({"text": text})), ("fail", json!({}))]).in_pieces(3))
        .reply(Reply::text(text).in_pieces(3));
    let note = tool_fn("note", "Notes a text", |Text { text }, _: RunContext| async move { Ok(text) })?;
    let fail =
        tool_fn("fail", "Fails", move |_: Nothing, _: RunContext| async move { Err::<String, _>(Error::new(text)) })?;
    Ok(Agent::builder("helper", ChatModel::new(script)?.options(ChatOptions::new().stream(true)))
        .tool(note)
        .tool(fail)
        .build()?)
}

/// Returns the bytes of all requests.
fn bytes(collector: &Collector) -> Vec<u8> {
    assert!(collector.spans().len() >= 5);
    collector.requests().iter().flat_map(|(_, request)| request.encode_to_vec()).collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_content_spans_have_no_text_of_messages_arguments_and_results() -> Result<(), BoxError> {
    let mark = "MARKED-TEXT";
    for (dialect, content) in [(Dialect::GenAi, false), (Dialect::OpenInference, false), (Dialect::GenAi, true)] {
        let (collector, app) = (Collector::start([]).await, Emitter::new());
        let traces = app.pipe_to(Otlp::to(&collector.url())?.dialect(dialect).content(content).sink())?;
        let work = runnable_fn("work", move |text: String, _: RunContext| async move {
            let script = ScriptedModel::new("small").reply(Reply::calls([("note", json!({"text": mark}))])).text(mark);
            let note = tool_fn("note", "Notes", move |_: Nothing, _: RunContext| async move { Ok(mark.to_owned()) })?;
            let agent = Agent::builder("helper", ChatModel::new(script)?).tool(note).build()?;
            agent.ask(text).await?;
            Ok::<_, Error>(())
        });
        work.with_emitter(app.child("work")?).run(mark.to_owned()).await?;
        traces.close(LONG).await.complete()?;
        assert_eq!(contains(&bytes(&collector), mark), content, "{dialect:?}");
    }
    Ok(())
}

/// A redaction may be bound to the runs, or pass the records of the sink.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_redaction_no_secret_is_exported() -> Result<(), BoxError> {
    let dialects = [Dialect::GenAi, Dialect::OpenInference];
    for (dialect, is_bound) in dialects.into_iter().flat_map(|dialect| [(dialect, false), (dialect, true)]) {
        let (collector, agent) = (Collector::start([]).await, agent(EMAIL)?);
        let sink = Otlp::to(&collector.url())?.dialect(dialect).content(true).event("message_error").sink();
        let (redact, session) = (Redact::new(), Session::with_id(EMAIL)?);
        let traces = if is_bound {
            let traces = agent.emitter().pipe_to(sink)?;
            agent.ask(EMAIL).session(&session).middleware(for_tree(redact)).await?;
            traces
        } else {
            let traces = agent.emitter().pipe_to(redact.sink(sink))?;
            agent.ask(EMAIL).session(&session).await?;
            traces
        };
        traces.close(LONG).await.complete()?;
        let bytes = bytes(&collector);
        assert!(contains(&bytes, "helper"));
        for secret in SECRETS {
            assert!(!contains(&bytes, secret), "{dialect:?}, bound {is_bound}: {secret}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_and_no_content_is_in_an_error_or_in_debug_output() -> Result<(), BoxError> {
    for echoed in ["bad key: key-17", "bad user: user:pass-17", "bad query: token=token-17"] {
        no_secret_is_in_the_error_for(echoed).await?;
    }
    Ok(())
}

async fn no_secret_is_in_the_error_for(echoed: &'static str) -> Result<(), BoxError> {
    let key = "Bearer key-17";
    let echo = Box::new(move || {
        let mut response = axum::http::Response::new(axum::body::Body::from(echoed));
        *response.status_mut() = axum::http::StatusCode::UNAUTHORIZED;
        response
    });
    let collector = Collector::start([echo as crate::collector::Answer]).await;
    let url = collector.url().replace("http://", "http://user:pass-17@");
    let otlp = Otlp::to(&format!("{url}?token=token-17"))?.header("authorization", key)?;
    let app = Emitter::new();
    let traces = app.pipe_to(otlp.sink())?;
    runnable_fn("work", |(): (), _: RunContext| async { Ok::<_, Error>(()) })
        .with_emitter(app.child("x")?)
        .run(())
        .await?;
    let report = traces.close(LONG).await;
    let mut sink = otlp.clone().content(true).sink();
    let secret = json!({"input": "secret-17", "output": null});
    sink.write(&record(1, "Tool", TOP, "run.start", &secret))?;
    let texts = format!("{report} {otlp:?} {sink:?}");
    assert!(texts.contains("open: Some(1)"), "{texts}");
    assert!(texts.contains("answered 401 Unauthorized: …"), "{texts}");
    assert!(!texts.contains("-17"), "{texts}");
    Ok(())
}

/// Data that only a provider reads is not redacted, so it is not exported.
#[tokio::test(flavor = "multi_thread")]
async fn no_message_has_the_data_of_its_provider() {
    for part in [json!({"type": "reasoning", "content": "Hm."}), json!({"type": "tool_call", "id": "1", "name": "x"})] {
        let mut part = part;
        part["extra"] = json!({"signature": "MARKED-TEXT"});
        let message = json!({"role": "assistant", "parts": [part]});
        let (input, output) = (json!({"messages": [message]}), json!({"message": message, "answer": message}));
        let dialects = |kind| [(kind, Dialect::GenAi), (kind, Dialect::OpenInference)];
        for (kind, dialect) in ["Agent", "ChatModel"].into_iter().flat_map(dialects) {
            let records = [
                record(1, kind, TOP, "run.start", &json!({"input": input, "output": null})),
                record(1, kind, TOP, "run.success", &json!({"input": input, "output": output})),
                finish(2, kind, TOP, 1),
            ];
            let spans = exported(records, |otlp| otlp.dialect(dialect).content(true)).await;
            let facts = json!(attributes(&spans[0].attributes)).to_string();
            assert!(facts.contains("assistant") || facts.contains("Hm.") || facts.contains("tool_call"), "{facts}");
            assert!(!facts.contains("MARKED"), "{kind} {dialect:?}: {facts}");
        }
    }
}

/// A value that counts how often it is serialized.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicUsize>);

impl Serialize for Counted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        serializer.serialize_str("a value")
    }
}

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|_| Self::default())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_content_no_value_is_serialized() -> Result<(), BoxError> {
    for (content, is_serialized) in [(false, false), (true, true)] {
        let (collector, app, value) = (Collector::start([]).await, Emitter::new(), Counted::default());
        let otlp = Otlp::to(&collector.url())?.content(content);
        let sinks = [app.pipe_to(otlp.sink())?, app.pipe_to(Redact::new().sink(otlp.sink()))?];
        let echo =
            runnable_fn("echo", |Counted(count): Counted, _: RunContext| async { Ok::<_, Error>(Counted(count)) });
        let mut emitted = value.clone();
        app.emit("an_event", &mut emitted).await?;
        echo.with_emitter(app.child("echo")?).run(value.clone()).await?;
        for traces in sinks {
            traces.close(LONG).await.complete()?;
        }
        assert_eq!(value.0.load(Ordering::Relaxed) > 0, is_serialized, "content {content}");
        assert_eq!(collector.spans().len(), 2);
    }
    Ok(())
}
