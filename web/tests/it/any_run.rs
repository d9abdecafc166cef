//! The events of any run as a response.

use std::future::pending;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use emitree_emitter::{BoxError, Sink, SinkRecord};
use emitree_middleware::Redact;
use emitree_runtime::{Error, Result, RunContext, Runnable, Status, runnable_fn};
use emitree_web::{Collected, events};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::text;

/// Returns the types and the data of the events of a response.
async fn sent(response: Response) -> Vec<(String, Value)> {
    let (_, text) = text(response).await;
    let events = text.split("\n\n").filter(|event| !event.is_empty());
    let read = events.map(|event| {
        let line = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        (line("event: ").unwrap_or_default(), serde_json::from_str(&line("data: ").unwrap()).unwrap())
    });
    read.collect()
}

/// A run that emits as many events as it is asked for.
fn counts() -> Arc<impl Runnable<Input = u32, Output = String>> {
    Arc::new(runnable_fn("count", |to: u32, ctx: RunContext| async move {
        for n in 1..=to {
            ctx.emitter().emit("counted", &mut json!({"n": n, "by": "maria@mailbox.org"})).await?;
        }
        Ok::<_, Error>("counted by maria@mailbox.org".to_owned())
    }))
}

#[tokio::test]
async fn events_that_are_lost_are_counted_in_gaps() {
    let sent = sent(events(counts().run_shared(100_000), "counted").into_response()).await;
    let (last, before) = sent.split_last().unwrap();
    assert_eq!(*last, ("result".to_owned(), json!({"output": "counted by maria@mailbox.org"})));
    let gaps = before.iter().filter(|(kind, _)| kind == "gap");
    let lost: u64 = gaps.map(|(_, data)| data["lost"].as_u64().unwrap()).sum();
    let received = before.iter().filter(|(kind, _)| kind.is_empty()).count() as u64;
    assert!(lost > 0);
    assert_eq!(lost + received, 100_000);
}

#[tokio::test]
async fn a_sink_redacts_events_and_the_result() {
    let redact = Redact::new();
    let response = events(counts().run_shared(2), "counted").through(|sink| redact.sink(sink)).into_response();
    let sent = sent(response).await;
    assert_eq!(sent.len(), 3);
    assert_eq!(sent[0].1, json!({"path": "counted", "payload": {"n": 1, "by": "[REDACTED:email]"}}));
    assert_eq!(sent[2], ("result".to_owned(), json!({"output": "counted by [REDACTED:email]"})));
}

/// A sink that refuses the second record.
struct Refuses(Collected, u32);

impl Sink for Refuses {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        self.1 += 1;
        if self.1 == 2 { Err("10.0.0.7 is full".into()) } else { self.0.write(record) }
    }
}

#[tokio::test]
async fn a_record_that_a_sink_refuses_ends_the_response_with_an_error() {
    let response = events(counts().run_shared(5), "counted").through(|sink| Refuses(sink, 0)).into_response();
    let sent = sent(response).await;
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!(sent[1], ("error".to_owned(), json!({"kind": "failed", "message": "internal error"})));
}

#[tokio::test]
async fn the_last_event_says_how_the_run_has_ended() {
    type Fails = fn() -> Error;
    let ends: [(Fails, &str, &str); 6] = [
        (|| Error::new("the database at 10.0.0.7 is down"), "failed", "internal error"),
        (|| Error::denied("policy", "not on Sundays"), "denied", "not on Sundays"),
        (|| Error::halted("budget", "too many tokens"), "halted", "too many tokens"),
        (|| Error::timed_out("no answer in 5 s"), "timed_out", "the run took too long"),
        (|| Error::aborted("held by host-17"), "aborted", "the run was aborted"),
        (|| panic!("10.0.0.7"), "failed", "internal error"),
    ];
    for (error, kind, message) in ends {
        let run = Arc::new(runnable_fn("fail", move |(): (), _: RunContext| async move { Err::<(), _>(error()) }));
        let sent = sent(events(run.run_shared(()), "*").into_response()).await;
        assert_eq!(sent, [("error".to_owned(), json!({"kind": kind, "message": message}))]);
    }
}

#[tokio::test]
async fn a_client_that_goes_ends_the_run() {
    let (ended, mut ends) = mpsc::unbounded_channel();
    let waits = Arc::new(runnable_fn("wait", move |(): (), ctx: RunContext| {
        let ended = ended.clone();
        async move {
            ctx.on_end(move |_, status| _ = ended.send(status));
            ctx.emitter().emit("waits", &mut 1).await?;
            pending::<Result<()>>().await
        }
    }));
    let mut body = events(waits.run_shared(()), "waits").into_response().into_body().into_data_stream();
    let first = futures_util::StreamExt::next(&mut body).await.unwrap().unwrap();
    assert!(first.starts_with(b"data: "));
    drop(body);
    assert_eq!(ends.recv().await, Some(Status::Dropped));
}
