//! Messages, answers and aborts from other processes to a session that one process holds (F4, F5).

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use emitree_agent::{Agent, AgentRun, AnswerError, ChatModel, Reply, ScriptedModel, Session, Tool, tool_fn};
use emitree_middleware::approval::{Approval, Decision};
use emitree_middleware::store::{EntryHead, EntryStatus, MemoryStore, Store};
use emitree_runtime::{Answer, Error, Interrupt, Result, RunContext};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::process::{Kill, Process};
use crate::support::{Log, Text, results, texts};

const ID: &str = "order-17";

async fn head(store: &MemoryStore) -> Result<EntryHead> {
    Ok(store.load(ID).await?.ok_or_else(|| Error::new("no entry"))?.head)
}

/// Waits until something is so.
async fn until(mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    while !is_so().await? {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// A tool whose calls wait until they are let go.
fn waits(log: &Log, go: &Arc<Semaphore>) -> Result<Tool> {
    let (log, go) = (log.clone(), Arc::clone(go));
    let wait = tool_fn("wait", "Waits", move |args: Text, _: RunContext| {
        let (log, go) = (log.clone(), Arc::clone(&go));
        async move {
            log.add(&args.text);
            go.acquire().await.map_err(Error::from)?.forget();
            Ok(args.text)
        }
    });
    Ok(wait?)
}

/// An agent that waits once, and pays with an approval meanwhile if `pays`.
fn agent(log: &Log, go: &Arc<Semaphore>, pays: bool) -> Result<Agent> {
    let paid = log.clone();
    let pay = tool_fn("pay", "Pays", move |args: Text, _: RunContext| {
        let paid = paid.clone();
        async move {
            paid.add(format!("paid {}", args.text));
            Ok("paid")
        }
    })?
    .middleware(Approval::by_interrupt());
    let script = ScriptedModel::by("test", move |request| {
        let has_called = request.messages.iter().any(|message| message.tool_calls().next().is_some());
        let wait = ("wait", json!({"text": "waits"}));
        match (has_called, pays) {
            (true, _) => Reply::text("Done."),
            (false, true) => Reply::calls([("pay", json!({"text": "Ada"})), wait]),
            (false, false) => Reply::calls([wait]),
        }
    });
    Agent::builder("clerk", ChatModel::new(script)?).tool(pay).tool(waits(log, go)?).build()
}

/// F4
#[tokio::test(start_paused = true)]
async fn messages_from_other_processes_reach_the_run_under_way_in_their_order_and_once() -> Result<()> {
    let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(0)));
    let session = Session::open(&Process::of(&store), ID).await?;
    let agent = agent(&log, &go, false)?;
    let others = async {
        until(async || Ok(!log.lines().is_empty())).await?;
        let theirs = Session::open(&Process::of(&store), ID).await?;
        for text in ["one", "two", "three"] {
            theirs.steer(text)?;
            theirs.saved().await?;
            // A message that is sent again is the same one.
            theirs.saved().await?;
        }
        theirs.follow_up("four")?;
        theirs.saved().await?;
        until(async || Ok(head(&store).await?.posts == 0)).await?;
        assert_eq!(session.undelivered().len(), 4, "the run has them");
        go.add_permits(1);
        Ok::<_, Error>(theirs)
    };
    let (ended, theirs) = tokio::join!(agent.ask("Go.").session(&session).into_future(), others);
    assert_eq!(ended?.text(), "Done.");
    let expected = ["Go.", "", "", "one", "two", "three", "Done.", "four", "Done."];
    assert_eq!(texts(&session), expected);
    // The handle of the other process has them stored, and does not store them again.
    let theirs = theirs?;
    theirs.saved().await?;
    theirs.refresh().await?;
    assert_eq!((texts(&theirs), theirs.undelivered().len()), (texts(&session), 0));
    Ok(())
}

/// F4
#[tokio::test(start_paused = true)]
async fn a_message_to_a_session_that_another_process_has_just_claimed_reaches_its_run() -> Result<()> {
    let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(0)));
    let first = Agent::builder("clerk", ChatModel::new(ScriptedModel::new("test").text("Hello."))?).build()?;
    let session = Session::open(&Process::of(&store), ID).await?;
    first.ask("Hi.").session(&session).await?;
    // This process does not know yet that another one holds the session.
    let theirs = Session::open(&Process::of(&store), ID).await?;
    let agent = agent(&log, &go, false)?;
    let others = async {
        until(async || Ok(!log.lines().is_empty())).await?;
        theirs.steer("one")?;
        theirs.saved().await?;
        assert_eq!(session.undelivered().len(), 1, "the run has it");
        go.add_permits(1);
        Ok::<_, Error>(())
    };
    let (ended, others) = tokio::join!(agent.ask("Go.").session(&session).into_future(), others);
    others?;
    assert_eq!(ended?.text(), "Done.");
    assert_eq!(texts(&session), ["Hi.", "Hello.", "Go.", "", "", "one", "Done."]);
    Ok(())
}

/// F5
#[tokio::test(start_paused = true)]
async fn of_answers_from_several_processes_to_a_run_under_way_one_is_accepted_and_the_others_are_told_which()
-> Result<()> {
    for is_taken_between in [false, true] {
        let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(0)));
        let session = Session::open(&Process::of(&store), ID).await?;
        let agent = agent(&log, &go, true)?;
        let others = async {
            until(async || Ok(!log.lines().is_empty() && !session.questions().is_empty())).await?;
            let id = session.questions()[0].id.clone();
            let [second, third] = [Process::of(&store), Process::of(&store)];
            let (second, third) = (Session::open(&second, ID).await?, Session::open(&third, ID).await?);
            second.answer(&id, Answer::from(Decision::Approve).by("ada")).await?;
            if is_taken_between {
                until(async || Ok(head(&store).await?.posts == 0)).await?;
            }
            let late = Decision::Reject { reason: "no".to_owned() };
            for (session, by) in [(&third, "bob"), (&second, "cem"), (&session, "dee")] {
                let error = session.answer(&id, Answer::from(late.clone()).by(by)).await.expect_err("it has an answer");
                let AnswerError::Answered { first, .. } = &error else { panic!("{error}") };
                assert_eq!((first.by.as_deref(), first.at.is_some()), (Some("ada"), true), "{error}");
            }
            go.add_permits(1);
            Ok::<_, Error>(())
        };
        let (ended, others) = tokio::join!(agent.ask("Go.").session(&session).into_future(), others);
        others?;
        // The call was interrupted before its answer came.
        let ended = match ended {
            Err(error) if error.is_interrupted() => agent.resume(&session).await,
            ended => ended,
        };
        assert_eq!(ended?.text(), "Done.");
        assert_eq!(log.lines(), ["waits", "paid Ada"]);
    }
    Ok(())
}

/// F4
#[tokio::test(start_paused = true)]
async fn a_pause_from_another_process_ends_the_run_after_its_turn() -> Result<()> {
    let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(0)));
    let session = Session::open(&Process::of(&store), ID).await?;
    let agent = agent(&log, &go, false)?;
    let others = async {
        until(async || Ok(!log.lines().is_empty())).await?;
        let theirs = Session::open(&Process::of(&store), ID).await?;
        theirs.pause();
        theirs.saved().await?;
        until(async || Ok(head(&store).await?.posts == 0)).await?;
        go.add_permits(1);
        Ok::<_, Error>(())
    };
    let (ended, others) = tokio::join!(agent.ask("Go.").session(&session).into_future(), others);
    others?;
    let error = ended.expect_err("it is paused");
    assert_eq!(error.interrupt().map(|interrupt| &*interrupt.kind), Some("agent.paused"));
    assert_eq!(head(&store).await?.status, EntryStatus::Paused);
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    Ok(())
}

/// F4
#[tokio::test(start_paused = true)]
async fn an_abort_from_another_process_ends_the_run_with_its_reason_and_pauses_the_session() -> Result<()> {
    let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(0)));
    let session = Session::open(&Process::of(&store), ID).await?;
    let theirs = Session::open(&Process::of(&store), ID).await?;
    assert!(!theirs.abort("nothing is under way").await?);
    let agent = agent(&log, &go, false)?;
    let others = async {
        until(async || Ok(!log.lines().is_empty())).await?;
        assert!(theirs.abort("the order was cancelled").await?);
        Ok::<_, Error>(())
    };
    let (ended, others) = tokio::join!(agent.ask("Go.").session(&session).into_future(), others);
    others?;
    let error = ended.expect_err("it is aborted");
    assert!(error.is_aborted(), "{error}");
    assert_eq!(error.to_string(), "the order was cancelled");
    let stored = head(&store).await?;
    assert_eq!((stored.status, stored.posts, stored.holder), (EntryStatus::Paused, 0, None));
    assert!(!theirs.abort("again").await?, "nothing is under way");
    // Somebody wants it to go on.
    go.add_permits(1);
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    // An abort that comes too late changes nothing.
    assert!(!theirs.abort("too late").await?);
    theirs.set_meta("seen", true)?;
    theirs.saved().await?;
    assert_eq!(head(&store).await?.status, EntryStatus::Ended);
    Ok(())
}

/// F4
#[tokio::test(start_paused = true)]
async fn an_abort_that_waits_is_seen_by_the_next_claim_before_it_calls_anything() -> Result<()> {
    let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(0)));
    let killed = Process::of(&store);
    let session = Session::open(&killed, ID).await?;
    let agent = agent(&log, &go, false)?;
    let run = agent.ask("Go.").session(&session).into_future();
    let theirs = Session::open(&Process::of(&store), ID).await?;
    let others = async {
        until(async || Ok(!log.lines().is_empty())).await?;
        // It renews nothing, and takes nothing any more.
        killed.freeze(true);
        assert!(theirs.abort("the order was cancelled").await?);
        Ok::<_, Error>(())
    };
    tokio::select! {
        _ = run => panic!("it waits"),
        others = others => others?,
    }
    let next = Session::open(&Process::killed_at(&store, Kill::Never), ID).await?;
    let error = agent.resume(&next).await.expect_err("it is aborted");
    assert!(error.is_aborted() && error.to_string() == "the order was cancelled", "{error}");
    assert_eq!((head(&store).await?.status, log.lines().len()), (EntryStatus::Paused, 1));
    Ok(())
}

/// F4, F5
#[tokio::test(start_paused = true)]
async fn an_answer_whose_process_was_killed_behind_it_is_there_when_the_session_is_opened() -> Result<()> {
    let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(9)));
    let agent = agent(&log, &go, true)?;
    let session = Session::open(&Process::of(&store), ID).await?;
    agent.ask("Go.").session(&session).await.expect_err("a question");
    let id = session.questions()[0].id.clone();
    let killed = Process::killed_at(&store, Kill::After(0));
    let theirs = Session::open(&killed, ID).await?;
    tokio::select! {
        answered = theirs.answer(&id, Decision::Approve) => panic!("{answered:?}"),
        () = killed.killed() => {}
    }
    assert_eq!(head(&store).await?.posts, 1);
    let session = Session::open(&Process::of(&store), ID).await?;
    assert!(session.questions().is_empty());
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    assert_eq!(log.lines(), ["waits", "paid Ada"]);
    Ok(())
}

/// F5
#[tokio::test]
async fn an_answer_that_is_sent_after_a_deadline_was_met_is_refused() -> Result<()> {
    let (store, theirs, told) = (MemoryStore::new(), Arc::new(Mutex::new(None::<Session>)), Log::default());
    let paint = {
        let (theirs, told) = (Arc::clone(&theirs), told.clone());
        tool_fn("paint", "Paints", move |_: Text, ctx: RunContext| {
            let theirs = theirs.lock().take();
            let told = told.clone();
            async move {
                if let Some(theirs) = theirs {
                    let answered = theirs.answer(&theirs.questions()[0].id, json!("red")).await;
                    told.add(answered.expect_err("it has an answer").to_string());
                }
                let soon = Duration::from_millis(20);
                ctx.ask::<String>(Interrupt::new("colour", json!({})).with_deadline(soon, json!("grey")))
            }
        })?
    };
    let model = ScriptedModel::new("test").calls([("paint", json!({"text": "the wall"}))]).text("Done.");
    let agent = Agent::builder("painter", ChatModel::new(model)?).tool(paint.idempotent()).build()?;
    let session = Session::open(&Process::of(&store), ID).await?;
    assert!(agent.ask("Paint.").session(&session).await.expect_err("a question").is_interrupted());
    *theirs.lock() = Some(Session::open(&Process::of(&store), ID).await?);
    tokio::time::sleep(Duration::from_millis(50)).await;
    agent.resume(&session).await?;
    assert_eq!(results(session.history().messages()), ["grey"]);
    assert!(told.lines()[0].contains("was answered with \"grey\""), "{:?}", told.lines());
    Ok(())
}

/// F5
#[tokio::test]
async fn the_answer_of_a_deadline_counts_although_nobody_could_send_it() -> Result<()> {
    let deep = (0..100).fold(json!(1), |value, _| json!([value]));
    for answer in [json!("x".repeat(600_000)), deep, json!("none of the choices")] {
        let default = answer.clone();
        let paint = tool_fn("paint", "Paints", move |_: Text, ctx: RunContext| {
            let default = default.clone();
            async move {
                let question = Interrupt::new("colour", json!({"choices": ["red"]}));
                let asked = ctx.ask::<Value>(question.with_deadline(Duration::from_millis(20), default))?;
                Ok(asked.to_string().len())
            }
        })?;
        let model = ScriptedModel::new("test").calls([("paint", json!({"text": "the wall"}))]).text("Done.");
        let agent = Agent::builder("painter", ChatModel::new(model)?).tool(paint.idempotent()).build()?;
        let session = Session::open(&Process::of(&MemoryStore::new()), ID).await?;
        assert!(agent.ask("Paint.").session(&session).await.expect_err("a question").is_interrupted());
        tokio::time::sleep(Duration::from_millis(50)).await;
        agent.resume(&session).await?;
        assert_eq!(results(session.history().messages()), [answer.to_string().len().to_string()]);
    }
    Ok(())
}
