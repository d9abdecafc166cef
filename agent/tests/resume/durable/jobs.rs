//! An agent in a step of a job (A24, M15).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use emitree_agent::Session;
use emitree_middleware::Durable;
use emitree_middleware::approval::Decision;
use emitree_middleware::durable::Worker;
use emitree_middleware::store::{Append, EntryHead, EntryStatus, Filter, Lease, MemoryStore, Store, StoreError, Take};
use emitree_runtime::{BoxRunnable, Result, RunContext, Runnable, runnable_fn};
use serde_json::json;

use super::process::{Kill, Process};
use super::talking::payer as asks_first;
use super::{by_turn, payer};
use crate::support::{Log, assert_valid, texts};

/// A job whose step asks an agent.
fn job(asked: &Arc<AtomicUsize>, log: &Log) -> BoxRunnable<String, String> {
    let agent = payer(by_turn(asked), log).expect("an agent");
    BoxRunnable::new(runnable_fn("job", move |question: String, _: RunContext| {
        let agent = agent.clone();
        async move { Ok(agent.ask(question).key("ask").await?.text()) }
    }))
}

#[tokio::test]
async fn an_agent_in_a_step_of_a_job_goes_on_with_its_own_session_after_a_kill() -> Result<()> {
    let mut kills = 0;
    for number in 0.. {
        let mut is_over = true;
        for kill in [Kill::Before(number), Kill::After(number)] {
            let (store, log, asked) = (MemoryStore::new(), Log::default(), Arc::default());
            let process = Process::killed_at(&store, kill);
            let first = job(&asked, &log);
            let is_killed = tokio::select! {
                ended = first.run("Pay.".to_owned()).middleware(Durable::new(&process, "import-7")) => {
                    assert_eq!(ended?, "Done.");
                    false
                }
                () = process.killed() => true,
            };
            is_over &= !is_killed;
            kills += usize::from(is_killed);
            let next = Process::killed_at(&store, Kill::Never);
            let again = job(&asked, &log).run("Pay.".to_owned()).middleware(Durable::new(&next, "import-7")).await?;
            assert_eq!(again, "Done.", "{kill:?}");
            assert!(asked.load(Ordering::SeqCst) <= 4, "{kill:?}: 3 turns and one kill");
            for paid in ["pay Ada", "pay Bob"] {
                let effects = log.lines().iter().filter(|line| line.starts_with(paid)).count();
                assert!(effects <= 1, "{kill:?}: {:?}", log.lines());
            }
            let session = Session::open(&Process::killed_at(&store, Kill::Never), "import-7/ask").await?;
            assert_eq!(assert_valid(&session).messages().last().map(|last| last.text()).as_deref(), Some("Done."));
            let head = store.load("import-7/ask").await?.expect("an entry").head;
            assert_eq!((head.status, head.holder), (EntryStatus::Ended, None), "{kill:?}");
        }
        if is_over {
            break;
        }
    }
    assert!(kills >= 30, "{kills}");
    Ok(())
}

/// A23, M15
#[tokio::test]
async fn the_agent_in_a_step_goes_on_while_the_program_has_its_session_open() -> Result<()> {
    let (store, log) = (MemoryStore::new(), Log::default());
    let agent = asks_first(&log)?;
    let job = BoxRunnable::new(runnable_fn("job", move |question: String, _: RunContext| {
        let agent = agent.clone();
        async move { Ok(agent.ask(question).key("ask").await?.text()) }
    }));
    let first = Process::of(&store);
    let error = job.run("Pay.".to_owned()).middleware(Durable::new(&first, "import-7")).await.expect_err("it asks");
    assert!(error.is_interrupted(), "{error}");

    let next = Process::of(&store);
    let session = Session::open(&next, "import-7/ask").await?;
    for question in session.questions() {
        session.answer(&question.id, Decision::Approve).await?;
    }
    let answer = job.run("Pay.".to_owned()).middleware(Durable::new(&next, "import-7")).await?;
    assert_eq!((answer.as_str(), log.lines()), ("Done.", vec!["Ada".to_owned(), "Bob".to_owned()]));
    assert_eq!(texts(&session).iter().filter(|text| *text == "Pay.").count(), 1);
    Ok(())
}

/// M13
#[tokio::test]
async fn a_session_that_another_process_holds_is_no_result_of_the_step_and_pauses_the_job() -> Result<()> {
    let (store, log, asked) = (MemoryStore::new(), Log::default(), Arc::default());
    let head = EntryHead::new("import-7/ask", "session");
    store.append(&Append::new(head).by("killed").holding(Duration::from_secs(3600))).await?;
    let agent = payer(by_turn(&asked), &log)?;
    let refunds = log.clone();
    let job = BoxRunnable::new(runnable_fn("job", move |question: String, _: RunContext| {
        let (agent, log) = (agent.clone(), refunds.clone());
        async move {
            let refund = runnable_fn("refund", move |(): (), _: RunContext| {
                log.add("refund");
                async { Ok("refunded".to_owned()) }
            });
            match agent.ask(question).key("ask").await {
                Ok(answer) => Ok(answer.text()),
                Err(_) => refund.run(()).key("refund").await,
            }
        }
    }));
    let start = || {
        let durable = Durable::new(&Process::of(&store), "import-7").lease(Lease::new().wait(Duration::ZERO));
        job.run("Pay.".to_owned()).middleware(durable)
    };
    for _ in 0..2 {
        let error = start().await.expect_err("held");
        assert!(matches!(error.find(), Some(StoreError::Held { id, .. }) if id == "import-7/ask"), "{error:?}");
        let job = store.load("import-7").await?.expect("an entry");
        assert_eq!((job.head.status, job.head.holder), (EntryStatus::Paused, None));
        assert!(!job.parts.iter().any(|part| String::from_utf8_lossy(part).contains("failed")));
    }
    assert!(log.lines().is_empty(), "no refund");

    let revision = store.load("import-7/ask").await?.expect("an entry").head.revision;
    store.remove("import-7/ask", revision).await?;
    assert_eq!(start().await?, "Done.");
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    Ok(())
}

/// M13
#[tokio::test]
async fn an_agent_that_is_made_a_job_is_an_error_before_its_start() -> Result<()> {
    let (store, log, asked) = (MemoryStore::new(), Log::default(), Arc::default());
    let agent = payer(by_turn(&asked), &log)?;
    let starts = Log::default();
    let seen = starts.clone();
    let run = agent.ask("Pay.").middleware(Durable::new(&store, "import-7"));
    let error = run.on_start(move |_, _| seen.add("start")).await.expect_err("no job").to_string();
    assert!(error.starts_with("the job `import-7` cannot be a run of `payer`: an agent is no job"), "{error}");
    assert!(error.contains("`.session(&Session::open(&store, id).await?)`"), "{error}");
    assert!(starts.lines().is_empty() && log.lines().is_empty());
    assert!(store.list(&Filter::of([])).await?.is_empty());
    Ok(())
}

/// An agent in a step of a job, which asks before it pays.
fn asking_job(log: &Log) -> Result<BoxRunnable<String, String>> {
    let agent = asks_first(log)?;
    Ok(BoxRunnable::new(runnable_fn("job", move |question: String, _: RunContext| {
        let agent = agent.clone();
        async move { Ok(agent.ask(question).key("ask").await?.text()) }
    })))
}

/// Answers the questions of the agent, in the order in which they are listed.
async fn approve_all(process: &Process) -> Result<()> {
    let session = Session::open(process, "import-7/ask").await?;
    for question in session.questions() {
        session.answer(&question.id, Decision::Approve).await?;
    }
    Ok(())
}

/// F2, F4
#[tokio::test(start_paused = true)]
async fn an_answer_to_the_agent_in_a_submitted_job_makes_the_job_due_also_if_its_process_is_killed() -> Result<()> {
    let mut kills = 0;
    for number in 0.. {
        let mut is_over = true;
        for kill in [Kill::Before(number), Kill::After(number)] {
            let (store, log) = (MemoryStore::new(), Log::default());
            let job = Durable::new(&Process::of(&store), "import-7");
            job.submit("import", "Pay.").await?;
            let worker = Worker::new(&Process::of(&store)).serve("import", asking_job(&log)?).start().await?;
            while job.questions().await?.is_empty() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let process = Process::killed_beside(&store, kill);
            let is_killed = tokio::select! {
                answered = approve_all(&process) => {
                    answered?;
                    false
                }
                () = process.killed() => true,
            };
            (is_over, kills) = (is_over && !is_killed, kills + usize::from(is_killed));
            // The next process that opens the session wakes the job, also if no question is left.
            approve_all(&Process::of(&store)).await?;
            assert_eq!(job.ended::<String>().await?, "Done.", "{kill:?}");
            assert_eq!(log.lines(), ["Ada", "Bob"], "{kill:?}");
            worker.shutdown(Duration::ZERO).await;
        }
        if is_over {
            break;
        }
    }
    assert!(kills >= 6, "{kills}");
    Ok(())
}

/// F7
#[tokio::test(start_paused = true)]
async fn a_job_that_is_stuck_is_woken_by_its_own_answer_only() -> Result<()> {
    let store = MemoryStore::new();
    let job = Durable::new(&Process::of(&store), "import-7");
    job.submit("import", "Pay.").await?;
    for _ in 0..5 {
        store.take(&Take::new("gone", Duration::ZERO, ["import"])).await?;
    }
    let echo = runnable_fn("job", |text: String, _: RunContext| async move { Ok(text) });
    let worker = Worker::new(&Process::of(&store)).serve("import", echo).start().await?;
    while job.questions().await?.is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    job.wake().await?;
    while store.load("import-7").await?.is_some_and(|entry| entry.head.posts > 0 || entry.head.holder.is_some()) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let questions = job.questions().await?;
    assert_eq!(questions.iter().map(|question| &*question.kind).collect::<Vec<_>>(), ["worker.stuck"]);
    job.answer(&questions[0].id, json!("again")).await?;
    assert_eq!(job.ended::<String>().await?, "Pay.");
    worker.shutdown(Duration::ZERO).await;
    Ok(())
}
