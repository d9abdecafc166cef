//! Sessions that are submitted to workers (F2, F3, F7).

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use emitree_agent::{Agent, ChatModel, Message, Reply, ScriptedModel, Session, tool_fn};
use emitree_middleware::Runs;
use emitree_middleware::approval::{Approval, Decision};
use emitree_middleware::durable::{RunningWorker, Submitted, Worker};
use emitree_middleware::store::{EntryHead, EntryStatus, MemoryStore, Store, StoreError, Take};
use emitree_runtime::{Error, Result, RunContext, Runnable, for_tree, runnable_fn};
use futures_util::future::join_all;
use serde_json::json;
use tokio::sync::Semaphore;

use super::process::Process;
use crate::support::{Log, Text, texts};

const ID: &str = "order-17";
const END: Duration = Duration::from_secs(30);

async fn head(store: &MemoryStore) -> Result<EntryHead> {
    Ok(store.load(ID).await?.ok_or_else(|| Error::new("no entry"))?.head)
}

/// Waits until the stored session has a status.
async fn until(store: &MemoryStore, status: EntryStatus) -> Result<()> {
    loop {
        let head = head(store).await?;
        if head.status == status && head.holder.is_none() && head.posts == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn serve(store: &MemoryStore, agent: Agent) -> Result<RunningWorker> {
    Worker::new(&Process::of(store)).serve("support", agent).start().await
}

/// An agent that pays with an approval, and then answers with the number of messages that it has got.
fn agent(log: &Log) -> Result<Agent> {
    let log = log.clone();
    let pay = tool_fn("pay", "Pays", move |args: Text, _: RunContext| {
        let log = log.clone();
        async move {
            log.add(args.text);
            Ok("paid")
        }
    })?
    .middleware(Approval::by_interrupt());
    let script = ScriptedModel::by("test", |request| {
        let last = request.messages.last().map(|message| message.text()).unwrap_or_default();
        if last.starts_with("Pay") {
            return Reply::calls([("pay", json!({"text": last}))]);
        }
        Reply::text(format!("After {last:?}."))
    });
    Agent::builder("support", ChatModel::new(script)?).tool(pay).build()
}

/// F2, F3
#[tokio::test(start_paused = true)]
async fn a_worker_goes_on_with_what_is_submitted_and_each_id_is_submitted_once() -> Result<()> {
    let (store, log) = (MemoryStore::new(), Log::default());
    let session = Session::open(&Process::of(&store), ID).await?;
    let submitted = session.submit("support", "Hello.").once("1").await?;
    assert_eq!(submitted, Submitted::new(true, false), "no worker serves the queue yet");
    let stored = head(&store).await?;
    assert_eq!((stored.status, stored.queue.as_deref(), stored.posts), (EntryStatus::Queued, Some("support"), 1));

    let worker = serve(&store, agent(&log)?).await?;
    until(&store, EntryStatus::Ended).await?;
    session.refresh().await?;
    assert_eq!(texts(&session), ["Hello.", "After \"Hello.\"."]);

    // The id stays known when the message was taken, and of several processes at once one submits the next.
    let sessions = [Process::of(&store), Process::of(&store), Process::of(&store)];
    let sessions = join_all(sessions.iter().map(|process| Session::open(process, ID).into_future())).await;
    let sessions = sessions.into_iter().collect::<Result<Vec<_>>>()?;
    let again =
        join_all(sessions.iter().map(|session| session.submit("support", "Hello.").once("1").into_future())).await;
    let again = again.into_iter().collect::<Result<Vec<_>>>()?;
    assert_eq!(again, [Submitted::new(false, true); 3]);
    let next =
        join_all(sessions.iter().map(|session| session.submit("support", "Next.").once("2").into_future())).await;
    let next = next.into_iter().collect::<Result<Vec<_>>>()?;
    assert_eq!(next.iter().filter(|submitted| submitted.is_new).count(), 1);
    // Without an id, each is a message.
    assert!(session.submit("support", "Next.").await?.is_new);
    until(&store, EntryStatus::Ended).await?;
    session.refresh().await?;
    assert_eq!(texts(&session)[2..], ["Next.", "After \"Next.\".", "Next.", "After \"Next.\"."]);

    let error = session.submit("other", "Hello.").await.expect_err("another queue").to_string();
    assert!(error.contains("`support`") && error.contains("`other`"), "{error}");
    let error = Session::new().submit("support", "Hello.").await.expect_err("no store").to_string();
    assert!(error.contains("Session::open"), "{error}");
    worker.shutdown(END).await;
    Ok(())
}

/// F2
#[tokio::test(start_paused = true)]
async fn an_answer_from_any_process_lets_a_worker_go_on() -> Result<()> {
    let (store, log) = (MemoryStore::new(), Log::default());
    let worker = serve(&store, agent(&log)?).await?;
    let session = Session::open(&Process::of(&store), ID).await?;
    assert!(session.submit("support", "Pay Ada.").await?.is_served);
    until(&store, EntryStatus::Waiting).await?;
    session.refresh().await?;
    let questions = session.questions();
    session.answer(&questions[0].id, Decision::Approve).await?;
    until(&store, EntryStatus::Ended).await?;
    assert_eq!(log.lines(), ["Pay Ada."]);
    // A message of another kind makes it due as well.
    session.steer("Thanks.")?;
    session.saved().await?;
    until(&store, EntryStatus::Ended).await?;
    session.refresh().await?;
    assert_eq!(texts(&session).last().map(String::as_str), Some("After \"Thanks.\"."));
    worker.shutdown(END).await;
    assert!(store.workers().await?.is_empty());
    Ok(())
}

/// F2
#[tokio::test(start_paused = true)]
async fn a_failure_that_may_pass_comes_back_and_another_one_does_not() -> Result<()> {
    for (may_pass, in_one_process) in [(true, false), (true, true), (false, false)] {
        let store = MemoryStore::new();
        let process = Process::of(&store);
        let tries = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&tries);
        let script = ScriptedModel::by("test", move |_| match counts.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::error(Error::new("the model is away").retryable(may_pass)),
            _ => Reply::text("Hello."),
        });
        let agent = Agent::builder("support", ChatModel::new(script)?).build()?;
        let worker = Worker::new(&process).serve("support", agent).start().await?;
        let submits = if in_one_process { process.clone() } else { Process::of(&store) };
        let session = Session::open(&submits, ID).await?;
        session.submit("support", "Hello.").await?;
        until(&store, if may_pass { EntryStatus::Ended } else { EntryStatus::Failed }).await?;
        assert_eq!(tries.load(Ordering::SeqCst), if may_pass { 2 } else { 1 });
        if !may_pass {
            // A person lets it go on.
            session.submit("support", "Again.").await?;
            until(&store, EntryStatus::Ended).await?;
            session.refresh().await?;
            assert_eq!(texts(&session), ["Hello.", "Hello.", "Again.", "Hello."]);
        }
        worker.shutdown(END).await;
    }
    Ok(())
}

/// F7
#[tokio::test(start_paused = true)]
async fn a_session_whose_processes_are_gone_again_and_again_asks_a_person() -> Result<()> {
    for answer in ["again", "fail"] {
        let (store, log) = (MemoryStore::new(), Log::default());
        let session = Session::open(&Process::of(&store), ID).await?;
        session.submit("support", "Hello.").await?;
        // A process that takes it and is gone.
        for attempt in 1..=5 {
            let taken = Take::new(format!("gone {attempt}"), Duration::ZERO, ["support"]);
            assert_eq!(store.take(&taken).await?[0].attempts, attempt);
        }
        let worker = serve(&store, agent(&log)?).await?;
        until(&store, EntryStatus::Waiting).await?;
        session.refresh().await?;
        let questions = session.questions();
        assert_eq!((questions.len(), &*questions[0].kind), (1, "worker.stuck"));
        assert_eq!(questions[0].data["attempts"], 5);
        let listed = head(&store).await?;
        assert_eq!(listed.questions[0].kind, "worker.stuck");
        let error =
            session.answer(&questions[0].id, json!("perhaps")).await.expect_err("none of the choices").to_string();
        assert!(error.contains("again") && error.contains("fail"), "{error}");
        session.answer(&questions[0].id, json!(answer)).await?;
        until(&store, if answer == "again" { EntryStatus::Ended } else { EntryStatus::Failed }).await?;
        session.refresh().await?;
        assert_eq!(session.questions().len(), 0);
        assert_eq!(texts(&session).len(), if answer == "again" { 2 } else { 0 });
        worker.shutdown(END).await;
    }
    Ok(())
}

/// F2
#[tokio::test(start_paused = true)]
async fn a_worker_that_stops_hands_its_sessions_over() -> Result<()> {
    let store = MemoryStore::new();
    let begun = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&begun);
    let waits = tool_fn("wait", "Waits", move |_: Text, _: RunContext| {
        let is_first = counts.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first {
                std::future::pending::<()>().await;
            }
            Ok("waited")
        }
    })?
    .idempotent();
    let script = ScriptedModel::by("test", |request| match request.messages.len() {
        1 => Reply::calls([("wait", json!({"text": "x"}))]),
        _ => Reply::text("Done."),
    });
    let agent = Agent::builder("support", ChatModel::new(script)?).tool(waits).build()?;
    let first = serve(&store, agent.clone()).await?;
    let session = Session::open(&Process::of(&store), ID).await?;
    session.submit("support", "Hello.").await?;
    while begun.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    first.shutdown(Duration::ZERO).await;
    let left = head(&store).await?;
    assert_eq!((left.status, left.holder, left.attempts), (EntryStatus::Running, None, 0), "its attempt is given back");
    let second = serve(&store, agent).await?;
    until(&store, EntryStatus::Ended).await?;
    session.refresh().await?;
    assert_eq!((texts(&session).last().map(String::as_str), begun.load(Ordering::SeqCst)), (Some("Done."), 2));
    second.shutdown(END).await;
    Ok(())
}

/// F4
#[tokio::test(start_paused = true)]
async fn a_message_that_is_sent_behind_a_submission_comes_behind_it_in_the_history() -> Result<()> {
    let (store, log) = (MemoryStore::new(), Log::default());
    let session = Session::open(&Process::of(&store), ID).await?;
    session.submit("support", "Zero.").await?;
    session.follow_up("One.")?;
    session.submit("support", "Two.").await?;
    // Another process reads all, and has sent none.
    let theirs = Session::open(&Process::of(&store), ID).await?;
    session.submit("support", "Three.").await?;
    // It has taken the third one over, and the store has it only as a post.
    theirs.refresh().await?;
    session.submit("support", "Four.").await?;
    theirs.follow_up("Five.")?;
    theirs.follow_up("Six.")?;
    theirs.saved().await?;
    let worker = serve(&store, agent(&log)?).await?;
    until(&store, EntryStatus::Ended).await?;
    session.refresh().await?;
    let texts: Vec<_> = texts(&session).into_iter().step_by(2).collect();
    assert_eq!(texts, ["Zero.", "One.", "Two.", "Three.", "Four.", "Five.", "Six."]);
    worker.shutdown(END).await;
    Ok(())
}

/// F4: the messages wait for the answer, so it passes them.
#[tokio::test(start_paused = true)]
async fn an_answer_passes_messages_for_which_there_is_no_place() -> Result<()> {
    let (store, log) = (MemoryStore::new(), Log::default());
    let worker = serve(&store, agent(&log)?).await?;
    let session = Session::open(&Process::of(&store), ID).await?;
    session.submit("support", "Pay Ada.").await?;
    until(&store, EntryStatus::Waiting).await?;
    worker.shutdown(END).await;
    for n in 0..1_000 {
        session.submit("support", format!("Message {n}.")).await?;
    }
    // The next worker shares its process with a handle of the session.
    let process = Process::of(&store);
    let theirs = Session::open(&process, ID).await?;
    let worker = Worker::new(&process).serve("support", agent(&log)?).start().await?;
    until(&store, EntryStatus::Waiting).await?;
    for n in 1_000..1_002 {
        session.submit("support", format!("Message {n}.")).await?;
    }
    // Both wait in the store, and the worker leaves them there for some time.
    while head(&store).await?.holder.is_none() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let left = head(&store).await?;
    assert_eq!((left.status, left.posts), (EntryStatus::Waiting, 2));
    theirs.set_meta("seen", true)?;
    let saved = theirs.saved().await;
    assert!(matches!(saved, Ok(()) | Err(StoreError::Held { .. })), "{saved:?}");
    theirs.answer(&theirs.questions()[0].id, Decision::Approve).await?;
    until(&store, EntryStatus::Ended).await?;
    session.refresh().await?;
    assert_eq!(log.lines(), ["Pay Ada."]);
    let texts = texts(&session);
    assert_eq!(texts.iter().filter(|text| text.starts_with("Message ")).count(), 1_002);
    worker.shutdown(END).await;
    Ok(())
}

/// F7
#[tokio::test(start_paused = true)]
async fn messages_to_a_session_that_waits_are_no_attempts() -> Result<()> {
    let (store, log) = (MemoryStore::new(), Log::default());
    let worker = serve(&store, agent(&log)?).await?;
    let session = Session::open(&Process::of(&store), ID).await?;
    session.submit("support", "Pay Ada.").await?;
    until(&store, EntryStatus::Waiting).await?;
    let before = head(&store).await?.attempts;
    for _ in 0..7 {
        session.submit("support", "Hello?").await?;
        until(&store, EntryStatus::Waiting).await?;
        assert_eq!(head(&store).await?.attempts, before);
    }
    worker.shutdown(END).await;
    Ok(())
}

/// F7
#[tokio::test(start_paused = true)]
async fn an_abort_pauses_a_session_that_waits_and_a_message_lets_it_go_on() -> Result<()> {
    let (store, log) = (MemoryStore::new(), Log::default());
    let session = Session::open(&Process::of(&store), ID).await?;
    session.submit("support", "Hello.").await?;
    assert!(session.abort("not now").await?);
    let left = head(&store).await?;
    assert_eq!((left.status, left.posts), (EntryStatus::Paused, 0));
    assert!(!session.abort("again").await?);

    let worker = serve(&store, agent(&log)?).await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(head(&store).await?.status, EntryStatus::Paused, "no worker takes it");
    session.submit("support", "Now.").await?;
    until(&store, EntryStatus::Ended).await?;
    session.refresh().await?;
    assert_eq!(texts(&session), ["Hello.", "After \"Hello.\".", "Now.", "After \"Now.\"."]);
    worker.shutdown(END).await;
    Ok(())
}

/// F9
#[tokio::test(start_paused = true)]
async fn a_session_in_the_queue_of_another_runnable_is_not_run_and_comes_back() -> Result<()> {
    let store = MemoryStore::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&runs);
    let lenient = runnable_fn("lenient", move |_: serde_json::Value, _: RunContext| {
        counts.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    let worker = Worker::new(&Process::of(&store)).serve("support", lenient).start().await?;
    let session = Session::open(&Process::of(&store), ID).await?;
    session.submit("support", "Hello.").await?;
    while head(&store).await?.attempts == 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let kept = head(&store).await?;
    assert_eq!((kept.status, kept.posts, runs.load(Ordering::SeqCst)), (EntryStatus::Queued, 1, 0));
    assert!(kept.holder.is_some(), "its worker holds it for some time");
    worker.shutdown(END).await;
    Ok(())
}

/// A15
#[tokio::test]
async fn a_follow_up_that_waits_begins_the_round_of_a_run_that_resumes() -> Result<()> {
    let session = Session::from(emitree_agent::History::try_from(vec![
        Arc::new(Message::user("Hi.")),
        Arc::new(Message::assistant("Hello.")),
    ])?);
    session.follow_up("Next.")?;
    let agent = agent(&Log::default())?;
    assert_eq!(agent.resume(&session).await?.text(), "After \"Next.\".");
    assert_eq!(texts(&session), ["Hi.", "Hello.", "Next.", "After \"Next.\"."]);
    Ok(())
}

/// M5, F7
#[tokio::test(start_paused = true)]
async fn a_worker_whose_agent_lacks_a_guard_of_the_submitting_run_asks_instead_of_going_on() -> Result<()> {
    let store = MemoryStore::new();
    let session = Session::open(&Process::of(&store), ID).await?;
    let approves = || for_tree(Approval::by_interrupt().runs(Runs::named("pay")));
    let submits = runnable_fn("desk", |session: Session, _: RunContext| async move {
        session.submit("support", "Hello.").once("1").await.map(|submitted| submitted.is_new)
    });
    assert!(submits.run(session.clone()).middleware(approves()).await?);
    let calls = Arc::new(AtomicUsize::new(0));
    let agent = |calls: &Arc<AtomicUsize>| {
        let calls = Arc::clone(calls);
        let script = ScriptedModel::by("test", move |_| {
            calls.fetch_add(1, Ordering::Relaxed);
            Reply::text("Hello!")
        });
        Ok::<_, Error>(Agent::builder("support", ChatModel::new(script)?))
    };
    let worker = serve(&store, agent(&calls)?.build()?).await?;
    for _ in 0..2 {
        until(&store, EntryStatus::Waiting).await?;
        session.refresh().await?;
        let questions = session.questions();
        assert_eq!((&*questions[0].kind, &questions[0].data["lacks"]), ("worker.stuck", &json!(["approval"])));
        assert!(questions[0].data["error"].as_str().is_some_and(|error| error.contains("`approval`")), "{questions:?}");
        session.answer(&questions[0].id, json!("again")).await.map_err(Error::from)?;
    }
    until(&store, EntryStatus::Waiting).await?;
    assert_eq!(calls.load(Ordering::Relaxed), 0, "nothing has begun");
    worker.shutdown(END).await;

    let worker = serve(&store, agent(&calls)?.middleware(approves()).build()?).await?;
    session.refresh().await?;
    session.answer(&session.questions()[0].id, json!("again")).await.map_err(Error::from)?;
    until(&store, EntryStatus::Ended).await?;
    session.refresh().await?;
    assert_eq!(texts(&session), ["Hello.", "Hello!"]);
    worker.shutdown(END).await;
    Ok(())
}

/// M5
#[tokio::test(start_paused = true)]
async fn a_run_that_lacks_a_guard_of_a_submitting_run_does_not_get_its_message() -> Result<()> {
    let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(0)));
    let session = Session::open(&Process::of(&store), ID).await?;
    let (begun, lets) = (log.clone(), Arc::clone(&go));
    let wait = tool_fn("wait", "Waits", move |args: Text, _: RunContext| {
        let (begun, lets) = (begun.clone(), Arc::clone(&lets));
        async move {
            begun.add(args.text);
            lets.acquire().await.map_err(Error::from)?.forget();
            Ok("waited")
        }
    })?;
    let script = ScriptedModel::new("test").call("wait", json!({"text": "waits"})).text("Done.");
    let agent = Agent::builder("support", ChatModel::new(script)?).tool(wait).build()?;
    let worker = serve(&store, agent).await?;
    session.submit("support", "Wait.").await?;
    while log.lines().is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let submits = runnable_fn("desk", |session: Session, _: RunContext| async move {
        session.submit("support", "Guarded.").await.map(|submitted| submitted.is_new)
    });
    let guard = for_tree(Approval::by_interrupt().runs(Runs::named("pay")));
    assert!(submits.run(session.clone()).middleware(guard).await?);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(head(&store).await?.posts, 1, "the run has looked, and left it");
    go.add_permits(1);
    until(&store, EntryStatus::Waiting).await?;
    session.refresh().await?;
    assert_eq!(session.questions()[0].data["lacks"], json!(["approval"]));
    assert_eq!(texts(&session), ["Wait.", "", "", "Done."]);
    worker.shutdown(END).await;
    Ok(())
}
