//! Several processes, and several handles of one session (A24, A26, A27).

use std::sync::Arc;

use emitree_agent::{
    Agent, AgentRun, AnswerError, ChatModel, History, Hooks, Message, ScriptedModel, Session, hooks_fn, tool_fn,
};
use emitree_middleware::approval::{Approval, Decision};
use emitree_middleware::store::{Append, EntryHead, EntryStatus, Filter, MemoryStore, Store, StoreError};
use emitree_runtime::{Error, Result, RunContext, map_input_async};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::process::{Kill, Process};
use crate::support::{Log, Text, results, texts};

const ID: &str = "order-17";

/// An agent that pays two people, each with an approval.
pub(super) fn payer(log: &Log) -> Result<Agent> {
    let log = log.clone();
    let pay = tool_fn("pay", "Pays", move |args: Text, _: RunContext| {
        let log = log.clone();
        async move {
            log.add(&args.text);
            Ok(format!("paid {}", args.text))
        }
    })?
    .middleware(Approval::by_interrupt());
    let calls = [("pay", json!({"text": "Ada"})), ("pay", json!({"text": "Bob"}))];
    let script = ScriptedModel::by("test", move |request| {
        if request.messages.len() == 1 {
            emitree_agent::Reply::calls(calls.clone())
        } else {
            emitree_agent::Reply::text("Done.")
        }
    });
    Agent::builder("payer", ChatModel::new(script)?).tool(pay).build()
}

/// A24, A27
#[tokio::test]
async fn a_run_its_answers_and_its_resume_follow_each_other_in_three_processes_without_waiting() -> Result<()> {
    let (store, log) = (MemoryStore::new(), Log::default());
    let session = Session::open(&Process::of(&store), ID).await?;
    let error = payer(&log)?.ask("Pay.").session(&session).await.expect_err("two questions");
    assert!(error.is_interrupted());

    let other = Process::of(&store);
    let waiting = other.list(&Filter::waiting().limit(50)).await?;
    assert_eq!((waiting.len(), waiting[0].id.as_str(), waiting[0].questions.len()), (1, ID, 2));
    let session = Session::open(&other, ID).await?;
    for (question, answer) in
        waiting[0].questions.iter().zip([Decision::Approve, Decision::Reject { reason: String::new() }])
    {
        session.answer(&question.id, answer).await?;
    }
    let head = store.load(ID).await?.expect("an entry").head;
    assert_eq!((head.status, head.holder, head.questions.len()), (EntryStatus::Running, None, 0));

    let session = Session::open(&Process::of(&store), ID).await?;
    assert_eq!(payer(&log)?.resume(&session).await?.text(), "Done.");
    assert_eq!(log.lines(), ["Ada"]);
    assert!(store.list(&Filter::unfinished()).await?.is_empty());
    Ok(())
}

/// A24
#[tokio::test]
async fn a_handle_reads_the_session_again_before_it_changes_it_if_another_process_has_changed_it() -> Result<()> {
    let (store, log) = (MemoryStore::new(), Log::default());
    // Opened before there is anything.
    let [early, late, other] = [Process::of(&store), Process::of(&store), Process::of(&store)];
    let (early, late) = (Session::open(&early, ID).await?, Session::open(&late, ID).await?);
    let session = Session::open(&other, ID).await?;
    payer(&log)?.ask("Pay.").session(&session).await.expect_err("two questions");
    let ids: Vec<_> = session.questions().into_iter().map(|question| question.id).collect();

    early.answer(&ids[0], Decision::Approve).await?;
    // The first process has not seen the answer.
    let error =
        session.answer(&ids[0], Decision::Reject { reason: String::new() }).await.expect_err("it has an answer");
    assert!(matches!(error, AnswerError::Answered { .. }), "{error}");
    session.answer(&ids[1], Decision::Approve).await?;
    assert_eq!(payer(&log)?.resume(&late).await?.text(), "Done.");
    assert_eq!(log.lines(), ["Ada", "Bob"]);
    session.refresh().await?;
    assert_eq!(texts(&session), texts(&late));
    Ok(())
}

/// A27
#[tokio::test]
async fn what_a_stale_handle_has_changed_stays_when_the_session_is_read_again() -> Result<()> {
    let store = MemoryStore::new();
    let [late, other] = [Process::of(&store), Process::of(&store)];
    let (late, other) = (Session::open(&late, ID).await?, Session::open(&other, ID).await?);
    let script = ScriptedModel::new("test").text("First.").text("Second.");
    let agent = Agent::builder("speaker", ChatModel::new(script)?).build()?;
    other.set_meta("theirs", 1)?;
    agent.ask("Go.").session(&other).await?;

    late.steer("Slowly.")?;
    late.pause();
    late.set_meta("ours", 2)?;
    late.saved().await?;
    for session in [&late, &Session::open(&Process::of(&store), ID).await?] {
        let waiting: Vec<_> = session.undelivered().iter().map(|message| message.text()).collect();
        assert_eq!((waiting.as_slice(), texts(session)), (&["Slowly.".to_owned()][..], texts(&other)));
        assert_eq!(json!(session.meta()), json!({"ours": 2, "theirs": 1}));
        assert!(serde_json::to_value(session)?["paused"].is_string());
    }

    // A message that was stored is not brought back once another process has used it.
    other.refresh().await?;
    assert!(agent.resume(&other).await.expect_err("it is paused").is_interrupted());
    assert_eq!(agent.resume(&other).await?.text(), "Second.");
    late.set_meta("ours", 3)?;
    late.saved().await?;
    assert_eq!((late.undelivered().len(), texts(&late)), (0, texts(&other)));
    assert_eq!(serde_json::to_value(&late)?["paused"], Value::Null);
    Ok(())
}

/// An agent whose tool waits until it is let go.
fn waiting(log: &Log, go: &Arc<Semaphore>) -> Result<Agent> {
    let (log, go) = (log.clone(), Arc::clone(go));
    let wait = tool_fn("wait", "Waits", move |args: Text, _: RunContext| {
        let (log, go) = (log.clone(), Arc::clone(&go));
        async move {
            log.add(&args.text);
            go.acquire().await.map_err(Error::from)?.forget();
            Ok(args.text)
        }
    })?;
    let script = ScriptedModel::by("test", |request| {
        let says = |text: &str| emitree_agent::Reply::calls([("wait", json!({ "text": text }))]);
        match request.messages.iter().filter(|message| message.tool_results().next().is_some()).count() {
            0 => says("first"),
            1 => says("second"),
            _ => emitree_agent::Reply::text("Done."),
        }
    });
    Agent::builder("waiter", ChatModel::new(script)?).tool(wait).build()
}

fn is_held(error: &StoreError, by: &Process) -> bool {
    _ = by;
    matches!(error, StoreError::Held { id, .. } if id == ID)
}

/// A24, A27
#[tokio::test]
async fn while_a_run_is_under_way_other_processes_are_told_who_holds_the_session_and_messages_wait() -> Result<()> {
    let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(0)));
    let [process, other] = [Process::of(&store), Process::of(&store)];
    let session = Session::open(&process, ID).await?;
    let agent = waiting(&log, &go)?;
    let run = agent.ask("Go.").session(&session);
    let meanwhile = async {
        while log.lines().is_empty() {
            tokio::task::yield_now().await;
        }
        let theirs = Session::open(&other, ID).await?;
        let error = agent.resume(&theirs).await.expect_err("the session is held");
        assert!(error.find::<StoreError>().is_some_and(|error| is_held(error, &other)), "{error}");
        theirs.set_meta("speed", "high")?;
        theirs.steer("Hurry.").expect("a message");
        // The message is in the store, and the value waits here.
        assert!(is_held(&theirs.saved().await.expect_err("the session is held"), &other));
        assert_eq!(theirs.undelivered().len(), 1);
        while store.load(ID).await?.expect("an entry").head.posts > 0 {
            tokio::task::yield_now().await;
        }

        // A second handle of this process is the same session.
        let ours = Session::open(&process.clone(), ID).await?;
        ours.steer("Slowly.").expect("a message");
        ours.saved().await?;
        let reread = Session::open(&Process::of(&store), ID).await?;
        assert_eq!(
            reread.undelivered().iter().map(|message| message.text()).collect::<Vec<_>>(),
            ["Hurry.", "Slowly."]
        );
        go.add_permits(1);
        while log.lines().len() < 2 {
            tokio::task::yield_now().await;
        }
        go.add_permits(1);
        Ok::<_, Error>(theirs)
    };
    let (ended, theirs) = tokio::join!(run.into_future(), meanwhile);
    assert_eq!(ended?.text(), "Done.");
    let theirs = theirs?;
    for message in ["Hurry.", "Slowly."] {
        assert!(texts(&session).contains(&message.to_owned()), "{message}");
    }
    // The other process keeps its value, and can store it now. Its next message waits for a run, so the session is listed.
    theirs.steer("Thanks.").expect("a message");
    theirs.saved().await?;
    let reread = Session::open(&Process::of(&store), ID).await?;
    assert_eq!((reread.undelivered().len(), texts(&reread)), (1, texts(&session)));
    assert_eq!(store.list(&Filter::unfinished()).await?.len(), 1);
    assert_eq!(agent.resume(&reread).await?.text(), "Done.");
    assert!(store.list(&Filter::unfinished()).await?.is_empty());
    Ok(())
}

/// Runs an agent in a process that is stopped meanwhile for so long that it loses its claim. Another process ends the run,
/// and its session is returned.
async fn lose_claim(process: &Process, session: &Session, store: &MemoryStore, log: &Log) -> Result<Session> {
    let go = Arc::new(Semaphore::new(0));
    let agent = waiting(log, &go)?;
    let run = agent.ask("Go.").session(session);
    let meanwhile = async {
        while log.lines().is_empty() {
            tokio::task::yield_now().await;
        }
        process.freeze(true);
        // The lease has run out, and another process goes on.
        let other = Session::open(&Process::killed_at(store, Kill::Never), ID).await?;
        go.add_permits(1);
        let resumed = async {
            while log.lines().len() < 2 {
                tokio::task::yield_now().await;
            }
            go.add_permits(1);
        };
        let (answer, ()) = tokio::join!(agent.resume(&other).into_future(), resumed);
        assert_eq!(answer?.text(), "Done.");
        process.freeze(false);
        Ok::<_, Error>(other)
    };
    let (ended, other) = tokio::join!(run.into_future(), meanwhile);
    let error = ended.expect_err("it has lost its claim").to_string();
    assert!(error.contains("lost its claim"), "{error}");
    other
}

/// A24
#[tokio::test]
async fn a_process_that_has_lost_its_claim_begins_no_further_call() -> Result<()> {
    let (store, log) = (MemoryStore::new(), Log::default());
    let process = Process::of(&store);
    let session = Session::open(&process, ID).await?;
    let other = lose_claim(&process, &session, &store, &log).await?;
    assert_eq!(log.lines(), ["first", "second"]);
    session.refresh().await?;
    assert_eq!(texts(&session), texts(&other));
    Ok(())
}

/// A24
#[tokio::test]
async fn a_session_that_is_opened_again_after_its_claim_was_lost_stores_what_it_does() -> Result<()> {
    let (store, log) = (MemoryStore::new(), Log::default());
    let process = Process::of(&store);
    let session = Session::open(&process, ID).await?;
    drop(lose_claim(&process, &session, &store, &log).await?);
    drop(session);
    let session = Session::open(&process, ID).await?;
    let agent = Agent::builder("clerk", ChatModel::new(ScriptedModel::new("test").text("Hello."))?).build()?;
    agent.ask("Again.").session(&session).await?;
    let stored = texts(&Session::open(&Process::of(&store), ID).await?);
    assert!(stored.ends_with(&["Again.", "Hello."].map(str::to_owned)), "{stored:?}");
    assert_eq!(stored, texts(&session));
    Ok(())
}

/// An agent whose two calls never end if nobody has made them before. The second one waits until it is let go.
fn repeating(log: &Log, go: &Arc<Semaphore>) -> Result<Agent> {
    let (log, go) = (log.clone(), Arc::clone(go));
    let work = tool_fn("work", "Works", move |args: Text, _: RunContext| {
        let log = log.clone();
        async move {
            log.add(&args.text);
            if log.lines().len() <= 2 {
                std::future::pending::<()>().await;
            }
            Ok(args.text)
        }
    })?;
    let waits = map_input_async(move |args: &mut Value, _: &RunContext| {
        let (go, waits) = (Arc::clone(&go), args["text"] == "second");
        Box::pin(async move {
            if waits {
                go.acquire().await.map_err(Error::from)?.forget();
            }
            Ok(())
        })
    });
    let script = ScriptedModel::by("test", |request| {
        if request.messages.len() > 1 {
            return emitree_agent::Reply::text("Done.");
        }
        emitree_agent::Reply::calls(["first", "second"].map(|text| ("work", json!({ "text": text }))))
    });
    Agent::builder("worker", ChatModel::new(script)?).tool(work.middleware(waits).idempotent()).build()
}

/// A25, S7
#[tokio::test]
async fn a_process_that_has_lost_its_claim_repeats_no_call_that_had_begun() -> Result<()> {
    let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(1)));
    let agent = repeating(&log, &go)?;
    let lines = async |count| {
        while log.lines().len() < count {
            tokio::task::yield_now().await;
        }
    };
    let session = Session::open(&Process::of(&store), ID).await?;
    tokio::select! { _ = agent.ask("Go.").session(&session) => unreachable!(), () = lines(2) => {} }
    emitree_runtime::wait_for_ends(std::time::Duration::from_secs(5)).await;

    let session = Session::open(&Process::of(&store), ID).await?;
    let resumed = agent.resume(&session);
    let meanwhile = async {
        lines(3).await;
        // The lease has run out, and another process goes on.
        let other = Session::open(&Process::killed_at(&store, Kill::Never), ID).await?;
        let theirs = repeating(&log, &Arc::new(Semaphore::new(1)))?;
        assert_eq!(theirs.resume(&other).await?.text(), "Done.");
        let made = log.lines();
        go.add_permits(1);
        Ok::<_, Error>(made)
    };
    let (ended, made) = tokio::join!(resumed.into_future(), meanwhile);
    let error = ended.expect_err("it has lost its claim").to_string();
    assert!(error.contains("lost its claim"), "{error}");
    assert_eq!(log.lines(), made?);
    Ok(())
}

/// A24, A25
#[tokio::test]
async fn if_a_commit_fails_nothing_is_executed_and_the_next_start_goes_on() -> Result<()> {
    let (log, go) = (Log::default(), Arc::new(Semaphore::new(0)));
    for at in 0..4 {
        let (store, before) = (MemoryStore::new(), log.lines().len());
        let process = Process::of(&store);
        let session = Session::open(&process, ID).await?;
        let agent = waiting(&log, &go)?;
        process.fail_from(at);
        let error = agent.ask("Go.").session(&session).await;
        let error = error.expect_err("the store fails");
        assert!(error.find::<StoreError>().is_some(), "{error}");
        assert_eq!(log.lines().len(), before, "{at}: {error}");
        process.fail_from(usize::MAX);
        go.add_permits(1);
        go.add_permits(1);
        let answer = if texts(&session).is_empty() {
            agent.ask("Go.").session(&session).await?
        } else {
            agent.resume(&session).await?
        };
        assert_eq!(answer.text(), "Done.");
        assert_eq!(log.lines()[before..], ["first", "second"], "{at}");
        assert_eq!(results(session.history().messages()), ["first", "second"], "{at}");
    }
    Ok(())
}

/// A24
#[tokio::test]
async fn an_entry_that_cannot_be_read_is_refused_and_stays_as_it_is() -> Result<()> {
    let store = MemoryStore::new();
    let session = json!({"session": {"format": 1, "id": ID}});
    for (kind, part, expected) in [
        ("job", session.clone(), "it is a `job`, and not a `session`"),
        ("session", json!({"session": {"format": 4, "id": ID}}), "record 0: session.format: the session is stored in"),
        ("session", json!("torn"), "record 0: invalid type"),
        ("session", json!({"paused": {"id": uuid::Uuid::nil()}}), "record 0: it is not `session`"),
        ("session", json!({"session": {"format": 1, "id": "order-18"}}), "it has the session `order-18`"),
        (
            "session",
            json!({"session": {"format": 1, "id": ID, "messages": [{"role": "king"}]}}),
            "record 0: session.messages[0].role: unknown variant",
        ),
    ] {
        let part: Value = part;
        let id = ID;
        let mut head = EntryHead::new(id, kind);
        if let Some(before) = store.load(id).await? {
            head.revision = before.head.revision;
        }
        store.append(&Append::new(head).part(part.to_string()).replacing()).await?;
        let before = store.load(id).await?;
        let error = Session::open(&Process::of(&store), id).await.expect_err(expected).explain();
        let is_named = error.contains("the stored entry `order-17` is damaged") || kind == "job";
        assert!(is_named && error.contains(expected), "{error}");
        assert_eq!(store.load(id).await?, before);
    }
    for id in ["", "a/b"] {
        Session::open(&store, id).await.expect_err("an id that cannot be a key");
    }
    Ok(())
}

/// A commit writes only what has changed.
#[tokio::test]
async fn the_bytes_that_are_written_grow_with_the_turns_and_not_with_the_history() -> Result<()> {
    let mut written = Vec::new();
    for turns in [100, 1_000] {
        let store = MemoryStore::new();
        let process = Process::of(&store);
        let session = Session::open(&process, ID).await?;
        let script = ScriptedModel::by("test", move |request| {
            let results = request.messages.iter().filter(|message| message.tool_results().next().is_some()).count();
            if results == turns {
                return emitree_agent::Reply::text("Done.");
            }
            emitree_agent::Reply::calls([("shout", json!({"text": "a".repeat(1_000)}))])
        });
        crate::support::agent(&script).max_steps(2_000).build()?.ask("Go.").session(&session).await?;
        let reread = Session::open(&Process::of(&store), ID).await?;
        assert_eq!(serde_json::to_value(&reread)?, serde_json::to_value(&session)?);
        written.push(process.bytes());
    }
    assert!(written[1] <= 11 * written[0], "{written:?}");
    Ok(())
}

/// A24
#[tokio::test]
async fn a_result_that_is_longer_than_a_part_of_a_store_is_read_again() -> Result<()> {
    let store = MemoryStore::new();
    let session = Session::open(&Process::of(&store), ID).await?;
    let script = ScriptedModel::new("test").call("shout", json!({"text": "a".repeat(1_500_000)})).text("Done.");
    crate::support::agent(&script).build()?.ask("Go.").session(&session).await?;
    let reread = Session::open(&Process::of(&store), ID).await?;
    assert_eq!(serde_json::to_value(&reread)?, serde_json::to_value(&session)?);
    assert_eq!(results(reread.history().messages())[0].len(), 1_500_000);
    Ok(())
}

/// A state that cannot be serialized.
#[derive(Default, serde::Deserialize)]
struct Secretive;

impl serde::Serialize for Secretive {
    fn serialize<S: serde::Serializer>(&self, _: S) -> std::result::Result<S::Ok, S::Error> {
        panic!("a planned panic")
    }
}

/// A24
#[tokio::test]
async fn a_state_that_panics_when_it_is_serialized_fails_the_run_and_executes_nothing() -> Result<()> {
    let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(9)));
    let session = Session::open(&store, ID).await?;
    let secretive = hooks_fn("secretive", |hooks: &mut Hooks| {
        let state = hooks.state::<Secretive>();
        hooks.on_action(move |_, ctx| state.with(ctx, |_| ()));
    });
    let error = waiting(&log, &go)?.ask("Go.").session(&session).with(secretive).await.expect_err("a panic").explain();
    assert!(error.contains("a planned panic") || error.contains("panicked"), "{error}");
    assert_eq!(log.lines(), [""; 0]);
    Ok(())
}

/// A24
#[tokio::test]
async fn a_history_that_a_middleware_has_rewritten_is_stored_as_it_is() -> Result<()> {
    let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(9)));
    let session = Session::open(&Process::of(&store), ID).await?;
    session.extend((0..6).map(|n| Message::user(format!("old {n}"))))?;
    let shorten = hooks_fn("shorten", |hooks: &mut Hooks| {
        hooks.on_state(|history: &mut History, _| {
            let messages = history.messages();
            if let Some(at) = messages.iter().rposition(|message| message.text().starts_with("old")) {
                let kept = messages[at + 1..].iter().cloned();
                let summary = Arc::new(Message::user("a summary"));
                *history = History::try_from(std::iter::once(summary).chain(kept).collect::<Vec<_>>())?;
            }
            Ok(())
        });
    });
    waiting(&log, &go)?.ask("Go.").session(&session).with(shorten).await?;
    let reread = Session::open(&Process::of(&store), ID).await?;
    assert_eq!(serde_json::to_value(&reread)?, serde_json::to_value(&session)?);
    assert_eq!(texts(&reread)[..2], ["a summary", "Go."]);
    Ok(())
}
