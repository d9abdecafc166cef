//! A session goes on where its last run has stopped (A1, A22).

mod ends;
mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use emitree_agent::{
    Agent, AgentBuilder, AgentRun, Arguments, ChatModel, Hooks, Reply, ScriptedModel, Session, Tool, hooks_fn, tool_fn,
};
use emitree_runtime::{Error, Result, RunContext};
use serde_json::json;

use crate::support::{Log, Text, assert_valid, results};

/// A tool that logs its argument, and waits for ever while `stops` is set.
fn logged(name: &'static str, log: &Log, stops: &Arc<AtomicBool>) -> Tool {
    let (log, stops) = (log.clone(), Arc::clone(stops));
    tool_fn(name, "Logs", move |args: Text, _: RunContext| {
        let (log, stops) = (log.clone(), Arc::clone(&stops));
        async move {
            log.add(format!("{name} {}", args.text));
            if stops.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            Ok(format!("{name} done"))
        }
    })
    .expect("a tool")
}

fn builder(script: &ScriptedModel) -> AgentBuilder {
    Agent::builder("tester", ChatModel::new(script.clone()).expect("a model"))
}

/// Stores a session and reads it again, as another process does.
fn stored(session: &Session) -> Session {
    assert_valid(session);
    let json = serde_json::to_string(session).expect("JSON");
    serde_json::from_str(&json).expect(&json)
}

fn says(text: &str) -> serde_json::Value {
    json!({ "text": text })
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_was_stopped_goes_on_in_another_process_without_a_call_of_the_model() -> Result<()> {
    let (log, stops) = (Log::default(), Arc::new(AtomicBool::new(true)));
    let never = Arc::new(AtomicBool::new(false));
    let script = ScriptedModel::new("test")
        .calls([("quick", says("a")), ("slow", says("b")), ("safe", says("c"))])
        .text("Done.");
    let agent = builder(&script)
        .tool(logged("quick", &log, &never))
        .tool(logged("slow", &log, &stops))
        .tool(logged("safe", &log, &stops).idempotent())
        .build()?;
    let session = Session::new();
    let run = agent.ask("Go.").session(&session).timeout(Duration::from_secs(1));
    assert!(run.await.expect_err("it takes too long").is_timed_out());
    let stopped = "!the run was stopped while the tool was running: it may have had effects";
    assert_eq!(results(session.history().messages()), ["quick done", stopped, stopped]);

    stops.store(false, Ordering::SeqCst);
    let session = stored(&session);
    let answer = agent.resume(&session).await?;
    assert_eq!(answer.text(), "Done.");
    assert_eq!(log.lines(), ["quick a", "slow b", "safe c", "safe c"]);
    let refused = "!the run was stopped while the tool was running, and the tool is not idempotent, so it was not called \
                   again: it may have had effects";
    assert_eq!(results(session.history().messages()), ["quick done", refused, "safe done"]);
    assert_valid(&session);
    assert_eq!(script.requests().len(), 2);
    assert_eq!((answer.turns, script.requests()[1].messages.len()), (2, 5));
    // Nothing is left.
    let error = agent.resume(&session).await.expect_err("nothing to do").to_string();
    assert_eq!(error, "there is nothing to resume: the conversation of the session ends with an answer");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_an_exclusive_tool_are_made_by_a_resume_and_gates_that_let_them_pass_are_not_called_again()
-> Result<()> {
    let (log, stops) = (Log::default(), Arc::new(AtomicBool::new(true)));
    let never = Arc::new(AtomicBool::new(false));
    let script = ScriptedModel::new("test").calls([("slow", says("a")), ("quick", says("b"))]).text("Done.");
    let gates = Log::default();
    let gate = |name: &'static str| {
        let gates = gates.clone();
        hooks_fn(name, move |hooks: &mut Hooks| {
            let gates = gates.clone();
            hooks.on_gate_each(move |gated, _| {
                gates.add(format!("{name} {}", gated.call.name));
                if let Arguments::Json(arguments) = &mut gated.call.arguments {
                    arguments["text"] = format!("{}!", arguments["text"].as_str().unwrap_or_default()).into();
                }
            });
        })
    };
    let agent = builder(&script)
        .tool(logged("quick", &log, &never))
        .tool(logged("slow", &log, &stops).exclusive())
        .with(gate("first"))
        .build()?;
    let session = Session::new();
    let run = agent.ask("Go.").session(&session).timeout(Duration::from_secs(1));
    run.await.expect_err("it takes too long");
    assert_eq!(gates.lines(), ["first slow", "first quick"]);

    let script = ScriptedModel::new("test").text("Done.");
    let agent = builder(&script)
        .tool(logged("quick", &log, &never))
        .tool(logged("slow", &log, &stops).exclusive())
        .with(gate("first"))
        .with(gate("second"))
        .build()?;
    let session = stored(&session);
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    // A gate of a new build is called.
    assert_eq!(gates.lines(), ["first slow", "first quick", "second quick"]);
    assert_eq!(log.lines(), ["slow a!", "quick b!!"]);
    Ok(())
}

#[tokio::test]
async fn a_run_that_stopped_between_two_turns_goes_on_with_the_model_and_counts_on() -> Result<()> {
    let script = ScriptedModel::new("test").call("quick", says("a")).error(Error::new("no network"));
    let never = Arc::new(AtomicBool::new(false));
    let log = Log::default();
    let agent = builder(&script).tool(logged("quick", &log, &never)).build()?;
    let session = Session::new();
    agent.ask("Go.").session(&session).await.expect_err("no network");
    let script = ScriptedModel::new("test").text("Done.");
    let agent = builder(&script).tool(logged("quick", &log, &never)).build()?;
    let session = stored(&session);
    let answer = agent.resume(&session).await?;
    assert_eq!((answer.text().as_str(), answer.turns), ("Done.", 3));
    assert_eq!(log.lines(), ["quick a"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_sub_agent_goes_on_inside_of_its_call_and_executes_no_call_again() -> Result<()> {
    let (log, stops) = (Log::default(), Arc::new(AtomicBool::new(true)));
    let never = Arc::new(AtomicBool::new(false));
    let inner_script = ScriptedModel::new("inner").call("quick", says("a")).call("slow", says("b")).text("Found.");
    let inner = Agent::builder("researcher", ChatModel::new(inner_script.clone())?)
        .tool(logged("quick", &log, &never))
        .tool(logged("slow", &log, &stops).idempotent())
        .build()?;
    let script = ScriptedModel::new("outer").call("researcher", json!({"task": "Find it."})).text("Done.");
    let agent = builder(&script).tool(inner.as_tool("Researches")?).build()?;
    let session = Session::with_id("order-17")?;
    let run = agent.ask("Go.").session(&session).timeout(Duration::from_secs(1));
    run.await.expect_err("it takes too long");

    stops.store(false, Ordering::SeqCst);
    let session = stored(&session);
    let keys = Log::default();
    let of_run = keys.clone();
    let resumed = agent.resume(&session).on("**.start", move |_: &mut emitree_agent::ToolStart, _| {
        let key = RunContext::current().and_then(|ctx| ctx.key()).expect("a key");
        of_run.add(key.as_str());
    });
    assert_eq!(resumed.await?.text(), "Done.");
    assert_eq!(log.lines(), ["quick a", "slow b", "slow b"]);
    assert_eq!(results(session.history().messages()), ["Found."]);
    assert_eq!((script.requests().len(), inner_script.requests().len()), (2, 3));
    assert_eq!(inner_script.requests()[2].messages.len(), 5);
    let keys = keys.lines();
    assert!(keys[0].starts_with("order-17/1/0/researcher-") && keys[0].len() == 40, "{keys:?}");
    assert_eq!(keys[1], format!("{}/researcher/2/0/{}", keys[0], &keys[1][keys[1].len() - 21..]), "{keys:?}");
    assert!(keys[1][keys[1].len() - 21..].starts_with("slow-"), "{keys:?}");
    Ok(())
}

#[tokio::test]
async fn an_agent_that_one_call_runs_twice_needs_a_key_of_its_own_the_second_time() -> Result<()> {
    let inner = Agent::builder("researcher", ChatModel::new(ScriptedModel::by("inner", |_| Reply::text("Found.")))?);
    let inner = inner.build()?;
    let twice = tool_fn("twice", "Asks twice", move |args: Text, _: RunContext| {
        let inner = inner.clone();
        async move {
            inner.ask("Here?").await?;
            let second = inner.ask("There?");
            let second = if args.text == "keyed" { second.key("second") } else { second };
            Ok(second.await?.text())
        }
    });
    let script = ScriptedModel::new("outer").calls([("twice", says("plain")), ("twice", says("keyed"))]).text("Done.");
    let session = Session::new();
    builder(&script).tool(twice).build()?.ask("Go.").session(&session).await?;
    let results = results(session.history().messages());
    assert!(results[0].contains("/researcher`: the run") && results[0].contains("another key"), "{results:?}");
    assert_eq!(results[1], "Found.");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_stored_in_the_middle_of_a_turn_is_as_if_the_run_had_been_dropped() -> Result<()> {
    let (log, stops) = (Log::default(), Arc::new(AtomicBool::new(true)));
    let never = Arc::new(AtomicBool::new(false));
    let script = ScriptedModel::new("test").calls([("quick", says("a")), ("slow", says("b"))]).text("Done.");
    let agent =
        builder(&script).tool(logged("quick", &log, &never)).tool(logged("slow", &log, &stops).idempotent()).build()?;
    let session = Session::new();
    session.follow_up("And then?")?;
    let (of_task, handle) = (agent.clone(), session.clone());
    let task = tokio::spawn(async move { of_task.ask("Go.").session(&handle).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let during = serde_json::to_value(&session)?;
    task.abort();
    _ = task.await;
    assert_eq!(during, serde_json::to_value(&session)?);
    assert!(during["inbox"][0]["sent"]["follow_up"].is_object(), "{during}");

    stops.store(false, Ordering::SeqCst);
    let script = ScriptedModel::new("test").text("Done.").text("Nothing.");
    let agent =
        builder(&script).tool(logged("quick", &log, &never)).tool(logged("slow", &log, &stops).idempotent()).build()?;
    let session: Session = serde_json::from_value(during)?;
    assert_eq!(session.undelivered().len(), 1);
    assert_eq!(agent.resume(&session).await?.text(), "Nothing.");
    assert_eq!(log.lines(), ["quick a", "slow b", "slow b"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn hooks_of_restore_refuse_calls_and_a_failing_hook_refuses_its_call() -> Result<()> {
    let (log, stops) = (Log::default(), Arc::new(AtomicBool::new(true)));
    let calls = [("slow", says("a")), ("safe", says("b")), ("safe", says("c")), ("safe", says("d"))];
    let script = ScriptedModel::new("test").calls(calls).text("Done.");
    let seen = Log::default();
    let of_hook = seen.clone();
    let judge = hooks_fn("judge", move |hooks: &mut Hooks| {
        let seen = of_hook.clone();
        hooks.on_restore(move |open, _| {
            let text = open.call().arguments.json().map(|arguments| arguments["text"].clone()).unwrap_or_default();
            seen.add(format!("{text} {}", open.has_begun()));
            match text.as_str() {
                Some("b") => open.refuse("too old"),
                Some("c") => return Err(Error::new("no idea")),
                _ => {}
            }
            Ok(())
        });
    });
    let agent = builder(&script)
        .tool(logged("slow", &log, &stops))
        .tool(logged("safe", &log, &stops).idempotent())
        .with(judge)
        .build()?;
    let session = Session::new();
    agent.ask("Go.").session(&session).timeout(Duration::from_secs(1)).await.expect_err("it takes too long");
    assert_eq!(seen.lines(), Vec::<String>::new());
    stops.store(false, Ordering::SeqCst);
    assert_eq!(agent.resume(&stored(&session)).await?.text(), "Done.");
    // The call that may have had effects is refused before.
    assert_eq!(seen.lines(), ["\"b\" true", "\"c\" true", "\"d\" true"]);
    assert_eq!(log.lines()[4..], ["safe d"]);
    let history = script.requests()[1].messages.clone();
    let refused = ["!too old", "!not executed: `judge.tool.restore` failed: no idea", "safe done"];
    assert_eq!(results(&history)[1..], refused);
    Ok(())
}

#[tokio::test]
async fn a_resume_does_not_make_the_calls_of_a_response_that_a_hook_of_turn_action_has_refused() -> Result<()> {
    let (log, script) = (Log::default(), ScriptedModel::new("test").call("quick", says("a")).text("Done."));
    let refuses = hooks_fn("refuses", |hooks: &mut Hooks| {
        hooks.on_action(|action, _| {
            if action.response.message.tool_calls().next().is_some() { Err(Error::new("no verdict")) } else { Ok(()) }
        });
    });
    let agent = builder(&script).tool(logged("quick", &log, &Arc::default())).with(refuses).build()?;
    let session = Session::new();
    agent.ask("Go.").session(&session).await.expect_err("no verdict");
    let session = stored(&session);
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(log.lines(), Vec::<String>::new());
    assert_eq!(results(session.history().messages()), ["!not executed: the run was stopped"]);
    Ok(())
}
