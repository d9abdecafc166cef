//! A running agent is paused (A15), and middlewares start with their session (A3).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_agent::{
    Agent, AgentContext, AgentRun, ChatModel, HooksFn, Reply, ScriptedModel, Session, Tool, TurnDecision, hooks_fn,
    tool_fn,
};
use emitree_runtime::{Error, Interrupt, Result, RunContext, Runnable, map_output, runnable_fn};
use serde_json::{Value, json};

use crate::journal::Journal;
use crate::support::{Log, Text, agent, assert_valid, refuse_bad, results, texts};

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

/// A middleware whose hook of `agent.start` logs how often its state was started, and may fail.
fn starting(id: &'static str, log: &Log, fails: impl Fn() -> Result<()> + Send + Sync + 'static) -> HooksFn {
    let (log, fails) = (log.clone(), Arc::new(fails));
    hooks_fn(id, move |hooks| {
        let (log, fails, count) = (log.clone(), Arc::clone(&fails), hooks.state::<u32>());
        hooks.on_start(move |ctx| {
            let count = count.with(ctx, |count| {
                *count += 1;
                *count
            })?;
            log.add(format!("{id} {count}, turn {}", ctx.turn().expect("an agent").number));
            fails()
        });
    })
}

#[tokio::test]
async fn a_middleware_starts_once_for_each_session_and_process_before_the_first_turn() -> Result<()> {
    let log = Log::default();
    let script = ScriptedModel::by("test", |_| Reply::text("hello"));
    let first = agent(&script).with(starting("first", &log, || Ok(()))).build()?;
    let both =
        agent(&script).with(starting("first", &log, || Ok(()))).with(starting("second", &log, || Ok(()))).build()?;
    let session = Session::new();
    first.ask("go").session(&session).await?;
    first.ask("go").session(&session).await?;
    assert_eq!(log.lines(), ["first 1, turn 0"]);
    both.ask("go").session(&session).await?;
    assert_eq!(log.lines()[1..], ["second 1, turn 0"]);
    let session = stored(&session);
    both.ask("go").session(&session).await?;
    assert_eq!(log.lines()[2..], ["first 2, turn 0", "second 2, turn 0"]);
    // Each run without a session has a new one.
    first.ask("go").await?;
    first.ask("go").await?;
    assert_eq!(log.lines()[4..], ["first 1, turn 0", "first 1, turn 0"]);
    Ok(())
}

#[tokio::test]
async fn a_hook_that_fails_to_start_is_logged_and_leaves_the_state_and_the_run_as_they_were() -> Result<()> {
    let log = Log::default();
    let broken = starting("broken", &log, || Err(Error::new("no disk")));
    let panics = starting("panics", &log, || panic!("no memory"));
    let agent = agent(&ScriptedModel::by("test", |_| Reply::text("hello")))
        .with(broken)
        .with(panics)
        .with(starting("well", &log, || Ok(())))
        .build()?;
    let session = Session::new();
    let journal = Journal::default();
    {
        let _subscribed = tracing::subscriber::set_default(journal.clone());
        agent.ask("go").session(&session).await?;
        agent.ask("go").session(&session).await?;
    }
    assert_eq!(log.lines(), ["broken 1, turn 0", "panics 1, turn 0", "well 1, turn 0"]);
    let states = ["broken", "panics", "well"].map(|id| session.state::<u32>(id).expect("a number"));
    assert_eq!(states, [None, None, Some(1)]);
    let warnings = journal.take().join("\n");
    assert!(warnings.contains("the middleware `broken` of the agent `tester` failed to start: no disk"), "{warnings}");
    assert!(warnings.contains("the middleware `panics` of the agent `tester` failed to start: panicked: no memory"));
    Ok(())
}

#[tokio::test]
async fn another_attempt_keeps_what_the_start_has_changed() -> Result<()> {
    let log = Log::default();
    let script = ScriptedModel::new("test").text("bad").text("good");
    let agent = agent(&script).with(starting("counts", &log, || Ok(()))).build()?;
    let session = Session::new();
    let run = agent.ask("go").session(&session).middleware(map_output(refuse_bad)).max_middleware_retries(1);
    assert_eq!(run.await?.text(), "good");
    assert_eq!((log.lines().len(), session.state::<u32>("counts")?), (1, Some(1)));
    Ok(())
}

#[tokio::test]
async fn a_start_that_was_dropped_is_made_again() -> Result<()> {
    let log = Log::default();
    let (to, waits) = (log.clone(), Arc::new(AtomicBool::new(true)));
    let slow = hooks_fn("slow", move |hooks| {
        let (to, waits, count) = (to.clone(), Arc::clone(&waits), hooks.state::<u32>());
        hooks.on_start_async(move |ctx| {
            let (to, waits, count) = (to.clone(), waits.swap(false, Ordering::SeqCst), count.clone());
            Box::pin(async move {
                count.with(ctx, |count| *count += 1)?;
                to.add("starts");
                if waits {
                    std::future::pending::<()>().await;
                }
                Ok(())
            })
        });
    });
    let agent = agent(&ScriptedModel::new("test").text("hello")).with(slow).build()?;
    let session = Session::new();
    assert!(futures_util::FutureExt::now_or_never(agent.ask("go").session(&session).into_future()).is_none());
    assert_eq!((log.lines().len(), session.state::<u32>("slow")?), (1, None));
    agent.resume(&session).await?;
    assert_eq!((log.lines().len(), session.state::<u32>("slow")?), (2, Some(1)));
    Ok(())
}

#[tokio::test]
async fn a_resumed_run_starts_before_it_makes_the_calls_that_were_left_open() -> Result<()> {
    let log = Log::default();
    let to = log.clone();
    let shout = || ("shout", json!({"text": "a"}));
    let script = ScriptedModel::new("test").calls([shout()]);
    let asks = hooks_fn("asks", |hooks| {
        hooks.on_gate_each(|_, _| Err::<(), _>(Error::interrupted(Interrupt::new("well", json!({})))));
    });
    let session = Session::new();
    agent(&script).with(asks).build()?.ask("go").session(&session).await.expect_err("interrupted");
    let session = stored(&session);
    let gate = hooks_fn("asks", move |hooks| {
        let to = to.clone();
        hooks.on_gate_each(move |gated, _| to.add(gated.call.name.clone()));
    });
    let script = ScriptedModel::new("test").text("hello");
    agent(&script).with(gate).with(starting("starts", &log, || Ok(()))).build()?.resume(&session).await?;
    assert_eq!(log.lines(), ["starts 1, turn 1", "shout"]);
    Ok(())
}

#[tokio::test]
async fn a_tool_and_a_gate_can_interject_in_a_session_that_nobody_else_has() -> Result<()> {
    let stop = tool("stop", |ctx| ctx.session().expect("an agent").interject("enough").expect("it is sent"));
    let script =
        ScriptedModel::new("test").calls(["a", "b"].map(|text| ("stop", json!({ "text": text })))).text("well");
    let answer = agent(&script).tool(stop.exclusive()).build()?.ask("go").await?;
    assert_eq!(results(&answer.messages), ["done", "!not executed: the user interjected"]);
    assert_eq!(answer.messages[4].text(), "enough");

    let gate = hooks_fn("gate", |hooks| {
        hooks.on_gate_async(|_, ctx| {
            let session = ctx.session().expect("an agent");
            tokio::spawn(async move { session.interject("enough") });
            Box::pin(std::future::pending())
        });
    });
    let script = ScriptedModel::new("test").call("shout", no_arguments()).text("well");
    let answer = agent(&script).with(gate).build()?.ask("go").await?;
    assert_eq!(results(&answer.messages), ["!not executed: the user interjected"]);
    Ok(())
}

#[tokio::test]
async fn a_tool_stores_and_steers_the_session_of_the_nearest_agent() -> Result<()> {
    let log = Log::default();
    let to = log.clone();
    let store = tool("store", move |ctx| {
        let session = ctx.session().expect("an agent");
        session.steer("in metres").expect("it is sent");
        to.add(session.id());
        to.add(stored(&session).history().messages()[2].tool_results().next().expect("a result").response.to_string());
    });
    let script = ScriptedModel::new("inner").call("store", no_arguments()).text("found");
    let inner = Agent::builder("researcher", ChatModel::new(script.clone())?).tool(store).build()?;
    let outer = ScriptedModel::new("outer").call("researcher", json!({"task": "find"})).text("thanks");
    let session = Session::with_id("order-17")?;
    agent(&outer).tool(inner.as_tool("Researches")?).build()?.ask("go").session(&session).await?;
    let lines = log.lines();
    assert!(lines[0].starts_with("order-17/1/0/researcher-") && lines[0].ends_with("/researcher"), "{lines:?}");
    assert_eq!(lines[1], "\"the run was stopped while the tool was running: it may have had effects\"");
    assert_eq!(script.requests()[1].messages.last().expect("a message").text(), "in metres");
    let plain = runnable_fn("plain", |(): (), ctx: RunContext| async move { Ok(ctx.session().is_none()) });
    assert!(plain.run(()).await?);
    Ok(())
}
