//! A running agent is paused (A15).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_agent::{Agent, AgentRun, ChatModel, Reply, ScriptedModel, Session, Tool, TurnDecision, hooks_fn, tool_fn};
use emitree_runtime::{Error, Result, RunContext, map_output};
use serde_json::{Value, json};

use crate::support::{Text, agent, assert_valid, refuse_bad, results, texts};

/// Stores a session and reads it again, as another process does.
fn stored(session: &Session) -> Session {
    assert_valid(session);
    let json = serde_json::to_string(session).expect("JSON");
    serde_json::from_str(&json).expect(&json)
}

fn is_paused(session: &Session) -> bool {
    serde_json::to_value(session).expect("JSON")["paused"] == true
}

fn kind_of(error: &Error) -> &str {
    error.interrupt().map_or("", |interrupt| &interrupt.kind)
}

/// A tool that does something while it is at work.
fn tool(name: &str, work: impl Fn(&RunContext) + Send + Sync + 'static) -> Tool {
    let work = Arc::new(work);
    tool_fn(name, "Works", move |_: Text, ctx: RunContext| {
        let work = Arc::clone(&work);
        async move {
            work(&ctx);
            Ok("done")
        }
    })
    .expect("a tool")
}

fn pausing(session: &Session) -> Tool {
    let session = session.clone();
    tool("pause", move |_| session.pause())
}

fn no_arguments() -> Value {
    json!({"text": ""})
}

#[tokio::test]
async fn a_paused_run_ends_after_its_turn_and_a_resume_in_another_process_asks_the_model() -> Result<()> {
    let session = Session::new();
    let user = session.clone();
    let pauses = tool("pause", move |_| {
        user.pause();
        user.steer("in metres").expect("it is sent");
    });
    let script = ScriptedModel::new("test").calls([("pause", no_arguments()), ("shout", json!({"text": "a"}))]);
    let error = agent(&script).tool(pauses).build()?.ask("go").session(&session).await.expect_err("it is paused");
    assert_eq!((error.is_interrupted(), kind_of(&error)), (true, "agent.paused"));
    assert_eq!(results(session.history().messages()), ["done", "A"]);
    assert_eq!(session.undelivered().len(), 1);
    assert!(!is_paused(&session));

    let session = stored(&session);
    let script = ScriptedModel::new("test").call("shout", json!({"text": "b"})).text("8,849 m");
    let answer = agent(&script).build()?.resume(&session).await?;
    assert_eq!((answer.text().as_str(), answer.turns), ("8,849 m", 3));
    assert_eq!(texts(&session), ["go", "", "", "", "in metres", "", "", "8,849 m"]);
    Ok(())
}

#[tokio::test]
async fn a_pause_waits_in_the_session_for_a_run_which_ends_before_its_first_model_call() -> Result<()> {
    let session = Session::new();
    session.pause();
    assert!(is_paused(&session));
    let session = stored(&session);
    let script = ScriptedModel::new("test").text("hello");
    let agent = agent(&script).build()?;
    let error = agent.ask("go").session(&session).await.expect_err("it is paused");
    assert_eq!(kind_of(&error), "agent.paused");
    assert_eq!((texts(&session), script.requests().len()), (vec!["go".to_owned()], 0));
    let session = stored(&session);
    assert_eq!(agent.resume(&session).await?.text(), "hello");
    Ok(())
}

#[tokio::test]
async fn a_run_with_an_answer_takes_the_pause_with_it_and_a_run_that_fails_leaves_it() -> Result<()> {
    let session = Session::new();
    let user = session.clone();
    let script = ScriptedModel::by("test", move |_| {
        user.pause();
        Reply::text("hello")
    });
    let agent = Agent::builder("tester", ChatModel::new(script)?).build()?;
    agent.ask("go").session(&session).await?;
    assert!(!is_paused(&session));
    agent.ask("go").session(&session).await?;

    let user = session.clone();
    let script = ScriptedModel::by("test", move |_| {
        user.pause();
        Reply::error(Error::new("no network"))
    });
    let agent = Agent::builder("tester", ChatModel::new(script)?).build()?;
    agent.ask("go").session(&session).await.expect_err("no network");
    assert!(is_paused(&session));
    let error = agent.resume(&session).await.expect_err("it is paused");
    assert_eq!(kind_of(&error), "agent.paused");
    Ok(())
}

#[tokio::test]
async fn a_run_with_an_answer_leaves_the_pause_to_another_run_of_the_session() -> Result<()> {
    let session = Session::new();
    let other = Agent::builder("other", ChatModel::new(ScriptedModel::new("other").text("yes"))?).build()?;
    let user = session.clone();
    let asks = tool_fn("asks", "Asks the other agent in the same session", move |_: Text, _: RunContext| {
        let (other, user) = (other.clone(), user.clone());
        async move {
            let pauses = user.clone();
            let run = other.ask("well?").session(&user).with(hooks_fn("pauses", move |hooks| {
                let pauses = pauses.clone();
                hooks.on_end(move |_, _| pauses.pause());
            }));
            Ok(run.await?.text())
        }
    });
    let script = ScriptedModel::new("test").call("asks", no_arguments());
    let error = agent(&script).tool(asks).build()?.ask("go").session(&session).await.expect_err("it is paused");
    assert_eq!((kind_of(&error), results(session.history().messages())), ("agent.paused", vec!["yes".to_owned()]));
    Ok(())
}

#[tokio::test]
async fn a_discarded_attempt_gives_the_pause_to_the_next_one() -> Result<()> {
    let session = Session::new();
    let script = ScriptedModel::new("test").call("pause", no_arguments()).text("bad").text("good");
    // The pause arrives with the answer that the output function refuses.
    let (user, is_sent) = (session.clone(), AtomicBool::new(false));
    let late = Arc::new(move || {
        if !is_sent.swap(true, Ordering::Relaxed) {
            user.pause();
        }
    });
    let late = hooks_fn("late", move |hooks| {
        let late = Arc::clone(&late);
        hooks.on_end(move |_, _| late());
    });
    let agent = agent(&script).tool(tool("pause", |_| ())).with(late).build()?;
    let run = agent.ask("go").session(&session).middleware(map_output(refuse_bad)).max_middleware_retries(1);
    let error = run.await.expect_err("it is paused");
    assert_eq!((kind_of(&error), texts(&session)), ("agent.paused", vec!["go".to_owned()]));
    assert!(!is_paused(&session));
    assert_eq!(agent.resume(&session).await?.text(), "good");
    Ok(())
}

#[tokio::test]
async fn a_run_that_is_paused_where_a_hook_asks_the_model_again_goes_on_with_the_model() -> Result<()> {
    let session = Session::new();
    let user = session.clone();
    let again = hooks_fn("again", move |hooks| {
        let user = user.clone();
        hooks.on_action(move |action, _| {
            if action.response.text() == "hm" {
                user.pause();
                action.decision = Some(TurnDecision::LoopToModel);
            }
        });
    });
    let script = ScriptedModel::new("test").text("hm").text("hello");
    let agent = agent(&script).with(again).build()?;
    let error = agent.ask("go").session(&session).await.expect_err("it is paused");
    assert_eq!(kind_of(&error), "agent.paused");
    let session = stored(&session);
    assert_eq!(agent.resume(&session).await?.text(), "hello");
    Ok(())
}

#[tokio::test]
async fn a_sub_agent_ends_its_run_before_the_pause_of_the_session_above() -> Result<()> {
    let session = Session::new();
    let inner = ScriptedModel::new("inner").call("pause", no_arguments()).text("found");
    let inner = Agent::builder("researcher", ChatModel::new(inner)?).tool(pausing(&session)).build()?;
    let script = ScriptedModel::new("outer").call("researcher", json!({"task": "find"})).text("thanks");
    let agent = agent(&script).tool(inner.as_tool("Researches")?).build()?;
    let error = agent.ask("go").session(&session).await.expect_err("it is paused");
    assert_eq!((kind_of(&error), results(session.history().messages())), ("agent.paused", vec!["found".to_owned()]));
    assert_eq!(agent.resume(&session).await?.text(), "thanks");
    Ok(())
}
