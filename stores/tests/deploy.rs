//! A new build of a program goes on with the session of an agent that a shutdown has stopped in the middle of a turn
//! (A22, A24, A26). The shutdown ends all runs of a process, so it has a file of its own.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree::abort::accept_runs;
use emitree::agent::built_in::CallLimit;
use emitree::agent::{Agent, AgentBuilder, AgentRun, ChatModel, History, ScriptedModel, Session, Tool, tool_fn};
use emitree::middleware::store::{EntryStatus, Filter, Store};
use emitree::{Result, RunContext, shutdown};
use emitree_stores::SqliteStore;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Notify;

const ID: &str = "order-17";

#[derive(Deserialize, JsonSchema)]
struct Text {
    text: String,
}

/// The calls of both builds.
type Calls = Arc<Mutex<Vec<String>>>;

/// A tool that adds its call to a list. In the first build, it then works for ever.
fn tool(name: &'static str, calls: &Calls, stuck: Option<Arc<Notify>>) -> Result<Tool> {
    let calls = Arc::clone(calls);
    let tool = tool_fn(name, "Works", move |Text { text }: Text, _: RunContext| {
        calls.lock().expect("no panic").push(format!("{name} {text}"));
        let stuck = stuck.clone();
        async move {
            if let Some(began) = stuck {
                began.notify_one();
                pending::<()>().await;
            }
            Ok(format!("{name} {text}"))
        }
    })?;
    Ok(tool)
}

fn builder(script: &ScriptedModel, prompt: &str) -> Result<AgentBuilder> {
    Ok(Agent::builder("worker", ChatModel::new(script.clone())?).prompt(prompt))
}

/// A22, A24, A26
#[tokio::test]
async fn a_new_build_goes_on_at_once_with_a_turn_that_a_shutdown_has_stopped() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("agents.db");
    let (calls, began) = (Calls::default(), Arc::new(Notify::new()));
    let says = |text: &str| json!({ "text": text });

    let script = ScriptedModel::new("test").calls([("note", says("a")), ("pay", says("b")), ("send", says("c"))]);
    let agent = builder(&script, "Be brief.")?
        .tool(tool("note", &calls, None)?)
        .tool(tool("pay", &calls, Some(Arc::clone(&began)))?)
        .tool(tool("send", &calls, None)?.exclusive())
        .with(CallLimit::tools().per_session(9))
        .build()?;
    let store = SqliteStore::open(&file).await?;
    // The lease is 30 s.
    let session = Session::open(&store, ID).await?;
    let run = tokio::spawn({
        let session = session.clone();
        async move { agent.ask("Work.").session(&session).await }
    });
    began.notified().await;
    let report = shutdown(Duration::from_secs(5)).await;
    assert!(report.is_complete(), "{report}");
    assert!(run.await.expect("no panic").expect_err("it is aborted").is_aborted());
    drop((session, store));
    accept_runs();

    let store = SqliteStore::open(&file).await?;
    let unfinished = store.list(&Filter::unfinished()).await?;
    assert_eq!((unfinished.len(), unfinished[0].status, &unfinished[0].holder), (1, EntryStatus::Running, &None));
    let script = ScriptedModel::new("test").call("check", says("d")).text("Done.");
    let agent = builder(&script, "Be polite.")?
        .tool(tool("note", &calls, None)?)
        .tool(tool("pay", &calls, None)?)
        .tool(tool("send", &calls, None)?)
        .tool(tool("check", &calls, None)?)
        .build()?;
    let session = Session::open(&store, ID).await?;
    // An earlier claim would be an error here.
    assert_eq!(agent.resume(&session).await?.text(), "Done.");

    assert_eq!(*calls.lock().expect("no panic"), ["note a", "pay b", "send c", "check d"]);
    let history = session.history();
    let results: Vec<_> = history.messages().iter().flat_map(|message| message.tool_results()).collect();
    let texts: Vec<_> = results.iter().map(|result| result.response.as_str().unwrap_or_default()).collect();
    assert_eq!((texts[0], &texts[2..]), ("note a", &["send c", "check d"][..]));
    assert!(results[1].is_error && texts[1].ends_with("it may have had effects"), "{}", texts[1]);
    serde_json::from_value::<History>(serde_json::to_value(&history)?)?;
    let requests = script.requests();
    let offered: Vec<_> = requests[0].tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(
        (requests[0].system.as_deref(), &offered[..]),
        (Some("Be polite."), &["note", "pay", "send", "check"][..])
    );
    let head = store.load(ID).await?.expect("an entry").head;
    assert_eq!((head.status, head.holder), (EntryStatus::Ended, None));
    Ok(())
}
