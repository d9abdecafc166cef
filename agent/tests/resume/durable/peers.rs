//! Several processes that work on one session at once, as users of other frameworks have reported them (A24, A25, F2, F5).

use std::sync::Arc;
use std::time::Duration;

use emitree_agent::{Agent, AgentRun, AnswerError, ChatModel, Message, Reply, ScriptedModel, Session, Tool, tool_fn};
use emitree_middleware::approval::{Approval, Decision};
use emitree_middleware::durable::{RunningWorker, Worker};
use emitree_middleware::store::{Append, EntryHead, EntryStatus, MemoryStore, Store, StoreError};
use emitree_runtime::{Error, Result, RunContext};
use futures_util::future::join_all;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::yield_now;

use super::process::Process;
use crate::support::{Log, Text, assert_valid, results, texts};

const ID: &str = "order-17";
const END: Duration = Duration::from_secs(30);
/// How many yields one process is behind the other, up to more than a run has.
const DELAYS: usize = 20;

/// A tool whose effect is a line of a log, before other tasks go on, and a permit is waited for.
fn pay(log: &Log, go: &Arc<Semaphore>) -> Result<Tool> {
    let (log, go) = (log.clone(), Arc::clone(go));
    let pay = tool_fn("pay", "Pays", move |args: Text, _: RunContext| {
        let (log, go) = (log.clone(), Arc::clone(&go));
        async move {
            log.add(&args.text);
            yields(5).await;
            drop(go.acquire().await.map_err(Error::from)?);
            Ok(format!("paid {}", args.text))
        }
    });
    Ok(pay?)
}

/// An agent that pays whom each message of the user names.
fn payer(pay: Tool) -> Result<Agent> {
    let script = ScriptedModel::by("test", |request| match request.messages.last() {
        Some(last) if last.tool_results().next().is_none() => Reply::calls([("pay", json!({"text": last.text()}))]),
        _ => Reply::text("Done."),
    });
    Agent::builder("payer", ChatModel::new(script)?).tool(pay).build()
}

async fn head(store: &MemoryStore) -> Result<EntryHead> {
    Ok(store.load(ID).await?.ok_or_else(|| Error::new("no entry"))?.head)
}

async fn yields(count: usize) {
    for _ in 0..count {
        yield_now().await;
    }
}

fn is_held(error: &Error) -> bool {
    matches!(error.find::<StoreError>(), Some(StoreError::Held { .. }))
}

/// Reads the session as another process does, and checks that each message of a user is followed by its call, the result
/// and the answer. Returns the messages of users, and the results.
async fn turns(store: &MemoryStore) -> Result<(Vec<String>, Vec<String>)> {
    let session = Session::open(&Process::of(store), ID).await?;
    let history = assert_valid(&session);
    let messages = history.messages();
    for turn in messages.chunks(4) {
        let [asks, calls, results, answers] = turn else { panic!("{:?}", texts(&session)) };
        let arguments = calls.tool_calls().next().and_then(|call| call.arguments.json()).expect("a call");
        assert_eq!(arguments["text"], asks.text());
        assert_eq!((results.tool_results().count(), answers.text().as_str()), (1, "Done."));
    }
    let asked = messages.iter().step_by(4).map(|message| Message::text(message)).collect();
    Ok((asked, results(messages)))
}

/// Two workers that go on from one checkpoint both succeed, and their checkpoints fork the thread
/// (<https://github.com/langchain-ai/langgraph/issues/8796>). A24, F2
#[tokio::test(start_paused = true)]
async fn of_two_workers_that_go_on_with_one_session_one_writes_its_history() -> Result<()> {
    let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(0)));
    let stalls = Process::of(&store);
    let serve = async |process: &Process| -> Result<RunningWorker> {
        Worker::new(process).serve("payer", payer(pay(&log, &go)?)?).start().await
    };
    let until_ended = async || loop {
        let head = head(&store).await?;
        if head.status == EntryStatus::Ended && head.holder.is_none() && head.posts == 0 {
            return Ok::<_, Error>(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let session = Session::open(&Process::of(&store), ID).await?;
    session.submit("payer", "Ada").await?;
    let first = serve(&stalls).await?;
    while log.lines().is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stalls.freeze(true);
    // Its lease runs out.
    let stalled = head(&store).await?;
    let by = stalled.holder.clone().ok_or_else(|| Error::new("nobody holds it"))?.by;
    store.append(&Append::new(stalled).by(by).due(Duration::ZERO)).await?;
    let second = serve(&Process::of(&store)).await?;
    session.submit("payer", "Bob").await?;
    while log.lines().len() < 2 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Both go on with the session, each from what it knows.
    stalls.freeze(false);
    go.add_permits(1);
    until_ended().await?;
    session.submit("payer", "Cem").await?;
    until_ended().await?;
    let (asked, results) = turns(&store).await?;
    assert_eq!(asked, ["Ada", "Bob", "Cem"]);
    assert!(results[0].ends_with("it may have had effects"), "{results:?}");
    assert_eq!(results[1..], ["paid Bob", "paid Cem"]);
    assert_eq!(log.lines(), asked);
    first.shutdown(END).await;
    second.shutdown(END).await;
    Ok(())
}

/// Two resumes of one suspended run, as by a double click, both execute what comes after it
/// (<https://github.com/mastra-ai/mastra/issues/20443>, <https://github.com/aegra/aegra/issues/253>). A25, F5
#[tokio::test]
async fn of_two_processes_that_approve_and_resume_a_session_at_once_one_executes_the_call() -> Result<()> {
    let mut held = 0;
    for delay in 0..DELAYS {
        let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(1)));
        let agent = payer(pay(&log, &go)?.middleware(Approval::by_interrupt()))?;
        let session = Session::open(&Process::of(&store), ID).await?;
        assert!(agent.ask("Ada").session(&session).await.expect_err("a question").is_interrupted());
        let id = session.questions()[0].id.clone();
        let both = [0, delay].map(|delay| {
            let (process, agent, id) = (Process::of(&store), &agent, &id);
            async move {
                yields(delay).await;
                let session = Session::open(&process, ID).await?;
                let answered = session.answer(id, Decision::Approve).await;
                // Behind the end of the other run, the question is gone.
                let is_late = matches!(answered, Err(AnswerError::Answered { .. } | AnswerError::Unknown { .. }));
                assert!(answered.is_ok() || is_late, "{answered:?}");
                let resumed = agent.resume(&session).await.map(|answer| answer.text());
                Ok::<_, Error>((answered.is_ok(), resumed))
            }
        });
        let both = join_all(both).await.into_iter().collect::<Result<Vec<_>>>()?;
        assert_eq!(both.iter().filter(|(is_accepted, _)| *is_accepted).count(), 1, "{delay}: {both:?}");
        assert_eq!(both.iter().filter(|(_, resumed)| resumed.is_ok()).count(), 1, "{delay}: {both:?}");
        assert_eq!(log.lines(), ["Ada"], "{delay}: {both:?}");
        assert_eq!(turns(&store).await?, (vec!["Ada".to_owned()], vec!["paid Ada".to_owned()]), "{delay}");
        held += both.iter().filter(|(_, resumed)| resumed.as_ref().is_err_and(is_held)).count();
    }
    assert!(held > 0, "no resume came while the other one was under way");
    Ok(())
}

/// Two servers that go on with one session both append their events, and the mixed history stays broken
/// (<https://github.com/google/adk-python/issues/4751>). A24
#[tokio::test]
async fn messages_of_two_processes_at_once_are_in_the_history_once_each_with_its_own_turn() -> Result<()> {
    let mut held = 0;
    for delay in 0..DELAYS {
        let (store, log, go) = (MemoryStore::new(), Log::default(), Arc::new(Semaphore::new(1)));
        let agent = payer(pay(&log, &go)?)?;
        let both = [("Ada", 0), ("Bob", delay)].map(|(name, delay)| {
            let (process, agent) = (Process::of(&store), &agent);
            async move {
                let session = Session::open(&process, ID).await?;
                yields(delay).await;
                for refused in 0.. {
                    match agent.ask(name).session(&session).await {
                        Err(error) if is_held(&error) => yield_now().await,
                        ended => return ended.map(|answer| (answer.text(), refused)),
                    }
                }
                unreachable!()
            }
        });
        for ended in join_all(both).await {
            let (answer, refused) = ended?;
            assert_eq!(answer, "Done.", "{delay}");
            held += refused;
        }
        let (asked, results) = turns(&store).await?;
        let mut sorted = asked.clone();
        sorted.sort();
        assert_eq!(sorted, ["Ada", "Bob"], "{delay}");
        assert_eq!(results, asked.iter().map(|name| format!("paid {name}")).collect::<Vec<_>>(), "{delay}");
        assert_eq!(log.lines(), asked, "{delay}");
    }
    assert!(held > 0, "no process came while the other one was at work");
    Ok(())
}
