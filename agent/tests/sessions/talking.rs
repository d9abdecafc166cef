//! A running agent is paused, and middlewares receive the start of their session and values (A3, A15).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_agent::steering::MessageDropped;
use emitree_agent::{
    Agent, AgentContext, AgentRun, ChatModel, HooksFn, Reply, ScriptedModel, Session, Tool, TurnDecision, hooks_fn,
    tool_fn,
};
use emitree_runtime::{Error, Interrupt, Result, RunContext, Runnable, map_output, runnable_fn};
use serde::Deserialize;
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
    serde_json::to_value(session).expect("JSON")["paused"].is_string()
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

/// An agent whose tool pauses a session.
fn researcher(session: &Session, script: &ScriptedModel) -> Result<Agent> {
    Agent::builder("researcher", ChatModel::new(script.clone())?).tool(pausing(session)).build()
}

#[tokio::test]
async fn a_sub_agent_is_paused_with_the_session_above_and_goes_on_inside() -> Result<()> {
    let session = Session::new();
    let inner = ScriptedModel::new("inner").call("pause", no_arguments()).text("found");
    let middle = ScriptedModel::new("middle").call("researcher", json!({"task": "find"})).text("read");
    let outer = ScriptedModel::new("outer")
        .calls([("reader", json!({"task": "read"})), ("shout", json!({"text": "a"}))])
        .text("thanks");
    let build = |session: &Session| {
        let researcher = researcher(session, &inner)?.as_tool("Researches")?;
        let reader = Agent::builder("reader", ChatModel::new(middle.clone())?).tool(researcher).build()?;
        agent(&outer).tool(reader.as_tool("Reads")?).build()
    };
    let error = build(&session)?.ask("go").session(&session).await.expect_err("it is paused");
    assert_eq!((kind_of(&error), session.questions().len()), ("agent.paused", 0));
    assert_eq!([&inner, &middle, &outer].map(|script| script.requests().len()), [1, 1, 1]);
    assert_eq!(results(session.history().messages())[1], "A");
    assert!(!is_paused(&session));
    let session = stored(&session);
    assert_eq!(build(&session)?.resume(&session).await?.text(), "thanks");
    assert_eq!([&inner, &middle, &outer].map(|script| script.requests().len()), [2, 2, 2]);
    assert_eq!(results(session.history().messages()), ["read", "A"]);
    Ok(())
}

#[tokio::test]
async fn a_sub_agent_in_a_tool_that_is_not_idempotent_ends_its_run_before_the_pause() -> Result<()> {
    let session = Session::new();
    let inner = ScriptedModel::new("inner").call("pause", no_arguments()).text("found");
    let inner = researcher(&session, &inner)?;
    let asks = tool_fn("asks", "Asks", move |_: Text, _: RunContext| {
        let inner = inner.clone();
        async move { Ok(inner.ask("find").await?.text()) }
    });
    let script = ScriptedModel::new("outer").call("asks", no_arguments()).text("thanks");
    let agent = agent(&script).tool(asks).build()?;
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

#[derive(Deserialize)]
struct Opened {
    page: u32,
}

/// A middleware that keeps the pages that it is told, and logs them. It fails for page 0, after it has kept the page.
fn editor(id: &'static str, log: &Log) -> HooksFn {
    let log = log.clone();
    hooks_fn(id, move |hooks| {
        let (log, pages) = (log.clone(), hooks.state::<Vec<u32>>());
        hooks.on_message(move |Opened { page }, ctx| {
            log.add(format!("{id} {page}"));
            pages.with(ctx, |pages| pages.push(page))?;
            if page == 0 { Err(Error::new("there is no page 0")) } else { Ok(()) }
        });
    })
}

fn page(number: u32) -> Value {
    json!({ "page": number })
}

fn pages(session: &Session, id: &str) -> Vec<u32> {
    session.state(id).expect("pages").unwrap_or_default()
}

#[tokio::test]
async fn a_value_arrives_at_its_middleware_before_the_next_model_call_and_before_steering() -> Result<()> {
    let log = Log::default();
    let (to, session) = (log.clone(), Session::new());
    let user = session.clone();
    let sends = tool("sends", move |_| {
        user.steer("and?").expect("it is sent");
        user.send("editor", page(2)).expect("it is sent");
        user.send("other", page(3)).expect("it is sent");
        user.send("editor", page(4)).expect("it is sent");
    });
    let inject = hooks_fn("inject", move |hooks| {
        let to = to.clone();
        hooks.on_inject(move |messages, _| to.add(messages[0].text()));
    });
    let script = ScriptedModel::new("test").call("sends", no_arguments()).text("well");
    let agent =
        agent(&script).tool(sends).with(inject).with(editor("editor", &log)).with(editor("other", &log)).build()?;
    session.send("editor", page(1))?;
    agent.ask("go").session(&session).await?;
    assert_eq!(log.lines(), ["editor 1", "editor 2", "other 3", "editor 4", "and?"]);
    assert_eq!(script.requests().len(), 2);
    assert_eq!((pages(&session, "editor"), pages(&session, "other")), (vec![1, 2, 4], vec![3]));
    Ok(())
}

#[tokio::test]
async fn a_value_waits_in_the_stored_session_and_starts_no_round() -> Result<()> {
    let log = Log::default();
    let session = Session::new();
    let user = session.clone();
    let late = hooks_fn("late", move |hooks| {
        let user = user.clone();
        hooks.on_end(move |_, _| user.send("editor", page(7)).expect("it is sent"));
    });
    let script = ScriptedModel::by("test", |_| Reply::text("hello"));
    let agent = agent(&script).with(editor("editor", &log)).build()?;
    agent.ask("go").session(&session).with(late).await?;
    session.steer("and?")?;
    session.send("editor", page(8))?;
    let session = stored(&session);
    assert_eq!(session.undelivered_to("editor"), [page(7), page(8)]);
    assert!(session.undelivered_to("other").is_empty());
    assert_eq!((session.undelivered().len(), log.lines().len()), (1, 0));
    let json = serde_json::to_value(&session)?;
    let id = &json["inbox"][0]["id"];
    let sent = json!({"value": {"to": "editor", "value": {"page": 7}}});
    assert_eq!(json["inbox"][0], json!({"number": 0, "id": id, "sent": sent}));
    agent.ask("go").session(&session).await?;
    assert_eq!((pages(&session, "editor"), session.undelivered_to("editor")), (vec![7, 8], Vec::new()));
    assert_eq!(script.requests().len(), 2);
    // A value alone gives a run nothing to do.
    session.send("editor", page(9))?;
    let error = agent.resume(&session).await.expect_err("nothing to do").to_string();
    assert_eq!(error, "there is nothing to resume: the conversation of the session ends with an answer");
    Ok(())
}

#[tokio::test]
async fn a_failing_hook_a_wrong_type_and_an_unknown_id_drop_the_value_and_leave_the_state() -> Result<()> {
    let log = Log::default();
    let session = Session::new();
    session.send("editor", page(1))?;
    session.send("editor", page(0))?;
    session.send("editor", json!({"page": "one"}))?;
    session.send("editro", page(2))?;
    session.send("editor", page(3))?;
    let agent = agent(&ScriptedModel::new("test").text("hello")).with(editor("editor", &log)).build()?;
    let (events, journal) = (Log::default(), Journal::default());
    let to = events.clone();
    let _subscribed = tracing::subscriber::set_default(journal.clone());
    let run = agent.ask("go").session(&session).on("message_dropped", move |dropped: &mut MessageDropped, _| {
        to.add(format!("{}: {}", dropped.to, dropped.error));
    });
    assert_eq!(run.await?.text(), "hello");
    assert_eq!(log.lines(), ["editor 1", "editor 0", "editor 3"]);
    assert_eq!(pages(&session, "editor"), [1, 3]);
    let [failed, wrong, unknown] = events.lines().try_into().expect("three events");
    assert!(failed.starts_with("editor: there is no page 0"), "{failed}");
    let invalid = "Opened`: page: invalid type: string \"one\", expected u32";
    assert!(wrong.starts_with("editor: the message is no `") && wrong.contains(invalid), "{wrong}");
    assert_eq!(unknown, "editro: no middleware `editro` of the agent `tester` receives messages: only `editor`");
    let warnings = journal.take();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings[2].starts_with("a message to the middleware `editro` was dropped: "), "{warnings:?}");
    assert!(session.undelivered_to("editor").is_empty() && session.undelivered_to("editro").is_empty());
    Ok(())
}

#[tokio::test]
async fn a_discarded_attempt_gives_its_values_to_the_next_one() -> Result<()> {
    let log = Log::default();
    let session = Session::new();
    session.send("editor", page(1))?;
    session.send("editor", page(2))?;
    let script = ScriptedModel::new("test").text("bad").text("good");
    let agent = agent(&script).with(editor("editor", &log)).build()?;
    let run = agent.ask("go").session(&session).middleware(map_output(refuse_bad)).max_middleware_retries(1);
    assert_eq!(run.await?.text(), "good");
    assert_eq!(log.lines(), ["editor 1", "editor 2", "editor 1", "editor 2"]);
    assert_eq!(pages(&session, "editor"), [1, 2]);
    Ok(())
}

#[tokio::test]
async fn a_run_that_is_dropped_while_a_hook_has_a_value_leaves_the_value_and_the_state() -> Result<()> {
    let (log, waits) = (Log::default(), Arc::new(AtomicBool::new(true)));
    let to = log.clone();
    let slow = hooks_fn("slow", move |hooks| {
        let (to, waits, count) = (to.clone(), Arc::clone(&waits), hooks.state::<u32>());
        hooks.on_message_async(move |text: String, ctx| {
            let (to, count) = (to.clone(), count.clone());
            let waits = text == "b" && waits.swap(false, Ordering::SeqCst);
            Box::pin(async move {
                count.with(ctx, |count| *count += 1)?;
                to.add(text);
                if waits {
                    std::future::pending::<()>().await;
                }
                Ok(())
            })
        });
    });
    let agent = agent(&ScriptedModel::new("test").text("hello")).with(slow).build()?;
    let session = Session::new();
    session.send("slow", "a")?;
    session.send("slow", "b")?;
    assert!(futures_util::FutureExt::now_or_never(agent.ask("go").session(&session).into_future()).is_none());
    assert_eq!((session.undelivered_to("slow"), session.state::<u32>("slow")?), (vec![json!("b")], Some(1)));
    agent.resume(&session).await?;
    assert_eq!((log.lines().join(" "), session.state::<u32>("slow")?), ("a b b".to_owned(), Some(2)));
    Ok(())
}

#[tokio::test]
async fn a_task_of_a_middleware_sends_to_the_middleware_while_no_run_is_under_way() -> Result<()> {
    let log = Log::default();
    let to = log.clone();
    let (done, is_done) = tokio::sync::oneshot::channel::<()>();
    let done = Arc::new(std::sync::Mutex::new(Some(done)));
    let watcher = hooks_fn("watcher", move |hooks| {
        let done = Arc::clone(&done);
        hooks.on_start(move |ctx| {
            let (session, done) = (ctx.session().expect("an agent"), done.lock().expect("no panic").take());
            tokio::spawn(async move {
                session.send("watcher", "the file has changed").expect("it is sent");
                done.map(|done| done.send(()))
            });
        });
        let to = to.clone();
        hooks.on_message(move |text: String, _| to.add(text));
    });
    let agent = agent(&ScriptedModel::by("test", |_| Reply::text("hello"))).with(watcher).build()?;
    let session = Session::new();
    agent.ask("go").session(&session).await?;
    is_done.await.expect("it is sent");
    assert_eq!((session.undelivered_to("watcher").len(), log.lines().len()), (1, 0));
    agent.ask("go").session(&session).await?;
    assert_eq!(log.lines(), ["the file has changed"]);
    Ok(())
}

#[test]
fn a_thousand_messages_wait_in_all_and_the_next_value_comes_back() {
    let session = Session::new();
    for number in 0..500 {
        session.steer("a").expect("there is room");
        session.send("editor", number).expect("there is room");
    }
    let error = session.send("editor", json!({"page": 7})).expect_err("it is full");
    assert_eq!(error.to_string(), "the message was not sent: 1000 messages wait in the session, which is the limit");
    assert_eq!(error.into_message(), page(7));
    assert_eq!(session.steer("b").expect_err("it is full").into_message().text(), "b");
    assert_eq!(session.undelivered_to("editor").len(), 500);
}
