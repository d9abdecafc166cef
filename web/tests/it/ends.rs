//! Each kind of end.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use emitree_agent::{Delta, Reply, ScriptedModel, tool_fn};
use emitree_runtime::{Error, RunContext};
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::{Events, chat, check, events, forever, last, page, question, shown, types};

const PATHS: [&str; 2] = ["/agent", "/chat"];

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[tokio::test]
async fn an_answer_is_streamed_in_both_protocols() {
    let script = || ScriptedModel::new("test").reply(Reply::text("Everest.").in_pieces(4));
    let ag_ui = page(&chat(script(), |agent| agent)).ask("/agent", "t", "Hi").await;
    let expected = ["RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED"];
    assert_eq!(types(&ag_ui), expected);
    assert_eq!((&ag_ui[0]["threadId"], &ag_ui[0]["runId"]), (&json!("t"), &json!("r1")));
    assert_eq!(ag_ui[4]["outcome"], json!({"type": "success"}));

    let ui = page(&chat(script(), |agent| agent)).ask("/chat", "t", "Hi").await;
    let expected = ["start", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish"];
    assert_eq!(types(&ui), expected);
    assert_eq!((shown(&ag_ui).as_str(), shown(&ui).as_str()), ("Everest.", "Everest."));
}

#[tokio::test(start_paused = true)]
async fn each_token_is_sent_before_the_next_one_is_known() {
    for (path, kind) in PATHS.into_iter().zip(["TEXT_MESSAGE_CONTENT", "text-delta"]) {
        let reply = Reply::text("Everest is high.").in_pieces(8).slow(Duration::ZERO, Duration::from_secs(3600));
        let page = page(&chat(ScriptedModel::new("test").reply(reply), |agent| agent));
        let mut stream = Events::of(page.post(path, question(path, "t", "Hi")).await);
        assert_eq!(stream.until(kind).await.1["delta"], "Everest ");
        assert_eq!(stream.until(kind).await.1["delta"], "is high.");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_with_nothing_to_say_sends_a_comment_every_15_seconds() {
    for path in PATHS {
        let waits = tool_fn("wait", "Waits", |_: Nothing, _: RunContext| forever()).unwrap();
        let page = page(&chat(ScriptedModel::new("test").call("wait", json!({})), |agent| agent.tool(waits)));
        let mut body = page.post(path, question(path, "t", "Hi")).await.into_body().into_data_stream();
        let mut comments = Vec::new();
        while comments.len() < 3 {
            let piece = body.next().await.unwrap().unwrap();
            if piece.starts_with(b":") {
                comments.push(tokio::time::Instant::now());
            }
        }
        // The clock is paused, so the times are exact.
        assert!(comments.windows(2).all(|two| (two[1] - two[0]).as_secs() == 15), "{comments:?}");
    }
}

#[tokio::test]
async fn a_call_is_streamed_with_its_arguments_and_its_result() {
    let deltas = || {
        [
            Delta::Text("Let me look.".to_owned()),
            Delta::tool_call(0, Some("c1".into()), Some("roll".into()), ""),
            Delta::tool_call(0, None, None, "{\"si"),
            Delta::tool_call(0, None, None, "des\": 6}"),
        ]
    };
    let script = || ScriptedModel::new("test").reply(Reply::deltas(deltas())).text("Four.");
    let roll = || tool_fn("roll", "Rolls", |_: Nothing, _: RunContext| async { Ok(json!({"is": 4})) }).unwrap();
    let ag_ui = page(&chat(script(), |agent| agent.tool(roll()))).ask("/agent", "t", "Hi").await;
    check("/agent", &ag_ui);
    let of = |kind: &str| ag_ui.iter().find(|event| event["type"] == kind).unwrap();
    assert_eq!(of("TOOL_CALL_START")["toolCallName"], "roll");
    assert_eq!(of("TOOL_CALL_START")["parentMessageId"], of("TEXT_MESSAGE_START")["messageId"]);
    assert_eq!(of("TOOL_CALL_RESULT")["content"], r#"{"is":4}"#);
    assert_eq!(shown(&ag_ui), "Let me look.Four.");

    let ui = page(&chat(script(), |agent| agent.tool(roll()))).ask("/chat", "t", "Hi").await;
    check("/chat", &ui);
    let of = |kind: &str| ui.iter().find(|event| event["type"] == kind).unwrap();
    let available = json!({"type": "tool-input-available", "toolCallId": "c1", "toolName": "roll", "dynamic": true});
    for (key, value) in available.as_object().unwrap() {
        assert_eq!(of("tool-input-available")[key], *value);
    }
    assert_eq!(of("tool-input-available")["input"], json!({"sides": 6}));
    assert_eq!(of("tool-output-available")["output"], json!({"is": 4}));
    let starts = ui.iter().filter(|event| event["type"] == "start-step").count();
    assert_eq!(starts, 1, "only the last step can be reset");
}

/// The beginnings of a reply after which the model fails.
fn cut_replies() -> Vec<Vec<Delta>> {
    let call = |text: &str| {
        vec![
            Delta::Text("Let me".to_owned()),
            Delta::tool_call(0, Some("c1".into()), Some("pay".into()), ""),
            Delta::tool_call(0, None, None, text),
        ]
    };
    vec![
        vec![],
        vec![Delta::Text("Half a".to_owned())],
        vec![Delta::Reasoning("Hm".to_owned())],
        vec![Delta::Reasoning("Hm".to_owned()), Delta::Text("Half a".to_owned())],
        call(""),
        call("{\"to\": \"A"),
        call("{\"to\": \"Ada\"}"),
    ]
}

#[tokio::test]
async fn each_failure_at_each_step_ends_the_stream_with_its_last_event() {
    let failures = [
        (Error::new("the database at 10.0.0.7 is down"), "failed", "internal error"),
        (Error::denied("policy", "not on Sundays"), "denied", "not on Sundays"),
        (Error::halted("budget", "too many tokens"), "halted", "too many tokens"),
        (Error::timed_out("no answer in 5 s"), "timed_out", "the run took too long"),
    ];
    for (error, code, message) in failures {
        for deltas in cut_replies() {
            for path in PATHS {
                let script = ScriptedModel::new("test").call("roll", json!({}));
                let script = script.reply(Reply::deltas(deltas.clone()).then_error(error.clone()));
                let roll = tool_fn("roll", "Rolls", |_: Nothing, _: RunContext| async { Ok(4) }).unwrap();
                let events = page(&chat(script, |agent| agent.tool(roll))).ask(path, "t", "Hi").await;
                check(path, &events);
                let expected = match path {
                    "/agent" => json!({"type": "RUN_ERROR", "code": code, "message": message}),
                    _ => json!({"type": "error", "errorText": message}),
                };
                assert_eq!(*last(&events), expected, "{deltas:?}");
                let is_withheld = ["denied", "halted"].contains(&code);
                assert!(!(is_withheld && shown(&events).contains("Half")), "{events:#?}");
            }
        }
    }
}

#[tokio::test]
async fn a_panic_of_a_hook_is_an_internal_error() {
    for path in PATHS {
        let script = ScriptedModel::new("test").text("Everest.");
        let chat = chat(script, |agent| {
            agent.hooks(|hooks| {
                hooks.on_action(|_, _| {
                    if true {
                        panic!("10.0.0.7");
                    }
                });
            })
        });
        let events = page(&chat).ask(path, "t", "Hi").await;
        check(path, &events);
        assert!(last(&events).to_string().contains("internal error"), "{events:#?}");
        assert!(!format!("{events:?}").contains("10.0.0.7"));
    }
}

#[tokio::test]
async fn a_failing_tool_is_shown_as_a_failure_and_a_denied_one_as_a_denial() {
    let fails =
        tool_fn("roll", "Rolls", |_: Nothing, _: RunContext| async { Err::<u32, _>(Error::new("the dice are gone")) });
    let script = ScriptedModel::new("test").call("roll", json!({})).text("No luck.");
    let events = page(&chat(script, |agent| agent.tool(fails.unwrap()))).ask("/chat", "t", "Hi").await;
    let failed = events.iter().find(|event| event["type"] == "tool-output-error").unwrap();
    assert!(failed["errorText"].as_str().unwrap().contains("the dice are gone"));

    let denied = tool_fn("roll", "Rolls", |_: Nothing, _: RunContext| async {
        Err::<u32, _>(Error::denied("policy", "no dice"))
    });
    let script = ScriptedModel::new("test").call("roll", json!({})).text("No luck.");
    let events = page(&chat(script, |agent| agent.tool(denied.unwrap()))).ask("/chat", "t", "Hi").await;
    assert!(types(&events).contains(&"tool-output-denied"), "{events:#?}");
}

#[tokio::test]
async fn calls_that_a_server_names_alike_have_ids_of_their_own() {
    let roll = tool_fn("roll", "Rolls", |_: Nothing, _: RunContext| async { Ok(4) }).unwrap();
    let script = ScriptedModel::new("test").call("roll", json!({})).call("roll", json!({})).text("Twice.");
    let page = page(&chat(script.call("roll", json!({})).text("Again."), |agent| agent.tool(roll)));
    let mut ids = Vec::new();
    for _ in 0..2 {
        let events = page.ask("/agent", "t", "Hi").await;
        check("/agent", &events);
        let calls = events.iter().filter(|event| event["type"] == "TOOL_CALL_START");
        ids.extend(calls.map(|event| event["toolCallId"].as_str().unwrap().to_owned()));
        let results = events.iter().filter(|event| event["type"] == "TOOL_CALL_RESULT");
        results.for_each(|event| assert!(ids.contains(&event["toolCallId"].as_str().unwrap().to_owned())));
    }
    let unique: std::collections::HashSet<_> = ids.iter().collect();
    assert_eq!((ids.len(), unique.len()), (3, 3), "{ids:?}");
}

#[tokio::test]
async fn a_stop_ends_the_stream_with_an_abort() {
    for (path, kind) in PATHS.into_iter().zip(["RUN_FINISHED", "abort"]) {
        let waits = tool_fn("wait", "Waits", |_: Nothing, _: RunContext| forever()).unwrap();
        let script = ScriptedModel::new("test").call("wait", json!({}));
        let page = page(&chat(script, |agent| agent.tool(waits)));
        let mut stream = Events::of(page.post(path, question(path, "t", "Hi")).await);
        stream.until(if path == "/agent" { "TOOL_CALL_END" } else { "tool-input-available" }).await;
        let stopped = page.send(Method::POST, &format!("{path}/t/stop"), "").await;
        assert_eq!(stopped.status(), StatusCode::NO_CONTENT);
        let (_, end) = stream.until(kind).await;
        let cancelled = if path == "/agent" { json!({"type": "cancelled"}) } else { Value::Null };
        assert_eq!(end["outcome"], cancelled);
        assert!(stream.next().await.is_none());
    }
}

#[tokio::test]
async fn a_page_that_goes_aborts_the_run_and_the_thread_goes_on() {
    let (ended, mut ends) = tokio::sync::mpsc::unbounded_channel();
    let waits = tool_fn("wait", "Waits", |_: Nothing, _: RunContext| forever()).unwrap();
    let script = ScriptedModel::new("test").call("wait", json!({})).text("Here I am.");
    let chat = chat(script, |agent| {
        agent.tool(waits).middleware(emitree_runtime::middleware_fn(move |ctx: &RunContext| {
            let ended = ended.clone();
            ctx.on_end(move |_, status| _ = ended.send(status));
            Ok(())
        }))
    });
    let page = page(&chat);
    let mut stream = Events::of(page.post("/agent", question("/agent", "t", "Hi")).await);
    stream.until("TOOL_CALL_END").await;
    drop(stream);
    assert_eq!(ends.recv().await, Some(emitree_runtime::Status::Aborted));
    // The run leaves its place once it has ended.
    let answer = loop {
        let response = page.post("/agent", question("/agent", "t", "Hello?")).await;
        if response.status() == StatusCode::OK {
            break events(response).await;
        }
        assert_eq!(response.status(), StatusCode::CONFLICT);
        tokio::task::yield_now().await;
    };
    assert_eq!(shown(&answer), "Here I am.");
}

#[tokio::test]
async fn dropping_the_chat_and_its_routers_aborts_its_runs() {
    let waits = tool_fn("wait", "Waits", |_: Nothing, _: RunContext| forever()).unwrap();
    let script = ScriptedModel::new("test").call("wait", json!({}));
    let chat = chat(script, |agent| agent.tool(waits)).keep_running();
    let page = page(&chat);
    let mut stream = Events::of(page.post("/chat", question("/chat", "t", "Hi")).await);
    stream.until("tool-input-available").await;
    drop((chat, page));
    let (_, abort) = stream.until("abort").await;
    assert_eq!(abort["reason"], "the server has closed the chat");
}
