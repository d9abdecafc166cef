//! A session goes on in a new build of the program (A22). In a binary of its own, because a shutdown ends all runs of
//! the process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_agent::{
    Agent, AgentMiddleware, AgentRun, ChatModel, Hooks, ScriptedModel, Session, Tool, hooks_fn, tool_fn,
};
use emitree_middleware::Runs;
use emitree_middleware::approval::{Approval, Decision};
use emitree_runtime::{Result, RunContext, accept_runs, for_tree, shutdown};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;

#[derive(Deserialize, JsonSchema)]
struct Text {
    text: String,
}

type Log = Arc<Mutex<Vec<String>>>;

fn lines(log: &Log) -> Vec<String> {
    log.lock().expect("no panic").clone()
}

/// A tool that logs its name, and waits for ever if `stops` is set, after it has told so.
fn tool(name: &'static str, log: &Log, stops: Option<&Arc<Notify>>) -> Tool {
    let (log, stops) = (Arc::clone(log), stops.cloned());
    let tool = tool_fn(name, "Works", move |Text { text }: Text, _: RunContext| {
        log.lock().expect("no panic").push(format!("{name} {text}"));
        let stops = stops.clone();
        async move {
            if let Some(stops) = stops {
                stops.notify_one();
                std::future::pending::<()>().await;
            }
            Ok(format!("{name} done"))
        }
    });
    tool.expect("a tool")
}

/// A middleware with state, which counts the calls that pass its gate.
fn counter() -> impl AgentMiddleware {
    hooks_fn("counter", |hooks: &mut Hooks| {
        let count = hooks.state::<u32>();
        hooks.on_gate_each(move |_, ctx| count.with(ctx, |count| *count += 1));
    })
}

fn says(text: &str) -> Value {
    json!({ "text": text })
}

fn results(session: &Session) -> Vec<Value> {
    let history = session.history();
    let results = history.messages().iter().flat_map(|message| message.tool_results());
    results.map(|result| result.response.clone()).collect()
}

#[tokio::test]
async fn a_turn_that_a_shutdown_has_cut_goes_on_in_a_new_build_of_the_program() -> Result<()> {
    let (log, reached) = (Log::default(), Arc::new(Notify::new()));
    let calls = ["quick", "pay", "safe", "once", "old"].map(|name| (name, says("x")));
    let script = ScriptedModel::new("test").calls(calls);
    let approval = || for_tree(Approval::by_interrupt().runs(Runs::named("pay")));
    let agent = Agent::builder("clerk", ChatModel::new(script)?)
        .prompt("You are a clerk.")
        .tool(tool("quick", &log, None))
        .tool(tool("pay", &log, None))
        .tool(tool("safe", &log, Some(&reached)).idempotent())
        .tool(tool("once", &log, Some(&reached)))
        .tool(tool("old", &log, None).exclusive())
        .with(counter())
        .middleware(approval())
        .build()?;
    let session = Session::with_id("order-17")?;
    let (of_task, handle) = (agent.clone(), session.clone());
    let task = tokio::spawn(async move { of_task.ask("Go.").session(&handle).await });
    reached.notified().await;
    let report = shutdown(Duration::from_secs(5)).await;
    assert!(report.is_complete(), "{report}");
    assert!(task.await.expect("no panic").expect_err("the process shuts down").is_aborted());
    assert_eq!(lines(&log), ["quick x", "safe x", "once x"]);
    let stored = serde_json::to_string(&session)?;
    accept_runs();

    // Another prompt, one more tool, the tool `old` and the middleware `counter` less.
    let script = ScriptedModel::new("test").call("new", says("y")).text("Done.");
    let agent = Agent::builder("clerk", ChatModel::new(script.clone())?)
        .prompt("You are an accountant.")
        .tool(tool("quick", &log, None))
        .tool(tool("pay", &log, None))
        .tool(tool("safe", &log, None).idempotent())
        .tool(tool("once", &log, None))
        .tool(tool("new", &log, None))
        .middleware(approval())
        .build()?;
    let session: Session = serde_json::from_str(&stored)?;
    let question = session.questions().remove(0);
    session.answer(&question.id, Decision::Approve).await?;
    let answer = agent.resume(&session).await?;
    assert_eq!((answer.text().as_str(), answer.turns), ("Done.", 3));
    assert_eq!(lines(&log), ["quick x", "safe x", "once x", "pay x", "safe x", "new y"]);
    let found = results(&session);
    assert_eq!(found[..3], ["quick done", "pay done", "safe done"]);
    assert!(found[3].as_str().is_some_and(|text| text.ends_with("it may have had effects")), "{found:?}");
    assert!(found[4].as_str().is_some_and(|text| text.starts_with("there is no tool `old`")), "{found:?}");
    let request = &script.requests()[0];
    assert!(request.system.as_deref().is_some_and(|system| system.contains("accountant")));
    // The state of the middleware that is gone stays.
    assert_eq!(serde_json::to_value(&session)?["state"], json!({"counter": 5}));
    Ok(())
}
