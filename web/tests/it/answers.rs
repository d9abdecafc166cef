//! Approvals and other questions.

use axum::http::StatusCode;
use emitree_agent::{Agent, ChatModel, ScriptedModel};
use serde_json::{Value, json};

use crate::support::{Page, chat, check, events, last, page, pay, text, types};

/// Asks for a payment, and returns the id of the approval.
async fn asked(page: &Page, path: &str) -> (Vec<Value>, String) {
    let events = page.ask(path, "t", "Pay the bill.").await;
    check(path, &events);
    let id = match path {
        "/agent" => last(&events)["outcome"]["interrupts"][0]["id"].clone(),
        _ => events.iter().find(|event| event["type"] == "tool-approval-request").unwrap()["approvalId"].clone(),
    };
    (events, id.as_str().unwrap().to_owned())
}

fn script() -> ScriptedModel {
    ScriptedModel::new("test").call("pay", json!({"to": "bob"})).text("Bob is paid.")
}

fn resume(id: &str, payload: &Value) -> Value {
    let resume = json!([{"interruptId": id, "status": "resolved", "payload": payload}]);
    json!({"threadId": "t", "runId": "r2", "messages": [], "resume": resume})
}

/// Returns the request of a page on which a person has answered an approval.
fn responded(events: &[Value], id: &str, approved: bool) -> Value {
    let call = events.iter().find(|event| event["type"] == "tool-input-available").unwrap();
    let part = json!({
        "type": "dynamic-tool",
        "toolCallId": call["toolCallId"],
        "state": "approval-responded",
        "approval": {"id": id, "approved": approved, "reason": "too much"},
    });
    let messages = json!([{"id": events[0]["messageId"], "role": "assistant", "parts": [part]}]);
    json!({"id": "t", "messages": messages, "trigger": "submit-message"})
}

#[tokio::test]
async fn an_approval_is_asked_and_answered_with_ag_ui() {
    let page = page(&chat(script(), |agent| agent));
    let (asked_events, id) = asked(&page, "/agent").await;
    let interrupt = &last(&asked_events)["outcome"]["interrupts"][0];
    let call = asked_events.iter().find(|event| event["type"] == "TOOL_CALL_START").unwrap();
    assert_eq!((&interrupt["reason"], &interrupt["toolCallId"]), (&json!("approval"), &call["toolCallId"]));
    assert_eq!(interrupt["message"], r#"May `pay` begin with {"to":"bob"}?"#);

    let answered = events(page.post("/agent", resume(&id, &json!({"approved": true}))).await).await;
    check("/agent", &answered);
    // The page gets the conversation, so that it knows the call of the result.
    assert_eq!(types(&answered)[..3], ["RUN_STARTED", "MESSAGES_SNAPSHOT", "TOOL_CALL_RESULT"]);
    assert_eq!(answered[1]["messages"][1]["toolCalls"][0]["id"], answered[2]["toolCallId"]);
    assert_eq!(answered[1]["messages"].as_array().unwrap().len(), 2, "the call has no result yet");
    assert_eq!(answered[2]["content"], "paid bob");
    assert_eq!(last(&answered)["outcome"], json!({"type": "success"}));
}

#[tokio::test]
async fn an_approval_is_asked_and_answered_with_the_ai_sdk() {
    let page = page(&chat(script(), |agent| agent));
    let (asked_events, id) = asked(&page, "/chat").await;
    let answered = events(page.post("/chat", responded(&asked_events, &id, true)).await).await;
    check("/chat", &answered);
    assert_eq!(answered[0]["messageId"], asked_events[0]["messageId"], "the message goes on");
    assert_eq!(types(&answered)[..3], ["start", "tool-output-available", "start-step"]);
    assert_eq!(answered[1]["output"], "paid bob");
}

#[tokio::test]
async fn a_page_that_does_not_show_the_call_gets_it_first() {
    let page = page(&chat(script(), |agent| agent));
    let (_, id) = asked(&page, "/chat").await;
    let body =
        json!({"id": "t", "messages": [{"role": "assistant", "id": "x", "parts": []}], "answers": {id: "approve"}});
    let answered = events(page.post("/chat", body).await).await;
    let expected = ["start", "start-step", "tool-input-available", "tool-output-available", "start-step"];
    assert_eq!(types(&answered)[..5], expected);
}

#[tokio::test]
async fn a_rejection_is_shown_as_a_denial() {
    let page = page(&chat(script(), |agent| agent));
    let (asked_events, id) = asked(&page, "/chat").await;
    let answered = events(page.post("/chat", responded(&asked_events, &id, false)).await).await;
    assert_eq!(answered[1]["type"], "tool-output-denied", "{answered:#?}");
}

#[tokio::test]
async fn a_question_is_asked_and_answered_in_both_protocols() {
    let script = || ScriptedModel::new("test").call("paint", json!({})).text("Done.");
    let ag_ui = page(&chat(script(), |agent| agent));
    let asked = ag_ui.ask("/agent", "t", "Paint.").await;
    check("/agent", &asked);
    let interrupt = &last(&asked)["outcome"]["interrupts"][0];
    assert_eq!(interrupt["responseSchema"], json!({"enum": ["red", "blue"]}));
    assert_eq!(interrupt["toolCallId"], Value::Null);
    let id = interrupt["id"].as_str().unwrap();
    let wrong = ag_ui.post("/agent", resume(id, &json!("green"))).await;
    let (status, reason) = text(wrong).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(reason.contains(r#"does not allow the answer "green"; allowed are "red", "blue""#), "{reason}");
    let answered = events(ag_ui.post("/agent", resume(id, &json!("red"))).await).await;
    assert_eq!(answered[2]["content"], "painted red");

    let ui = page(&chat(script(), |agent| agent));
    let asked = ui.ask("/chat", "t", "Paint.").await;
    check("/chat", &asked);
    let question = asked.iter().find(|event| event["type"] == "data-emitree-question").unwrap();
    assert_eq!(question["data"]["schema"], json!({"enum": ["red", "blue"]}));
    let id = question["id"].as_str().unwrap();
    let messages = json!([{"id": "a", "role": "assistant", "parts": []}]);
    let answered =
        events(ui.post("/chat", json!({"id": "t", "messages": messages, "answers": {id: "blue"}})).await).await;
    let result = answered.iter().find(|event| event["type"] == "tool-output-available").unwrap();
    assert_eq!(result["output"], "painted blue");
}

#[tokio::test]
async fn wrong_late_and_foreign_answers_are_refused() {
    let page = page(&chat(script(), |agent| agent));
    let (_, id) = asked(&page, "/agent").await;
    let (status, reason) = text(page.post("/agent", resume("t/other", &json!("approve"))).await).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(reason.contains(&id), "all open questions have to be answered: {reason}");
    let body = json!({"id": "t", "messages": [{"role": "assistant", "parts": []}], "answers": {"t/other": "approve"}});
    assert_eq!(text(page.post("/chat", body).await).await.0, StatusCode::NOT_FOUND);

    let stranger = Page { app: page.app.clone(), user: "eve" };
    let refused = text(stranger.post("/agent", resume(&id, &json!("approve"))).await).await;
    assert_eq!(refused, (StatusCode::NOT_FOUND, r#"there is no thread "t""#.to_owned()));

    assert_eq!(page.post("/agent", resume(&id, &json!("approve"))).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn an_answer_that_comes_after_its_turn_has_no_question_also_while_the_run_goes_on() {
    for path in ["/agent", "/chat"] {
        let (asks_again, mut is_asked_again) = tokio::sync::mpsc::unbounded_channel();
        let script = ScriptedModel::by("test", move |request| match request.messages.len() {
            1 => emitree_agent::Reply::calls([("pay", json!({"to": "bob"}))]),
            _ => {
                asks_again.send(()).unwrap();
                let hour = std::time::Duration::from_secs(3600);
                emitree_agent::Reply::text("x").slow(hour, std::time::Duration::ZERO)
            }
        });
        let page = page(&chat(script, |agent| agent));
        let (asked_events, id) = asked(&page, path).await;
        let body = |approved: bool| match path {
            "/agent" => resume(&id, &json!({ "approved": approved })),
            _ => responded(&asked_events, &id, approved),
        };
        let first = page.post(path, body(true)).await;
        assert_eq!(first.status(), StatusCode::OK);
        is_asked_again.recv().await.unwrap();
        let (status, reason) = text(page.post(path, body(false)).await).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{reason}");
        drop(first);
    }
}

#[tokio::test]
async fn an_approval_of_a_sub_agent_goes_on_with_the_parts_that_the_page_shows() {
    let writer = ScriptedModel::new("writer").call("pay", json!({"to": "bob"})).text("Paid.");
    let writer = Agent::builder("writer", ChatModel::new(writer).unwrap()).tool(pay()).build().unwrap();
    let script = ScriptedModel::new("test").call("writer", json!({"task": "pay"})).text("Done.");
    let page = page(&chat(script, |agent| agent.tool(writer.as_tool("Writes"))));
    let (asked_events, id) = asked(&page, "/chat").await;
    let answered = events(page.post("/chat", responded(&asked_events, &id, true)).await).await;
    check("/chat", &answered);
    assert_eq!(types(&answered)[..3], ["start", "tool-output-available", "start-step"], "nothing is reset");
}
