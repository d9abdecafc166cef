//! A process that is stopped for longer than its lease, while it holds the session of an agent (A24, A25, S7).

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use emitree::agent::{Agent, AgentRun, ChatModel, ChatRequest, Reply, ScriptedModel, Session, tool_fn};
use emitree::middleware::store::{EntryStatus, Lease, Store, StoreError};
use emitree::{Result, RunContext};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::place::Place;

const ID: &str = "order-17";
const FOLDER: &str = "EMITREE_TEST_FROZEN_FOLDER";
const PLACE: &str = "EMITREE_TEST_FROZEN_STORE";

#[derive(Deserialize, JsonSchema)]
struct Text {
    text: String,
}

/// An agent with two calls, one after another. Each is a line in the file `calls`, with the name of the process.
fn worker(folder: &Path, process: &'static str, wait: impl Fn() + Send + Sync + 'static) -> Result<Agent> {
    let (calls, wait) = (folder.join("calls"), Arc::new(wait));
    let work = tool_fn("work", "Works", move |Text { text }: Text, _: RunContext| {
        let (calls, wait) = (calls.clone(), Arc::clone(&wait));
        async move {
            let mut file = OpenOptions::new().create(true).append(true).open(calls)?;
            writeln!(file, "{process} {text}")?;
            tokio::task::spawn_blocking(move || wait()).await.expect("no panic");
            Ok(text)
        }
    })?;
    let model = ScriptedModel::by("test", |request: &ChatRequest| {
        match request.messages.iter().flat_map(|message| message.tool_results()).count() {
            0 => Reply::calls([("work", json!({"text": "a"}))]),
            1 => Reply::calls([("work", json!({"text": "b"}))]),
            _ => Reply::text("Done."),
        }
    });
    Agent::builder("worker", ChatModel::new(model)?).tool(work.idempotent()).build()
}

async fn open(place: &Place) -> Result<(Arc<dyn Store>, Session)> {
    let store = place.open().await;
    let session = Session::open(&store, ID).lease(Lease::new().time(Duration::from_millis(200))).await?;
    Ok((store, session))
}

#[tokio::test]
#[ignore = "the process that the test starts"]
async fn run_an_agent_that_waits_in_its_first_call() {
    let (Ok(folder), Some(place)) = (std::env::var(FOLDER), Place::of_process(PLACE)) else { return };
    let folder = Path::new(&folder);
    let (_store, session) = open(&place).await.expect("a session");
    let waits = || {
        println!("waits");
        _ = std::io::stdin().lines().next();
    };
    let agent = worker(folder, "first", waits).expect("an agent");
    let ended = agent.ask("Work.").session(&session).await.map(|answer| answer.text());
    println!("ended {ended:?}");
}

/// Another process, which is killed at the end.
struct Other(Child);

impl Other {
    fn start(folder: &Path, place: &Place) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command
            .args(["--exact", "--nocapture", "--ignored", "frozen::run_an_agent_that_waits_in_its_first_call"])
            .env(FOLDER, folder)
            .env(PLACE, place.as_str())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Self(command.spawn().expect("a process"))
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.0.id().to_string()]).status();
        assert!(status.expect("the program `kill`").success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Goes on with the session once the lease of the other process has run out.
async fn take_over(agent: &Agent, session: &Session) -> Result<String> {
    loop {
        let error = match agent.resume(session).await {
            Ok(answer) => return Ok(answer.text()),
            Err(error) => error,
        };
        let Some(StoreError::Held { holder, .. }) = error.find() else { return Err(error) };
        tokio::time::sleep(holder.until.duration_since(SystemTime::now()).unwrap_or_default()).await;
    }
}

/// A24, A25
#[tokio::test]
async fn a_process_that_was_stopped_for_longer_than_its_lease_begins_no_call_and_its_run_ends() -> Result<()> {
    let folder = tempfile::tempdir()?;
    assert_begins_no_call(folder.path(), &Place::file(folder.path())).await?;
    let folder = tempfile::tempdir()?;
    match Place::server() {
        Some(place) => assert_begins_no_call(folder.path(), &place).await,
        None => Ok(()),
    }
}

async fn assert_begins_no_call(folder: &Path, place: &Place) -> Result<()> {
    let mut first = Other::start(folder, place);
    let mut lines = BufReader::new(first.0.stdout.take().expect("an output")).lines().map_while(Result::ok);
    lines.find(|line| line == "waits").expect("the first process is in its first call");
    first.signal("-STOP");

    let (store, session) = open(place).await?;
    assert_eq!(take_over(&worker(folder, "second", || {})?, &session).await?, "Done.");
    let stored = || async { store.load(ID).await.map(|entry| entry.expect("an entry")) };
    let before = stored().await?;
    assert_eq!((before.head.status, &before.head.holder), (EntryStatus::Ended, &None));

    // The first call of the first process ends at once, or is aborted.
    first.0.stdin.take().expect("an input").write_all(b"\n")?;
    first.signal("-CONT");
    let ended = lines.find(|line| line.starts_with("ended")).expect("the run ends");
    assert!(ended.contains("lost its claim to another process"), "{ended}");
    let calls = fs::read_to_string(folder.join("calls"))?;
    assert_eq!(calls.lines().collect::<Vec<_>>(), ["first a", "second a", "second b"]);
    assert_eq!(stored().await?, before);
    Ok(())
}
