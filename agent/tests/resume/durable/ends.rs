//! The stored session is the one that the handle holds, however a run ends (A24).

use std::future::{IntoFuture, pending};
use std::time::Duration;

use emitree_agent::{Agent, AgentInput, AgentOutput, AgentRun, ChatModel, Message, ScriptedModel, Session, tool_fn};
use emitree_middleware::store::{EntryStatus, MemoryStore, Store};
use emitree_runtime::{AbortHandle, Error, Interrupt, Result, RunContext, map_input, map_output, map_output_async};
use serde_json::json;

use super::process::{Kill, Process};
use crate::support::{Text, refuse_bad};

/// How a run ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Answer,
    Changed,
    Refused,
    Retried,
    Asked,
    Paused,
    Failed,
    Aborted,
    Dropped,
    TimedOut,
}

/// An agent whose only turn calls a tool, which may wait for ever.
fn agent(end: End, session: &Session) -> Result<Agent> {
    let script = ScriptedModel::new("test").call("work", json!({"text": "a"}));
    let script = match end {
        End::Failed => script.error(Error::new("no network")),
        End::Retried => script.text("bad").text("good"),
        _ => script.text("Done."),
    };
    let session = session.clone();
    let work = tool_fn("work", "Works", move |_: Text, ctx: RunContext| {
        let session = session.clone();
        async move {
            match end {
                End::Paused => session.pause(),
                End::Asked => _ = ctx.ask::<bool>(Interrupt::new("sure", json!({})))?,
                End::Aborted | End::Dropped | End::TimedOut => pending().await,
                _ => {}
            }
            Ok("worked")
        }
    })?
    .idempotent();
    let agent = Agent::builder("tester", ChatModel::new(script)?).tool(work);
    let changed = move |output: &mut AgentOutput, _: &RunContext| match end {
        End::Changed => {
            output.answer = Message::assistant("Changed.");
            Ok(())
        }
        End::Refused => Err(Error::denied("policy", "not on Sundays")),
        _ => Ok(()),
    };
    agent.middleware(map_output(changed)).middleware(map_output(refuse_bad)).build()
}

async fn run(end: End, agent: Agent, session: &Session) {
    let run = agent.ask("Go.").session(session);
    match end {
        End::Aborted => {
            let handle = AbortHandle::new();
            let aborts = async {
                settle().await;
                handle.abort("enough");
            };
            tokio::join!(aborts, run.abort_on(&handle)).1.expect_err("it is aborted");
        }
        End::Dropped => {
            tokio::select! { _ = run => unreachable!(), () = settle() => {} }
            emitree_runtime::wait_for_ends(Duration::from_secs(5)).await;
        }
        End::TimedOut => _ = run.timeout(Duration::from_millis(100)).await.expect_err("it takes too long"),
        End::Retried => _ = run.max_middleware_retries(1).await,
        _ => _ = run.await,
    }
}

/// Lets the other futures go on until they wait for ever.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[tokio::test(start_paused = true)]
async fn the_stored_session_is_the_one_that_the_handle_holds_after_each_kind_of_end() -> Result<()> {
    for (end, status, texts) in [
        (End::Answer, EntryStatus::Ended, "Done."),
        (End::Changed, EntryStatus::Ended, "Changed."),
        (End::Refused, EntryStatus::Failed, "(withheld by policy)"),
        (End::Retried, EntryStatus::Ended, "good"),
        (End::Asked, EntryStatus::Waiting, ""),
        (End::Paused, EntryStatus::Paused, ""),
        (End::Failed, EntryStatus::Failed, ""),
        (End::Aborted, EntryStatus::Running, ""),
        (End::Dropped, EntryStatus::Running, ""),
        (End::TimedOut, EntryStatus::Failed, ""),
    ] {
        let store = MemoryStore::new();
        let session = Session::open(&store, "order-17").await?;
        run(end, agent(end, &session)?, &session).await;
        let reread = Session::open(&Process::killed_at(&store, Kill::Never), "order-17").await?;
        assert_eq!(serde_json::to_value(&reread)?, serde_json::to_value(&session)?, "{end:?}");
        let head = store.load("order-17").await?.expect("an entry").head;
        assert_eq!((head.status, head.holder), (status, None), "{end:?}");
        assert_eq!(head.questions.len(), session.questions().len(), "{end:?}");
        let last = session.history().messages().last().map(|last| last.text());
        assert_eq!(last.as_deref(), Some(texts), "{end:?}");
    }
    Ok(())
}

/// A27
#[tokio::test]
async fn a_run_that_is_refused_before_it_has_the_session_leaves_it_as_it_is() -> Result<()> {
    let store = MemoryStore::new();
    let session = Session::open(&store, "order-17").await?;
    let agent = Agent::builder("tester", ChatModel::new(ScriptedModel::new("test").text("Done."))?).build()?;
    session.pause();
    agent.ask("Go.").session(&session).await.expect_err("it is paused");
    let before = store.load("order-17").await?;
    assert_eq!(before.as_ref().expect("an entry").head.status, EntryStatus::Paused);

    let refuses = map_input(|_: &mut AgentInput, _: &RunContext| Err(Error::denied("policy", "not on Sundays")));
    let error = agent.resume(&session).middleware(refuses).await.expect_err("it is refused");
    assert!(error.is_denied(), "{error}");
    assert_eq!(store.load("order-17").await?, before);
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    Ok(())
}

/// A24, A27
#[tokio::test(start_paused = true)]
async fn a_run_that_loses_its_claim_while_it_ends_leaves_the_status_that_another_process_has_stored() -> Result<()> {
    let store = MemoryStore::new();
    let process = Process::of(&store);
    let session = Session::open(&process, "order-17").await?;
    let agent = |script: ScriptedModel| Ok::<_, Error>(Agent::builder("tester", ChatModel::new(script)?));
    let (freezes, saves) = (process.clone(), session.clone());
    let freeze = map_output_async(move |_: &mut AgentOutput, _: &RunContext| {
        let (freezes, saves) = (freezes.clone(), saves.clone());
        Box::pin(async move {
            // A commit is under way when the run gives its claim up.
            freezes.freeze(true);
            saves.set_meta("user", "Ada")?;
            tokio::spawn(async move { saves.saved().await });
            settle().await;
            Ok(())
        })
    });
    let ending = agent(ScriptedModel::new("test").text("Done."))?.middleware(freeze).build()?;
    let resuming = agent(ScriptedModel::new("test"))?.build()?;
    let takes_over = async {
        settle().await;
        settle().await;
        let other = Session::open(&Process::killed_at(&store, Kill::Never), "order-17").await?;
        assert_eq!(resuming.resume(&other).await?.text(), "Done.");
        process.freeze(false);
        Ok::<_, Error>(())
    };
    let (ended, took_over) = tokio::join!(ending.ask("Go.").session(&session).into_future(), takes_over);
    took_over?;
    ended.expect_err("it has lost its claim");
    let head = store.load("order-17").await?.expect("an entry").head;
    assert_eq!((head.status, head.holder), (EntryStatus::Ended, None));
    Ok(())
}
