//! Runs that make more steps than a chat keeps, and that leave tasks behind.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use emitree_agent::{Delta, Reply, ScriptedModel, Tool, tool_fn};
use emitree_runtime::RunContext;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::support::{Events, Page, chat, check, events, last, page, question, shown, types};

const PATHS: [&str; 2] = ["/agent", "/chat"];

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[derive(Deserialize, JsonSchema)]
struct Note {
    text: String,
}

/// Returns a reply in whose call the log is full: it is shortened while the arguments arrive, and not later.
fn long_call() -> (String, Vec<Delta>) {
    let arguments = json!({"text": "x".repeat(200 * 1024)}).to_string();
    let pieces = arguments.as_bytes().chunks(20 * 1024).map(|piece| String::from_utf8(piece.to_vec()).unwrap());
    let mut deltas: Vec<_> = (0..95).map(|_| Delta::Text("y".repeat(10 * 1024))).collect();
    deltas.push(Delta::tool_call(0, Some("c1".into()), Some("note".into()), ""));
    deltas.extend(pieces.map(|piece| Delta::tool_call(0, None, None, piece)));
    (arguments, deltas)
}

fn note() -> Tool {
    tool_fn("note", "Notes", |Note { text }: Note, _: RunContext| async move { Ok(text.len()) }).unwrap()
}

/// Returns the arguments of the only call, as a page has them at the end.
fn arguments(events: &[Value]) -> String {
    let mut arguments = String::new();
    for event in events {
        match event["type"].as_str().unwrap() {
            "TOOL_CALL_START" | "tool-input-start" => arguments.clear(),
            "TOOL_CALL_ARGS" => arguments += event["delta"].as_str().unwrap(),
            "tool-input-delta" => arguments += event["inputTextDelta"].as_str().unwrap(),
            "MESSAGES_SNAPSHOT" => {
                let messages = event["messages"].as_array().unwrap();
                let call = messages.iter().find_map(|message| message["toolCalls"][0]["function"].as_object());
                arguments = call.map(|call| call["arguments"].as_str().unwrap().to_owned()).unwrap_or_default();
            }
            "tool-input-available" => arguments = event["input"].to_string(),
            _ => {}
        }
    }
    arguments
}

#[tokio::test]
async fn a_call_whose_arguments_fill_the_log_is_whole_for_each_page() {
    for path in PATHS {
        let (expected, deltas) = long_call();
        let script = ScriptedModel::new("test").reply(Reply::deltas(deltas)).text("Noted.");
        let page = page(&chat(script, |agent| agent.tool(note())).keep_running());
        let slow = page.post(path, question(path, "t", "Note it.")).await;
        let read = if path == "/agent" { "/agent/t/events" } else { "/chat/t/stream" };
        let first = events(page.send(Method::GET, read, "").await).await;
        let slow = events(slow).await;
        let late = events(page.send(Method::GET, read, "").await).await;
        for events in [first, slow, late] {
            check(path, &events);
            assert!(arguments(&events) == expected, "{path}: {:?}", types(&events));
            assert_eq!(shown(&events).len(), 95 * 10 * 1024 + "Noted.".len());
        }
    }
}

#[tokio::test]
async fn ag_ui_closes_what_a_page_has_open_that_comes_back_after_the_log_was_shortened() {
    let (expected, deltas) = long_call();
    let script = ScriptedModel::new("test").reply(Reply::deltas(deltas)).text("Noted.");
    let page = page(&chat(script, |agent| agent.tool(note())).keep_running());
    let mut stream = Events::of(page.post("/agent", question("/agent", "t", "Note it.")).await);
    let mut whole = Vec::new();
    while let Some(event) = stream.next().await {
        whole.push(event);
    }
    for (at, (id, _)) in whole.iter().enumerate() {
        let rest = events(page.read_behind("/agent/t/events", id).await).await;
        let mut all: Vec<_> = whole[..=at].iter().map(|(_, event)| event.clone()).collect();
        if rest.first().is_some_and(|first| first["type"] == "RUN_STARTED") {
            all.clear();
        }
        all.extend(rest);
        check("/agent", &all);
        assert!(arguments(&all) == expected, "behind {id}: {:?}", types(&all));
    }
}

/// Reports its progress often.
fn reports(times: usize, yields: bool) -> Tool {
    let reports = tool_fn("report", "Reports", move |_: Nothing, ctx: RunContext| async move {
        for n in 0..times {
            ctx.emitter().emit("progress", &mut json!({ "n": n })).await?;
            if yields {
                tokio::task::yield_now().await;
            }
        }
        Ok("reported")
    });
    reports.unwrap()
}

/// Returns the numbers of the reports.
fn reported(events: &[Value]) -> Vec<u64> {
    let of = |event: &Value| event["value"]["n"].as_u64().or_else(|| event["data"]["value"]["n"].as_u64());
    events.iter().filter_map(of).collect()
}

#[tokio::test]
async fn of_many_events_that_are_shown_a_late_page_gets_the_last_ones() {
    for path in PATHS {
        let script = ScriptedModel::new("test").call("report", json!({})).text("Done.");
        let chat = chat(script, |agent| agent.tool(reports(10_000, false)));
        let page = page(&chat.keep_running().show("**.progress").unwrap());
        let events = page.ask(path, "t", "Report.").await;
        check(path, &events);
        let mut reported = reported(&events);
        assert!(reported.len() < 3 * 4096, "{} events are kept", reported.len());
        reported.sort_unstable();
        reported.dedup();
        assert_eq!(reported.last(), Some(&9_999));
        assert!(reported.len() > 2000 && reported.is_sorted_by(|a, b| a + 1 == *b), "the last ones have no gap");
    }
}

#[tokio::test]
async fn a_page_that_reads_gets_each_event_that_is_shown_once() {
    let script = ScriptedModel::new("test").call("report", json!({})).text("Done.");
    let chat = chat(script, |agent| agent.tool(reports(10_000, true)));
    let page = page(&chat.show("**.progress").unwrap());
    let mut stream = Events::of(page.post("/agent", question("/agent", "t", "Report.")).await);
    let mut all = Vec::new();
    while let Some((_, event)) = stream.next().await {
        all.push(event);
    }
    check("/agent", &all);
    assert!(reported(&all).iter().copied().eq(0..10_000));
}

#[tokio::test]
async fn the_result_of_a_call_that_a_run_goes_on_with_is_shown_though_the_log_was_shortened() {
    for path in PATHS {
        let script = ScriptedModel::new("test").call("paint", json!({}));
        let script = script.reply(Reply::text("y".repeat(3 * 1024 * 1024)).in_pieces(64 * 1024));
        let page = page(&chat(script, |agent| agent).keep_running());
        let asked = page.ask(path, "t", "Paint.").await;
        let body = match path {
            "/agent" => {
                let id = &last(&asked)["outcome"]["interrupts"][0]["id"];
                let resume = json!([{"interruptId": id, "status": "resolved", "payload": "red"}]);
                json!({"threadId": "t", "runId": "r2", "messages": [], "resume": resume})
            }
            _ => {
                let question = asked.iter().find(|event| event["type"] == "data-emitree-question").unwrap();
                let answers = json!({question["id"].as_str().unwrap(): "red"});
                json!({"id": "t", "messages": [{"id": "a", "role": "assistant", "parts": []}], "answers": answers})
            }
        };
        let first = events(page.post(path, body).await).await;
        let read = if path == "/agent" { "/agent/t/events" } else { "/chat/t/stream" };
        let late = events(page.send(Method::GET, read, "").await).await;
        for events in [first, late] {
            check(path, &events);
            let results = events.iter().filter(|event| event.to_string().contains("painted red")).count();
            assert!(results > 0, "{:?}", types(&events));
        }
    }
}

#[tokio::test]
async fn a_task_that_a_tool_has_left_behind_does_not_open_its_run_again() {
    let (go, done) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let [goes, is_done] = [&go, &done].map(Arc::clone);
    let leaves = tool_fn("leave", "Leaves a task behind", move |_: Nothing, ctx: RunContext| {
        let (goes, is_done) = (Arc::clone(&goes), Arc::clone(&is_done));
        async move {
            tokio::spawn(async move {
                goes.notified().await;
                _ = ctx.emitter().emit("progress", &mut json!({"n": 1})).await;
                is_done.notify_one();
            });
            Ok("left")
        }
    });
    let script = ScriptedModel::new("test").call("leave", json!({})).text("Done.").text("Here I am.");
    let chat = chat(script, |agent| agent.tool(leaves.unwrap())).keep_running().show("**.progress").unwrap();
    let page = page(&chat);
    let first = page.ask("/agent", "t", "Go.").await;
    go.notify_one();
    done.notified().await;
    let kept = events(page.send(Method::GET, "/agent/t/events", "").await).await;
    assert_eq!(last(&kept), last(&first));
    let again = page.post("/agent", question("/agent", "t", "And?")).await;
    assert_eq!(again.status(), StatusCode::OK);
    assert_eq!(shown(&events(again).await), "Here I am.");
}

#[tokio::test]
async fn an_answer_that_is_refused_leaves_the_steps_of_the_run_that_has_asked() {
    let page: Page = page(&chat(ScriptedModel::new("test").call("paint", json!({})), |agent| agent).keep_running());
    let asked = page.ask("/chat", "t", "Paint.").await;
    let question = asked.iter().find(|event| event["type"] == "data-emitree-question").unwrap();
    let messages = json!([{"id": "a", "role": "assistant", "parts": []}]);
    let answers = json!({question["id"].as_str().unwrap(): "green"});
    let refused = page.post("/chat", json!({"id": "t", "messages": messages, "answers": answers})).await;
    assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let kept = events(page.send(Method::GET, "/chat/t/stream", "").await).await;
    assert_eq!(last(&kept), last(&asked));
}
