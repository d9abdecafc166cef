//! A number that JSON cannot represent is an error, never `null`, where the value is read back as data (A8).

use emitree_agent::{Agent, AgentContext, AgentRun, ChatModel, ScriptedModel, Session, hooks_fn, tool_fn};
use emitree_middleware::store::MemoryStore;
use emitree_middleware::values::ValueKey;
use emitree_runtime::{Result, RunContext};
use serde_json::json;

use crate::support::{Nothing, assert_valid, results};

const NAN: &str = "is NaN or infinite, and JSON has no such numbers: use a finite number or an `Option`";

#[tokio::test]
async fn a_state_that_json_cannot_represent_is_not_stored() -> Result<()> {
    let means = hooks_fn("mean", |hooks| {
        let mean = hooks.state::<Vec<f64>>();
        hooks.on_state(move |_, ctx| mean.with(ctx, |mean| mean.extend([1.0, f64::NAN])));
    });
    let store = MemoryStore::new();
    let session = Session::open(&store, "means").await?;
    let agent = Agent::builder("tester", ChatModel::new(ScriptedModel::new("test").text("A."))?).build()?;
    let error = agent.ask("Hi.").session(&session).with(means).await.unwrap_err();
    assert!(
        error.explain().contains(&format!("the state `mean` cannot be stored: the number at `[1]` {NAN}")),
        "{error}"
    );
    let error = serde_json::to_string(&session).unwrap_err();
    assert!(error.to_string().contains("the number at `[1]`"), "{error}");
    // The session can still be opened.
    Session::open(&store, "means").await?;
    Ok(())
}

#[tokio::test]
async fn a_tool_whose_result_json_cannot_represent_has_failed() -> Result<()> {
    let tool = tool_fn("measure", "Measures", |_: Nothing, _: RunContext| async {
        Ok(std::collections::BTreeMap::from([("height", [1.0, f64::INFINITY])]))
    })?;
    let script = ScriptedModel::new("test").call("measure", json!({})).text("A.");
    let session = Session::new();
    let agent = Agent::builder("tester", ChatModel::new(script)?).tool(tool).build()?;
    agent.ask("Measure.").session(&session).await?;
    let results = results(assert_valid(&session).messages());
    assert_eq!(results, [format!("!the number at `height[1]` {NAN}")]);
    Ok(())
}

#[tokio::test]
async fn values_and_metadata_that_json_cannot_represent_are_refused() -> Result<()> {
    let tool = tool_fn("note", "Notes", |_: Nothing, ctx: RunContext| async move {
        ctx.values()?.write(&ValueKey::new(["note"])?, ("a", f32::NAN)).await?;
        Ok("noted")
    })?;
    let script = ScriptedModel::new("test").call("note", json!({})).text("A.");
    let session = Session::new();
    let agent = Agent::builder("tester", ChatModel::new(script)?).tool(tool).build()?;
    agent.ask("Note.").session(&session).await?;
    assert_eq!(results(session.history().messages()), [format!("!the number at `[1]` {NAN}")]);

    let error = session.set_meta("mean", f64::NAN).unwrap_err();
    assert_eq!(error.to_string(), format!("the number at `.` {NAN}"));
    assert!(session.meta().is_empty());
    Ok(())
}
