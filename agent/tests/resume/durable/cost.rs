//! What a session costs its store: each turn the same, however long the session is (A24).

use emitree_agent::{Agent, AgentRun, ChatModel, ChatRequest, Reply, Role, ScriptedModel, Session, Tool, tool_fn};
use emitree_middleware::approval::{Approval, Decision};
use emitree_middleware::store::MemoryStore;
use emitree_runtime::{Result, RunContext, for_tree};
use serde_json::json;

use crate::durable::process::Process;
use crate::support::Text;

const ID: &str = "order-17";

/// A model that makes calls of `echo`, and then answers.
fn calls(count: usize) -> ScriptedModel {
    ScriptedModel::by("test", move |request: &ChatRequest| match request.messages.last().map(|last| last.role) {
        Some(Role::User) => Reply::calls((0..count).map(|n| ("echo", json!({"text": format!("{n:04}")})))),
        _ => Reply::text("Done."),
    })
}

fn echo() -> Result<Tool> {
    Ok(tool_fn("echo", "Echoes", |args: Text, _: RunContext| async move { Ok(args.text) })?)
}

#[tokio::test]
async fn a_turn_costs_the_same_bytes_and_records_however_long_the_session_is() -> Result<()> {
    let process = Process::of(&MemoryStore::new());
    let session = Session::open(&process, ID).await?;
    let agent = Agent::builder("guide", ChatModel::new(calls(1))?).tool(echo()?).build()?;
    let long = std::env::var_os("EMITREE_LONG").is_some();
    let last = if long { 5_000 } else { 1_000 };
    let (mut first, mut checked) = (None, 0);
    for number in 1..=last {
        let before = process.added();
        agent.ask("Go.").session(&session).await?;
        let now = process.added();
        // The release of this run has made a snapshot.
        let [bytes, records] = [now[0] - before[0], now[1] - before[1]];
        if ![10, 11, 100, 101, 1_000, 999, 5_000, 4_999].contains(&number) || records < 10 {
            continue;
        }
        let (of_first, in_first) = *first.get_or_insert((bytes, records));
        checked += 1;
        // Only the digits of its number are more.
        assert!(records == in_first && bytes <= of_first + 60, "turn {number}: {bytes} bytes, {of_first} before");
    }
    assert!(checked >= 4, "{checked}");
    let (all, added) = (process.bytes(), process.added()[0]);
    assert!(all <= 4 * added, "{all} bytes with all snapshots, {added} without");
    Ok(())
}

/// Returns the bytes of a turn whose calls are made one after another.
async fn bytes_of_calls(count: usize) -> Result<usize> {
    let process = Process::of(&MemoryStore::new());
    let session = Session::open(&process, ID).await?;
    let agent = Agent::builder("guide", ChatModel::new(calls(count))?).tool(echo()?.exclusive()).build()?;
    agent.ask("Go.").session(&session).await?;
    Ok(process.bytes())
}

/// Returns the bytes of a turn whose calls ask a person, and of all answers.
async fn bytes_of_answers(count: usize) -> Result<usize> {
    let process = Process::of(&MemoryStore::new());
    let session = Session::open(&process, ID).await?;
    let approval = Approval::by_interrupt().of_kind("Tool");
    let agent = Agent::builder("guide", ChatModel::new(calls(count))?).tool(echo()?);
    let agent = agent.middleware(for_tree(approval)).build()?;
    agent.ask("Go.").session(&session).await.expect_err("questions");
    for question in session.questions() {
        session.answer(&question.id, Decision::Approve).await?;
    }
    assert_eq!(agent.resume(&session).await?.text(), "Done.");
    // Without the snapshot at the end of a run that has added more than 64 KiB (S10).
    Ok(process.added()[0])
}

#[tokio::test]
async fn the_bytes_of_a_turn_grow_linearly_with_its_calls_and_answers() -> Result<()> {
    let (few, many) = (bytes_of_calls(25).await?, bytes_of_calls(250).await?);
    assert!(many <= 11 * few, "calls: {few} and {many} bytes");
    let (few, many) = (bytes_of_answers(25).await?, bytes_of_answers(250).await?);
    assert!(many <= 11 * few, "answers: {few} and {many} bytes");
    Ok(())
}
