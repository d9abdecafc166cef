//! Calls of a server on rmcp, in both eras.

use std::time::Duration;

use emitree_agent::ToolResult;
use emitree_mcp::events::ToolProgress;
use emitree_mcp::{ElicitAnswer, Era};
use serde_json::{Value, json};

use crate::support::{Events, agent, bank, result, results, until};

const ERAS: [&[&str]; 2] = [&["--era", "old"], &["--era", "new"]];

async fn called(args: &[&str], tool: &str, arguments: Value) -> ToolResult {
    let server = bank(args).connect().await.unwrap();
    result(server.tools(), tool, arguments).await
}

#[tokio::test]
async fn a_call_returns_the_structured_content_in_both_eras() {
    for era in ERAS {
        let result = called(era, "balance", json!({})).await;
        assert_eq!((result.response, result.is_error), (json!({"savings": 100}), false), "{era:?}");
    }
}

#[tokio::test]
async fn arguments_are_checked_before_anything_is_sent() {
    let server = bank(&[]).connect().await.unwrap();
    let events = Events::of(server.emitter());
    let wrong = result(server.tools(), "transfer", json!({"to": "Ada", "amount": 0})).await;
    assert!(wrong.is_error && wrong.response.as_str().unwrap().contains("at `amount`: 0 is less than the minimum"));
    assert_eq!(events.named("elicitation_refused").len(), 0);
}

#[tokio::test]
async fn a_question_is_answered_by_the_function_in_both_eras() {
    for era in ERAS {
        let server = bank(era).name("bank").elicit(|question| async move {
            assert_eq!((&*question.server, &*question.message), ("bank", "From which account?"));
            assert_eq!(question.schema.unwrap()["properties"]["account"]["enum"], json!(["savings", "giro"]));
            Ok(ElicitAnswer::accept(json!({"account": "savings"})))
        });
        let server = server.connect().await.unwrap();
        let paid = result(server.tools(), "transfer", json!({"to": "Ada", "amount": 5})).await;
        assert_eq!(paid.response, "sent 5 from savings", "{era:?}");
        assert_eq!(result(server.tools(), "balance", json!({})).await.response, json!({"savings": 95}));
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_not_sent() {
    for era in ERAS {
        let server = bank(era).elicit(|_| async { Ok(ElicitAnswer::accept(json!({"account": "casino"}))) });
        let server = server.connect().await.unwrap();
        let refused = result(server.tools(), "transfer", json!({"to": "Ada", "amount": 5})).await;
        let text = refused.response.as_str().unwrap();
        assert!(refused.is_error && text.contains("does not fit the question, at `/account`"), "{text}");
        assert_eq!(result(server.tools(), "balance", json!({})).await.response, json!({"savings": 100}));
    }
}

#[tokio::test]
async fn progress_is_an_event_of_the_run_before_its_result() {
    for era in ERAS {
        let server = bank(era).connect().await.unwrap();
        let agent = agent(server.tools(), &[("audit", json!({}))]);
        let seen = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
        let list = std::sync::Arc::clone(&seen);
        let run = agent.ask("Count.").on("tool.*.progress", move |progress: &mut ToolProgress, _| {
            list.lock().push((progress.done, progress.total));
        });
        assert_eq!(results(&run.await.unwrap())[0].response, "3 payments");
        assert_eq!(*seen.lock(), [(1.0, Some(3.0)), (2.0, Some(3.0)), (3.0, Some(3.0))], "{era:?}");
    }
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_cancelled_at_the_server() {
    for era in ERAS {
        let server = bank(era).connect().await.unwrap();
        let events = Events::of(server.emitter());
        let tools = server.tools().timeout(Duration::from_millis(100));
        let late = result(tools, "audit", json!({})).await;
        assert_eq!((late.response, late.is_error), (json!("an attempt took longer than 100ms"), true));
        until(|| events.named("log").iter().any(|log| log["data"] == "the audit was cancelled").then_some(())).await;
    }
}

// P2
#[tokio::test]
async fn dropping_a_run_cancels_its_call_at_the_server() {
    for era in ERAS {
        let server = bank(era).connect().await.unwrap();
        let events = Events::of(server.emitter());
        let agent = agent(server.tools(), &[("audit", json!({}))]);
        let has_begun = std::sync::Arc::new(tokio::sync::Notify::new());
        let began = std::sync::Arc::clone(&has_begun);
        let run = agent.ask("Count.").on("tool.*.progress", move |_: &mut ToolProgress, _| began.notify_one());
        tokio::select! {
            _ = run => panic!("the call takes longer"),
            () = has_begun.notified() => {}
        }
        until(|| events.named("log").iter().any(|log| log["data"] == "the audit was cancelled").then_some(())).await;
    }
}

#[tokio::test]
async fn the_trace_of_the_run_is_sent_on_request_only() {
    for (is_sent, expected) in [(false, "none"), (true, "00-")] {
        let server = bank(&[]).trace_parent(is_sent).connect().await.unwrap();
        let trace = result(server.tools(), "trace", json!({})).await;
        assert!(trace.response.as_str().unwrap().starts_with(expected), "{trace:?}");
    }
}

#[tokio::test]
async fn a_hundred_calls_at_once_over_one_process_get_their_own_results() {
    let server = bank(&[]).elicit(|_| async { Ok(ElicitAnswer::accept(json!({"account": "giro"}))) });
    let server = server.connect().await.unwrap();
    let calls: Vec<_> = (1..=100).map(|n| ("transfer", json!({"to": "Ada", "amount": n}))).collect();
    let answer = agent(server.tools(), &calls).ask("Pay.").await.unwrap();
    let expected: Vec<_> = (1..=100).map(|n| json!(format!("sent {n} from giro"))).collect();
    assert_eq!(results(&answer).into_iter().map(|result| result.response).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn the_era_is_in_the_event_of_the_connection() {
    for (args, era) in ERAS.into_iter().zip([Era::Old, Era::New]) {
        let server = bank(args).connect().await.unwrap();
        let events = Events::of(server.emitter());
        // The first connection was reported before the observer was there.
        drop(result(server.tools(), "crash", json!({})).await);
        assert_eq!(result(server.tools(), "balance", json!({})).await.response, json!({"savings": 100}));
        assert_eq!(events.wait("connected").await["era"], json!(era));
        assert_eq!(events.wait("restarted").await, json!({"restarts": 1}));
    }
}
