//! Runs that end without returning their answer, and sessions that a run has left (A12, A26, A27).

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use emitree_agent::kinds::Handoff;
use emitree_agent::{
    Agent, AgentBuilder, AgentOutput, AgentRun, ChatModel, Message, Reply, ScriptedModel, Session, tool_fn,
};
use emitree_middleware::approval::{Approval, Decision};
use emitree_middleware::store::{EntryStatus, Filter, MemoryStore, Store};
use emitree_runtime::{AbortHandle, Result, RunContext, map_output, map_output_async, wait_for_ends};
use serde_json::json;

use super::process::{Kill, Process};
use crate::support::{Text, texts};

const ID: &str = "order-17";

fn agent(name: &str, script: ScriptedModel) -> Result<AgentBuilder> {
    Ok(Agent::builder(name, ChatModel::new(script)?))
}

async fn status(store: &MemoryStore) -> Result<EntryStatus> {
    Ok(store.load(ID).await?.expect("an entry").head.status)
}

async fn unfinished(store: &MemoryStore) -> Result<usize> {
    Ok(store.list(&Filter::unfinished()).await?.len())
}

/// Lets the other futures go on until they wait for ever.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// How a run is ended from outside.
#[derive(Clone, Copy, Debug)]
enum End {
    Aborted,
    Dropped,
    TimedOut,
}

const ENDS: [End; 3] = [End::Aborted, End::Dropped, End::TimedOut];

/// Ends a run once it does not go on by itself, and calls a function before its last listeners.
async fn end(end: End, agent: &Agent, session: &Session, then: impl Fn()) {
    let run = agent.ask("Go.").session(session);
    match end {
        End::Aborted => {
            let handle = AbortHandle::new();
            let aborts = async {
                settle().await;
                handle.abort("enough");
                then();
            };
            tokio::join!(aborts, run.abort_on(&handle)).1.expect_err("it is aborted");
        }
        End::Dropped => {
            tokio::select! { _ = run => unreachable!(), () = settle() => {} }
            then();
        }
        End::TimedOut => {
            let thaws = async {
                settle().await;
                settle().await;
                then();
            };
            let run = run.timeout(Duration::from_millis(50));
            tokio::join!(run.into_future(), thaws).0.expect_err("it takes too long");
        }
    }
    wait_for_ends(Duration::from_secs(5)).await;
}

// A12, A26
#[tokio::test(start_paused = true)]
async fn a_run_that_ends_while_its_answer_is_stored_has_returned_it_or_a_resume_returns_it() -> Result<()> {
    for how in ENDS {
        let store = MemoryStore::new();
        let process = Process::of(&store);
        let session = Session::open(&process, ID).await?;
        let freezes = process.clone();
        let freeze = map_output(move |_: &mut AgentOutput, _: &RunContext| {
            freezes.freeze(true);
            Ok(())
        });
        let ending = agent("tester", ScriptedModel::new("test").text("Done."))?.middleware(freeze).build()?;
        end(how, &ending, &session, || process.freeze(false)).await;

        let other = agent("tester", ScriptedModel::new("test"))?.build()?;
        let reread = Session::open(&Process::killed_at(&store, Kill::Never), ID).await?;
        for session in [reread, session] {
            session.refresh().await?;
            if status(&store).await? != EntryStatus::Ended {
                // As any run that takes too long, it has failed.
                let has_failed = matches!(how, End::TimedOut);
                assert_eq!(unfinished(&store).await?, usize::from(!has_failed), "{how:?}");
                assert_eq!(texts(&session), ["Go."], "{how:?}");
                assert_eq!(other.resume(&session).await?.text(), "Done.", "{how:?}");
            }
            assert_eq!(texts(&session), ["Go.", "Done."], "{how:?}");
            assert_eq!(unfinished(&store).await?, 0, "{how:?}");
        }
    }
    Ok(())
}

/// An output function that waits for ever, until it is told to go on.
fn waits(goes_on: &Arc<AtomicBool>) -> emitree_runtime::MapValue<AgentOutput> {
    let goes_on = Arc::clone(goes_on);
    map_output_async(move |output: &mut AgentOutput, _: &RunContext| {
        let goes_on = goes_on.load(Ordering::SeqCst);
        Box::pin(async move {
            if !goes_on {
                pending::<()>().await;
            }
            output.answer = Message::assistant(output.text() + "!");
            Ok(())
        })
    })
}

// A12, A26
#[tokio::test(start_paused = true)]
async fn the_answer_of_an_agent_inside_whose_output_function_was_at_work_is_returned_by_a_resume() -> Result<()> {
    for (how, hands_off) in ENDS.into_iter().flat_map(|how| [(how, false), (how, true)]) {
        for session in [Session::new(), Session::open(&MemoryStore::new(), ID).await?] {
            let goes_on = Arc::new(AtomicBool::new(false));
            let inner = ScriptedModel::new("inner").text("Paid");
            let inner = agent("payer", inner)?.middleware(waits(&goes_on)).build()?;
            let script = ScriptedModel::new("outer");
            let outer = if hands_off {
                let script = script.call("transfer_to_payer", json!({"reason": "a bill"}));
                agent("outer", script)?.handoff(Handoff::to(&inner, "Pays")).build()?
            } else {
                let script = script.call("payer", json!({"task": "Pay."})).text("Done.");
                agent("outer", script)?.tool(inner.as_tool("Pays")?).build()?
            };
            end(how, &outer, &session, || ()).await;
            let is_said = |said: &str| serde_json::to_string(&session.history()).expect("JSON").contains(said);
            assert!(!is_said("not returned"), "{how:?}");

            goes_on.store(true, Ordering::SeqCst);
            let answer = outer.resume(&session).await?.text();
            assert_eq!(answer, if hands_off { "Paid!" } else { "Done." }, "{how:?}");
            assert!(is_said("Paid!") && !is_said("not returned"), "{how:?}: {:?}", texts(&session));
        }
    }
    Ok(())
}

// A26
#[tokio::test]
async fn an_answer_whose_commit_has_failed_is_returned_by_a_resume() -> Result<()> {
    let store = MemoryStore::new();
    let process = Process::of(&store);
    let session = Session::open(&process, ID).await?;
    let fails = process.clone();
    let full = map_output(move |_: &mut AgentOutput, _: &RunContext| {
        fails.fail_from(fails.appends());
        Ok(())
    });
    let ending = agent("tester", ScriptedModel::new("test").text("Done."))?.middleware(full).build()?;
    let error = ending.ask("Go.").session(&session).await.expect_err("the disk is full");
    assert!(error.to_string().contains("cannot be written"), "{error}");
    process.fail_from(usize::MAX);

    let other = agent("tester", ScriptedModel::new("test"))?.build()?;
    assert_eq!(other.resume(&session).await?.text(), "Done.");
    assert_eq!(texts(&session), ["Go.", "Done."]);
    assert_eq!(status(&store).await?, EntryStatus::Ended);
    Ok(())
}

// A27
#[tokio::test]
async fn a_resume_with_nothing_to_do_changes_nothing() -> Result<()> {
    let store = MemoryStore::new();
    let session = Session::open(&store, ID).await?;
    let tester = agent("tester", ScriptedModel::new("test").text("Done.").text("More."))?.build()?;
    let error = tester.resume(&session).await.expect_err("nothing to do").to_string();
    assert!(error.contains("it has no messages"), "{error}");
    assert_eq!(unfinished(&store).await?, 0, "it has not begun");

    tester.ask("Go.").session(&session).await?;
    let before = store.load(ID).await?.expect("an entry");
    for session in [Session::open(&Process::killed_at(&store, Kill::Never), ID).await?, session.clone()] {
        let error = tester.resume(&session).await.expect_err("nothing to do").to_string();
        assert!(error.contains("nothing to resume"), "{error}");
        let after = store.load(ID).await?.expect("an entry");
        assert_eq!(
            (after.head.status, after.head.holder, after.parts),
            (EntryStatus::Ended, None, before.parts.clone())
        );
        assert_eq!(texts(&session), ["Go.", "Done."]);
    }
    Ok(())
}

// A27
#[tokio::test]
async fn a_message_that_comes_when_a_run_is_over_is_listed() -> Result<()> {
    let says = |script: ScriptedModel| agent("tester", script)?.build();
    // An answer has been given, and the program adds a message.
    let store = MemoryStore::new();
    let session = Session::open(&store, ID).await?;
    says(ScriptedModel::new("test").text("Done."))?.ask("Go.").session(&session).await?;
    session.extend([Message::user("And?"), Message::assistant("Nothing.")])?;
    session.saved().await?;
    assert_eq!(status(&store).await?, EntryStatus::Ended, "there is nothing to answer");
    session.extend([Message::user("More.")])?;
    session.saved().await?;
    assert_eq!((status(&store).await?, unfinished(&store).await?), (EntryStatus::Paused, 1));
    says(ScriptedModel::new("test").text("More done."))?.resume(&session).await?;
    assert_eq!((status(&store).await?, unfinished(&store).await?), (EntryStatus::Ended, 0));

    // A run has failed, which another one does not repeat by itself, and then a message comes.
    let store = MemoryStore::new();
    let session = Session::open(&store, ID).await?;
    let fails = || ScriptedModel::new("test").error(emitree_runtime::Error::new("no network"));
    says(fails())?.ask("Go.").session(&session).await.expect_err("it fails");
    assert_eq!((status(&store).await?, unfinished(&store).await?), (EntryStatus::Failed, 0));
    session.steer("Try again.")?;
    session.saved().await?;
    assert_eq!((status(&store).await?, unfinished(&store).await?), (EntryStatus::Paused, 1));
    // It is read again by another process, and fails again.
    let session = Session::open(&Process::of(&store), ID).await?;
    says(fails())?.resume(&session).await.expect_err("it fails");
    assert_eq!((status(&store).await?, unfinished(&store).await?), (EntryStatus::Failed, 0));
    Ok(())
}

/// A24
#[tokio::test]
async fn many_questions_and_long_ids_fit_into_the_head_and_too_much_meta_is_refused() -> Result<()> {
    const CALLS: usize = 250;
    let (store, id) = (MemoryStore::new(), "i".repeat(200));
    let session = Session::open(&store, &id).await?;
    let pay =
        tool_fn("pay", "Pays", |_: Text, _: RunContext| async { Ok("paid") })?.middleware(Approval::by_interrupt());
    let calls: Vec<_> = (0..CALLS).map(|n| ("pay", json!({"text": n.to_string()}))).collect();
    let script = ScriptedModel::by("test", move |request| {
        if request.messages.len() == 1 { Reply::calls(calls.clone()) } else { Reply::text("Done.") }
    });
    let payer = agent("payer", script)?.tool(pay).build()?;
    assert!(payer.ask("Pay.").session(&session).await.expect_err("questions").is_interrupted());
    let head = store.list(&Filter::waiting()).await?.remove(0);
    assert_eq!((head.questions.len(), head.more_questions, session.questions().len()), (50, 200, CALLS));

    let error = session.set_meta("notes", "n".repeat(100_000)).expect_err("too long").to_string();
    assert!(error.starts_with("`notes` is not set: the values of the session would have 100012 bytes"), "{error}");
    session.set_meta("notes", "n".repeat(16_000))?;
    session.set_meta("more", "n".repeat(500)).expect_err("too long");
    assert_eq!(session.meta().len(), 1);
    session.saved().await?;

    // Another process answers one that is not listed.
    let session = Session::open(&Process::of(&store), &id).await?;
    session.answer(&session.questions()[CALLS - 1].id, Decision::Approve).await?;
    assert_eq!(store.list(&Filter::waiting()).await?.remove(0).more_questions, 199);
    Ok(())
}

// A15, A27
#[tokio::test]
async fn an_input_that_was_stored_without_a_reply_and_taken_by_another_process_is_taken_once() -> Result<()> {
    let store = MemoryStore::new();
    let first = Process::of(&store);
    let session = Session::open(&first, ID).await?;
    let script = ["One.", "Two.", "Three.", "Four."].into_iter().fold(ScriptedModel::new("test"), ScriptedModel::text);
    let tester = agent("tester", script)?.build()?;
    tester.ask("Go.").session(&session).await?;

    first.lose_replies(true);
    session.steer("Once.")?;
    session.send("nobody", json!("a value"))?;
    session.pause();
    session.saved().await.expect_err("no reply");
    let other = Session::open(&Process::of(&store), ID).await?;
    let error = tester.resume(&other).await.expect_err("it is paused");
    assert_eq!(error.interrupt().map(|pause| pause.kind.as_str()), Some("agent.paused"));
    assert_eq!(tester.resume(&other).await?.text(), "Two.");
    let said = ["Go.", "One.", "Once.", "Two."];
    assert_eq!((texts(&other), other.undelivered_to("nobody").len()), (said.map(str::to_owned).to_vec(), 0));

    // The first process reads the session again. What was not stored stays.
    session.steer("Later.")?;
    first.lose_replies(false);
    session.saved().await?;
    assert_eq!(texts(&session), said);
    assert_eq!((session.undelivered().len(), session.undelivered_to("nobody").len()), (1, 0));
    assert_eq!(tester.resume(&session).await?.text(), "Three.");
    assert_eq!(texts(&session)[4..], ["Later.", "Three."]);
    let reread = Session::open(&Process::of(&store), ID).await?;
    assert_eq!(serde_json::to_value(&reread)?, serde_json::to_value(&session)?);
    Ok(())
}
