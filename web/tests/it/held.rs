//! Tasks and bytes that a chat holds for runs and pages. No time is measured.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use emitree_agent::{Reply, ScriptedModel, tool_fn};
use emitree_runtime::RunContext;
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::support::{Events, chat, check, events, forever, page, question, shown};

/// The number of streams.
const STREAMS: usize = 1_000;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// Waits until a number of tasks is left. Claims end at the next tick of their clocks.
async fn until_tasks(expected: usize) {
    while tasks() > expected {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_kept_streams_end_and_leave_nothing() {
    let reply = Reply::text("It is over.").in_pieces(6).slow(Duration::ZERO, Duration::from_secs(10));
    let chat = chat(ScriptedModel::by("test", move |_| reply.clone()), |agent| agent).keep_running();
    let page = page(&chat);
    let before = tasks();
    let mut first = Vec::new();
    for n in 0..STREAMS {
        let body = question("/chat", &format!("thread-{n}"), "Wait.");
        let mut stream = Events::of(page.post("/chat", body).await);
        stream.until("text-delta").await;
        first.push(stream);
    }
    let with_pages = tasks();
    assert_eq!(with_pages, before + 2 * STREAMS, "each run has a task, and its claim on the session has one");
    // Pages that go and come back need no further tasks.
    drop(first);
    let mut again = Vec::new();
    for n in 0..STREAMS {
        again.push(page.send(Method::GET, &format!("/chat/thread-{n}/stream"), "").await);
    }
    assert_eq!(tasks(), with_pages);
    for response in again {
        let events = events(response).await;
        check("/chat", &events);
        assert_eq!(shown(&events), "It is over.");
    }
    // The steps are kept for a minute, and then nothing is left of the runs.
    assert!(tasks() >= before + STREAMS);
    tokio::time::sleep(Duration::from_secs(61)).await;
    until_tasks(before).await;
    assert!(format!("{chat:?}").contains("runs: Runs(Mutex { data: {} })"), "{chat:?}");
    let gone = page.send(Method::GET, "/chat/thread-7/stream", "").await;
    assert_eq!(gone.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_page_that_goes_leaves_no_task() {
    let waits = tool_fn("wait", "Waits", |_: Nothing, _: RunContext| forever()).unwrap();
    let chat = chat(ScriptedModel::by("test", |_| Reply::calls([("wait", json!({}))])), |agent| agent.tool(waits));
    let page = page(&chat);
    let before = tasks();
    for path in ["/agent", "/chat"] {
        let mut stream = Events::of(page.post(path, question(path, path.trim_matches('/'), "Wait.")).await);
        stream.until(if path == "/agent" { "TOOL_CALL_END" } else { "tool-input-available" }).await;
        drop(stream);
        until_tasks(before).await;
    }
    assert!(format!("{chat:?}").contains("runs: Runs(Mutex { data: {} })"), "{chat:?}");
}

#[tokio::test]
async fn a_page_that_does_not_read_holds_no_event() {
    let (go, wait) = mpsc::unbounded_channel();
    let wait = std::sync::Arc::new(tokio::sync::Mutex::new(wait));
    let script = ScriptedModel::new("test").call("report", json!({})).text("Done.");
    let reports = tool_fn("report", "Reports", move |_: Nothing, ctx: RunContext| {
        let wait = std::sync::Arc::clone(&wait);
        async move {
            for n in 0..20_000 {
                ctx.emitter().emit("progress", &mut json!({ "n": n })).await?;
            }
            wait.lock().await.recv().await;
            Ok("reported")
        }
    });
    let chat = chat(script, |agent| agent.tool(reports.unwrap())).show("**.progress").unwrap();
    let page = page(&chat);
    let response = page.post("/agent", question("/agent", "t", "Report.")).await;
    // The run is at its end, and the page has read nothing: it gets the newest events, and what holds.
    go.send(()).unwrap();
    let mut body = response.into_body().into_data_stream();
    let mut bytes = 0;
    while let Some(piece) = body.next().await {
        bytes += piece.unwrap().len();
    }
    assert!(bytes < 1024 * 1024, "{bytes} bytes were held for the page");
}
