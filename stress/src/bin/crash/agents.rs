//! The agents of a process.

use std::sync::Arc;

use emitree::agent::{Agent, ChatModel, ChatRequest, Reply, Role, ScriptedModel, Tool, tool_fn};
use emitree::middleware::Runs;
use emitree::middleware::approval::Approval;
use emitree::{Result, RunContext, for_tree};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::log::Log;
use crate::target::Target;

#[derive(Deserialize, JsonSchema)]
struct Text {
    text: String,
}

/// A tool with an effect. If it is idempotent, its target knows the keys.
fn tool(name: &'static str, target: &Target, log: &Arc<Log>, is_idempotent: bool) -> Result<Tool> {
    let (target, log) = (target.clone(), Arc::clone(log));
    let tool = tool_fn(name, "Has an effect", move |Text { text }: Text, ctx: RunContext| {
        let (target, log) = (target.clone(), Arc::clone(&log));
        async move { target.work(&log, format!("{name} {text}"), &ctx, is_idempotent).await }
    })?;
    Ok(if is_idempotent { tool.idempotent() } else { tool })
}

/// A model that makes the calls of its turns, one turn after another. Then it answers with all results. Messages of the
/// user change nothing.
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
pub(crate) fn main(target: &Target, log: &Arc<Log>) -> Result<Agent> {
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

/// The agent of a step of the job.
pub(crate) fn clerk(target: &Target, log: &Arc<Log>) -> Result<Agent> {
    let note = tool("note", target, log, true)?;
    Agent::builder("clerk", model("clerk", json!([["note m"]]), log)?).tool(note).build()
}
