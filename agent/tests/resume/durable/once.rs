//! Runs that several processes ask for with one id.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use emitree_agent::{Agent, AgentRun, ChatModel, Reply, ScriptedModel, Session};
use emitree_middleware::store::{Lease, MemoryStore, StoreError};
use emitree_runtime::{Error, Result, map_output};

use crate::durable::process::{Kill, Process};
use crate::durable::{by_turn, payer};
use crate::support::{Log, texts};

const ID: &str = "order-17";

fn guide(asked: &Arc<AtomicUsize>) -> Result<Agent> {
    let asked = Arc::clone(asked);
    let model = ScriptedModel::by("test", move |_| {
        let number = asked.fetch_add(1, Ordering::SeqCst) + 1;
        Reply::text(format!("Answer {number}."))
    });
    Agent::builder("guide", ChatModel::new(model)?).build()
}

/// A27
#[tokio::test]
async fn of_several_processes_that_ask_once_one_asks_and_the_others_get_its_answer() -> Result<()> {
    let (store, asked) = (MemoryStore::new(), Arc::default());
    let processes = (0..8).map(|_| {
        let (store, asked) = (store.clone(), Arc::clone(&asked));
        async move {
            let session = Session::open(&Process::of(&store), ID).await?;
            loop {
                match guide(&asked)?.ask("Go.").session(&session).once("order-17/1").await {
                    Err(error) if matches!(error.find::<StoreError>(), Some(StoreError::Held { .. })) => {
                        tokio::task::yield_now().await;
                    }
                    answer => return answer.map(|answer| answer.text()),
                }
            }
        }
    });
    for answer in futures_util::future::join_all(processes).await {
        assert_eq!(answer?, "Answer 1.");
    }
    let session = Session::open(&Process::of(&store), ID).await?;
    assert_eq!((asked.load(Ordering::SeqCst), texts(&session)), (1, vec!["Go.".to_owned(), "Answer 1.".to_owned()]));
    // Its answer is known when others have asked, and after snapshots.
    guide(&asked)?.ask("And then?").session(&session).once("order-17/2").await?;
    let json = serde_json::to_string(&session)?;
    let copy: Session = serde_json::from_str(&json)?;
    for session in [&session, &copy] {
        let answer = guide(&asked)?.ask("Go.").session(session).once("order-17/1").await?;
        assert_eq!((answer.text().as_str(), answer.messages.len()), ("Answer 1.", 1));
        assert_eq!(texts(session), ["Go.", "Answer 1.", "And then?", "Answer 2."]);
    }
    Ok(())
}

/// A22, A27
#[tokio::test]
async fn a_process_that_asks_once_goes_on_with_the_run_of_one_that_was_killed() -> Result<()> {
    for number in 2..40 {
        let (store, log, asked) = (MemoryStore::new(), Log::default(), Arc::default());
        let process = Process::killed_at(&store, Kill::After(number));
        let lease = Lease::new().time(Duration::from_millis(1));
        let session = Session::open(&process, ID).lease(lease).await?;
        let agent = payer(by_turn(&asked), &log)?;
        let is_killed = tokio::select! {
            ended = agent.ask("Pay.").session(&session).once("1") => { ended?; false }
            () = process.killed() => true,
        };
        drop(session);
        let next = Session::open(&Process::killed_at(&store, Kill::Never), ID).await?;
        let answer = payer(by_turn(&asked), &log)?.ask("Pay.").session(&next).once("1").await?;
        assert_eq!((answer.text().as_str(), texts(&next)[0].as_str()), ("Done.", "Pay."), "{number}");
        assert_eq!(texts(&next).iter().filter(|text| *text == "Pay.").count(), 1, "{number}");
        assert!(asked.load(Ordering::SeqCst) <= 4, "{number}");
        if !is_killed {
            return Ok(());
        }
    }
    panic!("the run has more commits");
}

#[tokio::test]
async fn a_run_that_cannot_be_asked_for_once_says_why() -> Result<()> {
    let asked = Arc::default();
    let error = guide(&asked)?.ask("Go.").once("1").await.expect_err("no session").to_string();
    assert_eq!(error, "`.once(\"1\")` needs a session, which knows the run: add `.session(&session)`");

    // It was left, and another run has begun.
    let session = Session::new();
    let fails = map_output(|_: &mut emitree_agent::AgentOutput, _: &_| Err(Error::new("broken")));
    guide(&asked)?.ask("Go.").session(&session).once("1").middleware(fails).await.expect_err("broken");
    guide(&asked)?.ask("Other.").session(&session).await?;
    let error = guide(&asked)?.ask("Go.").session(&session).once("1").await.expect_err("left").to_string();
    assert!(error.starts_with("the run `1` was left without an answer"), "{error}");

    // Its answer was withheld.
    let denies = map_output(|_: &mut emitree_agent::AgentOutput, _: &_| Err(Error::denied("desk", "no")));
    guide(&asked)?.ask("Go.").session(&session).once("2").middleware(denies).await.expect_err("denied");
    let error = guide(&asked)?.ask("Go.").session(&session).once("2").await.expect_err("withheld").to_string();
    assert!(error.contains("or its answer was withheld"), "{error}");
    Ok(())
}
