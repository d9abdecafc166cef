//! Tools as runs: their own events, and attempts of one run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use emitree_agent::{AgentMiddleware, Hooks, ScriptedModel, Tool, ToolFinish, tool_fn};
use emitree_runtime::{Error, Result, RunContext, Runnable};
use serde::Deserialize;
use serde_json::json;

use crate::support::{Log, Text, agent};

/// A tool that fails this many times before it succeeds.
fn flaky(failures: u32, is_retryable: bool) -> Tool {
    let calls = Arc::new(AtomicU32::new(0));
    tool_fn("flaky", "Fails at first", move |_: Text, _: RunContext| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        async move { if call < failures { Err(Error::new("busy").retryable(is_retryable)) } else { Ok(call) } }
    })
    .expect("a tool")
}

async fn events_of(tool: &Tool) -> (Result<emitree_agent::ToolOutput>, Vec<String>) {
    let log = Log::default();
    let mut run = tool.run(json!({"text": "x"}));
    for name in ["start", "success", "error", "finish", "retry", "retries_exceeded", "attempt_discarded"] {
        let to = log.clone();
        run = run.observe(name, move |_: &dyn emitree_emitter::AnyEvent, meta| to.add(meta.name()));
    }
    (run.await, log.lines())
}

#[tokio::test]
async fn a_tool_is_attempted_again_within_one_run_and_says_so() -> Result<()> {
    let failed = ["start", "error", "finish"];
    let again = ["attempt_discarded", "retry"];

    let (output, events) = events_of(&flaky(1, true).retries(2)).await;
    assert_eq!(output?.content, 1);
    assert_eq!(events, [&failed[..], &again, &["start", "success", "finish"]].concat());

    let (output, events) = events_of(&flaky(5, true).retries(1)).await;
    assert_eq!(output.unwrap_err().to_string(), "busy");
    assert_eq!(events, [&failed[..], &again, &failed, &["retries_exceeded"]].concat());

    for tool in [flaky(1, false).retries(2), flaky(1, true)] {
        let (output, events) = events_of(&tool).await;
        assert_eq!(output.unwrap_err().to_string(), "busy");
        assert_eq!(events, failed);
    }
    Ok(())
}

#[tokio::test]
async fn a_listener_that_fails_at_finish_fails_a_success_and_never_hides_an_error() -> Result<()> {
    for (failures, expected) in [(0, "a listener of `tool.flaky.finish` failed"), (1, "busy")] {
        let tool = flaky(failures, false);
        let run = tool.run(json!({"text": "x"}));
        let run = run.on("finish", |_: &mut ToolFinish, _| Err("late".into()));
        let error = run.await.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn arguments_that_no_gate_can_change_are_checked_once() -> Result<()> {
    static PARSED: AtomicUsize = AtomicUsize::new(0);

    fn counted<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
        PARSED.fetch_add(1, Ordering::Relaxed);
        String::deserialize(from)
    }

    #[derive(Deserialize, schemars::JsonSchema)]
    struct Counted {
        #[serde(deserialize_with = "counted")]
        #[schemars(with = "String")]
        text: String,
    }

    let echo = || tool_fn("echo", "Repeats a text", |Counted { text }, _: RunContext| async { Ok(text) });
    let script = || ScriptedModel::new("test").call("echo", json!({"text": "a"})).text("done");
    agent(&script()).tool(echo()).build()?.ask("go").await?;
    assert_eq!(PARSED.swap(0, Ordering::Relaxed), 2, "once for the check, once for the tool");

    // A gate may change them: they are checked again after it.
    #[derive(Debug)]
    struct Gate;
    impl AgentMiddleware for Gate {
        fn id(&self) -> &str {
            "gate"
        }
        fn install(&self, hooks: &mut Hooks) -> Result<()> {
            hooks.on_gate(|_, _| ());
            Ok(())
        }
    }
    agent(&script()).tool(echo()).with(Gate).build()?.ask("go").await?;
    assert_eq!(PARSED.load(Ordering::Relaxed), 3);
    Ok(())
}
