//! The process that is killed: it runs an agent on a session in a database, and goes on where another was killed.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use emitree::agent::{
    Agent, AgentRun, AnswerError, ChatModel, ChatRequest, Reply, Role, ScriptedModel, Session, Tool, tool_fn,
};
use emitree::middleware::Runs;
use emitree::middleware::approval::{Approval, Decision};
use emitree::middleware::store::{Filter, Holder, Lease, Store, StoreError};
use emitree::{Error, Result, RunContext, for_tree};
use emitree_stores::SqliteStore;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::points::{Log, Points};

const ID: &str = "order";
/// The time for which a process that was killed holds the session.
pub(crate) const LEASE: Duration = Duration::from_millis(200);
/// The time that a tool works before its effect, and after it.
const WORK: Duration = Duration::from_millis(3);

#[derive(Deserialize, JsonSchema)]
struct Text {
    text: String,
}

/// A file outside, with a line for each effect.
#[derive(Clone)]
struct Target(PathBuf);

impl Target {
    fn has(&self, key: &str) -> bool {
        fs::read_to_string(&self.0).unwrap_or_default().lines().any(|line| line.split(' ').next() == Some(key))
    }

    fn add(&self, key: &str, effect: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        file.write_all(format!("{key} {effect}\n").as_bytes())?;
        file.sync_all()
    }
}

/// A tool with an effect. If it is idempotent, its target knows the keys.
fn tool(name: &'static str, target: &Target, log: &Arc<Log>, is_idempotent: bool) -> Result<Tool> {
    let target = target.clone();
    let log = Arc::clone(log);
    let tool = tool_fn(name, "Has an effect", move |Text { text }: Text, ctx: RunContext| {
        let target = target.clone();
        let log = Arc::clone(&log);
        async move {
            let key = ctx.key().map(|key| key.to_string()).unwrap_or_default();
            let effect = format!("{name} {text}");
            log.add(&["call", &effect, &key]);
            tokio::time::sleep(WORK).await;
            log.point(&["before", &format!("effect {key}")]);
            if !is_idempotent || !target.has(&key) {
                target.add(&key, &effect)?;
            }
            log.point(&["after", &format!("effect {key}")]);
            tokio::time::sleep(WORK).await;
            Ok(effect)
        }
    })?;
    Ok(if is_idempotent { tool.idempotent() } else { tool })
}

/// A model that makes the calls of its turns, one turn after another. Then it answers with the results of the last.
fn model(name: &'static str, turns: Value, log: &Arc<Log>) -> Result<ChatModel> {
    let log = Arc::clone(log);
    let script = ScriptedModel::by(name, move |request: &ChatRequest| {
        let turn = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
        log.add(&["model", name, &(turn + 1).to_string()]);
        let Some(calls) = turns[turn].as_array() else {
            let results = request.messages.iter().flat_map(|message| message.tool_results());
            let texts: Vec<_> = results.map(|result| result.response.as_str().unwrap_or_default()).collect();
            return Reply::text(texts.join("; "));
        };
        let call = |call: &Value| {
            let (name, text) = call.as_str().and_then(|call| call.split_once(' ')).unwrap_or_default();
            (name.to_owned(), json!({ (if name == "helper" { "task" } else { "text" }): text }))
        };
        Reply::calls(calls.iter().map(call))
    });
    Ok(ChatModel::new(script)?)
}

/// An agent with ten calls in four turns: half of the tools are idempotent, two calls are a sub-agent's, and a person
/// has to approve one.
fn agent(target: &Target, log: &Arc<Log>) -> Result<Agent> {
    let note = tool("note", target, log, true)?;
    let pay = tool("pay", target, log, false)?;
    let transfer = tool("transfer", target, log, false)?;
    let turns = json!([["note d", "pay e"]]);
    let helper = Agent::builder("helper", model("helper", turns, log)?).tool(note.clone()).tool(pay.clone()).build()?;
    let turns = json!([["note a", "pay b", "note c"], ["helper work"], ["transfer f", "note g", "pay h", "note i"]]);
    let approval = Approval::by_interrupt().runs(Runs::named("transfer"));
    Agent::builder("main", model("main", turns, log)?)
        .tool(note)
        .tool(pay)
        .tool(transfer)
        .tool(helper.as_tool("Helps"))
        .middleware(for_tree(approval))
        .build()
}

/// Waits until the lease of a process that was killed has run out.
async fn wait_for(holder: &Holder) {
    tokio::time::sleep(holder.until.duration_since(SystemTime::now()).unwrap_or_default()).await;
}

/// Goes on until the agent has answered.
pub(crate) async fn live(folder: &Path, stop: Option<usize>, swallowed: Option<String>) -> Result<()> {
    let log = Log::open(&folder.join("log"), stop)?;
    log.add(&["start"]);
    let store = Points::new(SqliteStore::open(folder.join("agents.db")).await?, &log, swallowed);
    let agent = agent(&Target(folder.join("effects")), &log)?;
    loop {
        // What no list has would never go on.
        let is_listed = !store.list(&Filter::unfinished()).await?.is_empty();
        if !is_listed && store.load(ID).await?.is_some() {
            return Ok(());
        }
        let session = Session::open(&store, ID).lease(Lease::new().time(LEASE)).await?;
        match go_on(&agent, &session).await {
            Err(error) if error.is_interrupted() => {}
            Err(error) => match error.find::<StoreError>() {
                Some(StoreError::Held { holder, .. }) => wait_for(holder).await,
                // Another process has ended the run meanwhile.
                None if store.list(&Filter::unfinished()).await?.is_empty() => return Ok(()),
                _ => return Err(error),
            },
            Ok(()) => return Ok(()),
        }
    }
}

async fn go_on(agent: &Agent, session: &Session) -> Result<()> {
    for question in session.questions() {
        match session.answer(&question.id, Decision::Approve).await {
            Err(AnswerError::NotStored { error, .. }) => return Err(Error::from(error)),
            // Another process was first.
            Err(AnswerError::Answered { .. } | AnswerError::Unknown { .. }) => {}
            answered => answered?,
        }
    }
    if session.history().messages().is_empty() {
        agent.ask("Work.").session(session).once("work").await?;
    } else {
        agent.resume(session).await?;
    }
    Ok(())
}
