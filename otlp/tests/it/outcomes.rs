//! O3: each outcome of each kind of run.

use std::task::{Context, Waker};
use std::time::Duration;

use emitree_emitter::{BoxError, Creator, Emitter};
use emitree_otlp::Otlp;
use emitree_runtime::{Error, Interrupt, RunContext, Runnable, runnable_fn, wait_for_ends};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};

use crate::collector::{Collector, attributes};

const KINDS: [&str; 6] = ["Agent", "Workflow", "ChatModel", "Tool", "Step", "Retriever"];

/// An outcome, the code of the span's status, `error.type`, and the name of its event.
const OUTCOMES: [(&str, i32, Option<&str>, Option<&str>); 9] = [
    ("success", 0, None, None),
    ("failed", 2, Some("failed"), Some("exception")),
    ("panicked", 2, Some("panicked"), Some("exception")),
    ("timed_out", 2, Some("timed_out"), Some("exception")),
    ("denied", 0, None, Some("denied")),
    ("halted", 0, None, Some("halted")),
    ("aborted", 0, None, Some("aborted")),
    ("interrupted", 0, None, None),
    ("dropped", 0, None, None),
];

fn of_outcome(outcome: &'static str) -> Result<(), Error> {
    match outcome {
        "success" => Ok(()),
        "failed" => Err(Error::new("the reason")),
        "panicked" => panic!("the reason"),
        "timed_out" => Err(Error::timed_out("the reason")),
        "denied" => Err(Error::denied("policy", "the reason")),
        "halted" => Err(Error::halted("policy", "the reason")),
        "aborted" => Err(Error::aborted("the reason")),
        _ => Err(Error::interrupted(Interrupt::new("question", json!({})))),
    }
}

async fn run(app: &Emitter, kind: &'static str, outcome: &'static str) -> Result<(), BoxError> {
    let name = format!("{kind}-{outcome}");
    let emitter = app.child_builder("some").creator(Creator::new(kind, name.clone())).build()?;
    if outcome == "dropped" {
        let pending = runnable_fn(name, |(): (), _: RunContext| std::future::pending::<Result<(), Error>>());
        let pending = pending.with_emitter(emitter);
        let mut run = Box::pin(pending.run(()).into_future());
        assert!(run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(run);
        return Ok(());
    }
    let work = runnable_fn(name, move |(): (), _: RunContext| async move { of_outcome(outcome) });
    assert_eq!(work.with_emitter(emitter).run(()).await.is_ok(), outcome == "success");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_outcome_of_each_kind_has_its_status_its_error_type_and_its_event() -> Result<(), BoxError> {
    let (collector, app) = (Collector::start([]).await, Emitter::new());
    let traces = app.pipe_to(Otlp::to(&collector.url())?.sink())?;
    for kind in KINDS {
        for (outcome, ..) in OUTCOMES {
            run(&app, kind, outcome).await?;
        }
    }
    wait_for_ends(Duration::from_secs(60)).await;
    traces.close(Duration::from_secs(60)).await.complete()?;
    assert_eq!(collector.spans().len(), KINDS.len() * OUTCOMES.len());
    for kind in KINDS {
        for (outcome, code, error_type, event) in OUTCOMES {
            let spans = collector.spans();
            let span = spans.iter().find(|span| span.name.ends_with(&format!("{kind}-{outcome}"))).expect("a span");
            let facts = attributes(&span.attributes);
            let case = format!("{kind} {outcome}: {span:?}");
            assert_eq!(
                (facts["emitree.outcome"].as_str(), facts["emitree.kind"].as_str()),
                (Some(outcome), Some(kind))
            );
            assert_eq!((status(span), facts.get("error.type").and_then(Value::as_str)), (code, error_type), "{case}");
            assert_eq!(span.events.iter().map(|event| &*event.name).next(), event, "{case}");
            check_event(span, event, &case);
        }
    }
    Ok(())
}

fn status(span: &Span) -> i32 {
    span.status.as_ref().expect("a status").code
}

fn check_event(span: &Span, event: Option<&str>, case: &str) {
    let Some(event) = event else { return };
    let facts = attributes(&span.events[0].attributes);
    let reason = if event == "exception" { "exception.message" } else { "emitree.reason" };
    assert!(facts[reason].as_str().expect("a text").contains("the reason"), "{case}");
    if matches!(event, "denied" | "halted") {
        assert_eq!(facts["emitree.by"], "policy", "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http_status_is_the_error_type_and_causes_are_in_the_exception() -> Result<(), BoxError> {
    let (collector, app) = (Collector::start([]).await, Emitter::new());
    let traces = app.pipe_to(Otlp::to(&collector.url())?.sink())?;
    let ask = runnable_fn("ask", |(): (), _: RunContext| async {
        let error = Error::from("x".parse::<u32>().unwrap_err()).message("no answer").detail("status", 503);
        Err::<(), _>(error)
    });
    let emitter = app.child_builder("ask").creator(Creator::new("Tool", "ask")).build()?;
    assert!(ask.with_emitter(emitter).run(()).await.is_err());
    traces.close(Duration::from_secs(60)).await.complete()?;
    let span = collector.span("execute_tool ask");
    assert_eq!(attributes(&span.attributes)["error.type"], "503");
    assert_eq!(span.status.as_ref().map(|status| &*status.message), Some("no answer"));
    let exception = attributes(&span.events[0].attributes);
    let expected = json!({
        "exception.type": "503", "exception.message": "no answer",
        "exception.stacktrace": "caused by: invalid digit found in string",
    });
    assert_eq!(json!(exception), expected);
    Ok(())
}
