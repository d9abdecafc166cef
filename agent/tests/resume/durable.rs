//! A session that a store keeps (A24 to A27).

mod cost;
mod ends;
mod jobs;
mod keeping;
mod left;
mod once;
mod peers;
mod posts;
#[path = "../../../tests/support/process.rs"]
pub(crate) mod process;
mod served;
mod talking;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use emitree_agent::{
    Agent, AgentRun, ChatModel, ChatRequest, Hooks, Reply, Role, ScriptedModel, Session, Tool, hooks_fn, tool_fn,
};
use emitree_middleware::store::{EntryStatus, Filter, MemoryStore, Store};
use emitree_runtime::{Result, RunContext};
use serde_json::json;

use crate::durable::process::{Kill, Process};
use crate::support::{Log, Text, assert_valid, results, texts};

/// A tool whose effect is a line of a log.
fn effect(name: &'static str, log: &Log) -> Tool {
    let log = log.clone();
    tool_fn(name, "Has an effect", move |args: Text, ctx: RunContext| {
        let log = log.clone();
        async move {
            let key = ctx.key().expect("a call has a key");
            assert!(key.fence().is_some(), "the beginning of {key} is not stored");
            log.add(format!("{name} {} {key}", args.text));
            tokio::task::yield_now().await;
            Ok(format!("{name} {}", args.text))
        }
    })
    .expect("a tool")
}

/// A model that answers by the number of responses in the history.
fn by_turn(asked: &Arc<AtomicUsize>) -> ScriptedModel {
    let asked = Arc::clone(asked);
    ScriptedModel::by("test", move |request: &ChatRequest| {
        asked.fetch_add(1, Ordering::SeqCst);
        let says = |text: &str| json!({ "text": text });
        match request.messages.iter().filter(|message| message.role == Role::Assistant).count() {
            0 => Reply::calls([("pay", says("Ada")), ("note", says("a")), ("pay", says("Bob"))]),
            1 => Reply::calls([("note", says("b"))]),
            _ => Reply::text("Done."),
        }
    })
}

fn payer(model: ScriptedModel, log: &Log) -> Result<Agent> {
    let (pay, note) = (effect("pay", log), effect("note", log).idempotent());
    // A state that counts the responses.
    let counts = hooks_fn("counts", |hooks: &mut Hooks| {
        let responses = hooks.state::<u32>();
        hooks.on_action(move |_, ctx| responses.with(ctx, |responses| *responses += 1));
    });
    Agent::builder("payer", ChatModel::new(model)?).tool(pay).tool(note).with(counts).build()
}

/// Returns the session that another process would read now.
async fn reread(store: &MemoryStore) -> Result<Session> {
    Session::open(&Process::killed_at(store, Kill::Never), "order-17").await
}

/// A24, A27
#[tokio::test]
async fn a_run_is_stored_before_it_goes_on_and_another_process_reads_what_the_handle_holds() -> Result<()> {
    let (store, log, asked) = (MemoryStore::new(), Log::default(), Arc::default());
    let process = Process::of(&store);
    let session = Session::open(&process, "order-17").await?;
    assert_eq!(process.appends(), 0, "opening only reads");
    let answer = payer(by_turn(&asked), &log)?.ask("Pay.").session(&session).await?;
    assert_eq!((answer.text().as_str(), answer.turns), ("Done.", 3));
    assert_eq!(serde_json::to_value(reread(&store).await?)?, serde_json::to_value(&session)?);
    let head = store.load("order-17").await?.expect("an entry").head;
    assert_eq!((head.status, head.holder), (EntryStatus::Ended, None));
    assert!(store.list(&Filter::unfinished()).await?.is_empty());
    // The claim, the input, a response, 3 calls that begin at once, 3 results, the end of the turn, the second turn with
    // one call, the answer, and the end.
    assert!(process.appends() <= 16, "{}", process.appends());
    Ok(())
}

/// A24 to A27
#[tokio::test]
async fn a_process_that_is_killed_at_any_commit_loses_no_run_and_repeats_no_effect() -> Result<()> {
    let mut kills = 0;
    for number in 0.. {
        let mut is_over = true;
        for kill in [Kill::Before(number), Kill::After(number)] {
            let (store, log, asked) = (MemoryStore::new(), Log::default(), Arc::default());
            let process = Process::killed_at(&store, kill);
            let session = Session::open(&process, "order-17").await?;
            let agent = payer(by_turn(&asked), &log)?;
            let is_killed = tokio::select! {
                ended = agent.ask("Pay.").session(&session) => { ended?; false }
                () = process.killed() => true,
            };
            drop(session);
            is_over &= !is_killed;
            if !is_killed {
                continue;
            }
            kills += 1;
            check_after_kill(&store, &log, &asked, kill).await?;
        }
        if is_over {
            break;
        }
    }
    assert!(kills >= 20, "{kills}");
    Ok(())
}

async fn check_after_kill(store: &MemoryStore, log: &Log, asked: &Arc<AtomicUsize>, kill: Kill) -> Result<()> {
    let unfinished = store.list(&Filter::unfinished()).await?;
    let session = reread(store).await?;
    if texts(&session).is_empty() {
        // The process was killed before the input was stored: nothing has happened.
        assert_eq!((log.lines(), asked.load(Ordering::SeqCst)), (Vec::new(), 0));
        return Ok(());
    }
    let has_ended = session.history().messages().last().is_some_and(|last| last.text() == "Done.");
    assert_eq!(unfinished.len(), usize::from(!has_ended), "{kill:?}: the run is listed until it has ended");
    if !has_ended {
        let answer = payer(by_turn(asked), log)?.resume(&session).await?;
        assert_eq!(answer.text(), "Done.", "{kill:?}");
    }
    // The records of all processes make the session that the last one holds.
    assert_eq!(serde_json::to_value(reread(store).await?)?, serde_json::to_value(&session)?, "{kill:?}");
    // The state is stored with the response that it has counted.
    assert_eq!(session.state::<u32>("counts")?, Some(3), "{kill:?}");
    // The state is stored with the response that it has counted.
    assert_eq!(session.state::<u32>("counts")?, Some(3), "{kill:?}");
    let history = assert_valid(&session);
    let (mut lines, results) = (log.lines(), results(history.messages()));
    lines.sort();
    // The same key each time.
    let mut once = lines.clone();
    once.dedup();
    for paid in ["pay Ada", "pay Bob"] {
        let effects = lines.iter().filter(|line| line.starts_with(paid)).count();
        assert!(effects <= 1, "{kill:?}: {lines:?}");
        let said = results.iter().filter(|result| *result == paid).count();
        assert!(said <= effects, "{kill:?}: {results:?}");
        if effects == 0 {
            assert!(results.iter().any(|result| result.ends_with("it may have had effects")), "{kill:?}: {results:?}");
        }
    }
    assert_eq!(once.iter().filter(|line| line.starts_with("note")).count(), 2, "{kill:?}: {lines:?}");
    assert!(asked.load(Ordering::SeqCst) <= 4, "{kill:?}: 3 turns and one kill");
    Ok(())
}
