//! Built-in middleware can be bound to an agent and to all runs below it.

use std::sync::Arc;
use std::time::Duration;

use emitree_agent::{AgentRun, ScriptedModel};
use emitree_middleware::approval::{Approval, Decision};
use emitree_middleware::{
    Budget, Cache, CircuitBreaker, Concurrency, ContentFilter, ExfilGuard, Limits, Metrics, RateLimit, Record, Redact,
    Replay, Retry, Runs, Timeout, Trajectory,
};
use emitree_runtime::{Error, Middleware, Result, for_tree};
use serde_json::json;

use crate::support::{Log, agent, results};

fn script() -> ScriptedModel {
    ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done")
}

/// Returns each built-in with a name, bound to the agent's run and to all runs below it.
fn built_ins() -> Result<Vec<(&'static str, Arc<dyn Middleware>)>> {
    let hour = Duration::from_secs(3600);
    Ok(vec![
        ("approval", Arc::new(for_tree(Approval::by(|_| async { Ok(Decision::Approve) })))),
        ("budget", Arc::new(for_tree(Budget::builder().calls(100).build()?))),
        ("cache", Arc::new(for_tree(Runs::of_kind("Tool").only(Cache::json().build()?)))),
        ("circuit_breaker", Arc::new(for_tree(CircuitBreaker::new()))),
        ("concurrency", Arc::new(for_tree(Runs::of_kind("Tool").only(Concurrency::builder(1).build()?)))),
        ("content_filter", Arc::new(for_tree(ContentFilter::new().words("rude", ["darn"])?))),
        ("exfil_guard", Arc::new(for_tree(ExfilGuard::new()))),
        ("limits", Arc::new(for_tree(Limits::builder().depth(9).build()))),
        ("metrics", Arc::new(for_tree(Metrics::new()))),
        ("rate_limit", Arc::new(for_tree(RateLimit::builder(100, hour).build()?))),
        ("redact", Arc::new(for_tree(Redact::new()))),
        ("retry", Arc::new(for_tree(Retry::new()))),
        ("timeout", Arc::new(for_tree(Timeout::per_attempt(hour)))),
        ("trajectory", Arc::new(Trajectory::builder().writer(std::io::sink()).build()?)),
    ])
}

#[tokio::test]
async fn each_built_in_can_be_bound_to_an_agent_and_all_runs_below() -> Result<()> {
    for streams in [false, true] {
        for (name, middleware) in built_ins()? {
            let (tokens, agent) = (Log::default(), agent(&script()).build()?);
            let to = tokens.clone();
            let mut run = agent.ask("go").middleware(middleware);
            if streams {
                run = run.on_token(move |token| to.add(token.text()));
            }
            let answer = run.await.map_err(|error| Error::new(format!("{name}: {}", error.explain())))?;
            assert_eq!((answer.text(), results(&answer.messages)), ("done".into(), vec!["A".to_owned()]), "{name}");
            assert_eq!(tokens.lines().concat(), if streams { "done" } else { "" }, "{name}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_recorded_agent_is_replayed_without_its_model_and_tools() -> Result<()> {
    let record = Record::new();
    let agent_of = |script| agent(&script).build();
    let answer = agent_of(script())?.ask("go").middleware(record.clone()).await?;
    let replay = Replay::from(record.journal().expect("the run has ended"));
    let again = agent_of(ScriptedModel::new("test"))?.ask("go").middleware(replay).await?;
    assert_eq!((again.text(), results(&again.messages)), (answer.text(), results(&answer.messages)));
    Ok(())
}
