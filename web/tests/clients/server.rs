//! A server for `scripts/web-test`: an agent whose model does what it is asked to do.
//!
//! ```text
//! cargo run -p emitree-web --example web_test_server    prints its address; ends with its input
//! ```

use std::io::Read;
use std::time::Duration;

use axum::Router;
use axum::http::request::Parts;
use emitree_agent::kinds::Handoff;
use emitree_agent::{
    Agent, AgentBuilder, ChatModel, ChatRequest, ChatResponse, Delta, Reply, Role, ScriptedModel, Tool, tool_fn,
};
use emitree_middleware::Runs;
use emitree_middleware::approval::Approval;
use emitree_middleware::store::MemoryStore;
use emitree_runtime::{Error, Guard, Interrupt, Result, RunContext, for_tree};
use emitree_web::Chat;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;

#[derive(Deserialize, JsonSchema)]
struct Pay {
    to: String,
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[tokio::main]
async fn main() -> Result<()> {
    let agent = agent()?;
    let owner =
        |parts: &Parts| Some(parts.headers.get("x-user").map_or("ada", |user| user.to_str().unwrap_or("?")).to_owned());
    let chat = Chat::new(agent.clone(), MemoryStore::new()).owner(owner);
    let kept = Chat::new(agent, MemoryStore::new()).owner(owner).keep_running().show("**.progress")?;
    let app = Router::new()
        .nest("/agent", chat.ag_ui())
        .nest("/chat", chat.ui_messages())
        .nest("/kept/agent", kept.ag_ui())
        .nest("/kept/chat", kept.ui_messages());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    // The server ends with the program that has started it.
    std::thread::spawn(|| {
        _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    axum::serve(listener, app).await?;
    Ok(())
}

fn agent() -> Result<Agent> {
    let writer = built("writer").build()?;
    let clerk = built("clerk").build()?;
    built("guide")
        .tool(writer.as_tool("Writes"))
        .handoff(Handoff::to(&clerk, "Invoices"))
        .max_middleware_retries(1)
        .build()
}

fn built(name: &str) -> AgentBuilder {
    let model = ChatModel::new(ScriptedModel::by("scripted", reply));
    let agent = Agent::builder(name, model.unwrap_or_else(|error| panic!("{error}")));
    let agent = tools().into_iter().fold(agent, AgentBuilder::tool);
    agent
        .hooks(|hooks| _ = hooks.model_call(|stack| stack.guard(NoCodes)))
        .middleware(for_tree(Approval::by_interrupt().runs(Runs::named("pay"))))
}

fn tools() -> Vec<Tool> {
    let pay = tool_fn("pay", "Pays", |Pay { to }: Pay, _: RunContext| async move { Ok(format!("paid {to}")) });
    let paint = tool_fn("paint", "Paints", |_: Nothing, ctx: RunContext| async move {
        let colour: String = ctx.ask(Interrupt::new("colour", json!({"choices": ["red", "blue"]})))?;
        Ok(format!("painted {colour}"))
    });
    let wait = tool_fn("wait", "Waits", |_: Nothing, ctx: RunContext| async move {
        ctx.emitter().emit("progress", &mut json!({"percent": 50})).await?;
        tokio::time::sleep(Duration::from_secs(3600)).await;
        Ok("waited")
    });
    let fail =
        tool_fn("fail", "Fails", |_: Nothing, _: RunContext| async { Err::<(), _>(Error::new("the dice are gone")) });
    let deny = tool_fn("deny", "Is denied", |_: Nothing, _: RunContext| async {
        Err::<(), _>(Error::denied("policy", "no dice"))
    });
    let tools = [pay.map(Tool::idempotent), paint.map(Tool::idempotent), wait, fail, deny];
    tools.into_iter().map(|tool| tool.unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// Withholds replies with a code.
#[derive(Debug)]
struct NoCodes;

impl Guard<ChatModel> for NoCodes {
    async fn check_output(&self, output: &ChatResponse, _: &RunContext) -> Result<()> {
        if output.message.text().contains("1815") { Err(Error::new("no codes")) } else { Ok(()) }
    }
}

/// Does what the last message of the user says: `text, call pay, text` or `text, fail denied`, one word after the other.
fn reply(request: &ChatRequest) -> Reply {
    let question = request.messages.iter().rposition(|message| message.role == Role::User);
    let script = question.map(|at| request.messages[at].text()).unwrap_or_default();
    let turn =
        request.messages.iter().skip(question.unwrap_or_default()).filter(|message| message.role == Role::Assistant);
    let turn = turn.count();
    let Some(step) = script.split(';').nth(turn) else { return Reply::text("Done.").in_pieces(2) };
    let mut deltas = Vec::new();
    let mut calls = 0;
    let mut words = step.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "think" => deltas.push(Delta::Reasoning("Let me see.".to_owned())),
            "text" => deltas.extend(["Everest ", "is high."].map(|text| Delta::Text(text.to_owned()))),
            "code" => deltas.push(Delta::Text("The code is 1815.".to_owned())),
            "call" | "cut" => {
                let name = words.next().unwrap_or_default();
                let arguments = match name {
                    "pay" => json!({"to": "Bob \"B\""}),
                    "writer" => json!({"task": words.next().unwrap_or_default().replace('_', " ")}),
                    name if name.starts_with("transfer") => json!({"reason": "an invoice"}),
                    _ => json!({}),
                };
                let arguments = arguments.to_string();
                let end = if word == "cut" { arguments.len() / 2 } else { arguments.len() };
                // Some servers give the calls of each reply the same ids.
                deltas.push(Delta::tool_call(calls, Some(format!("call_{calls}")), Some(name.to_owned()), ""));
                deltas.push(Delta::tool_call(calls, None, None, &arguments[..end]));
                calls += 1;
            }
            "wait" => {
                let hour = Duration::from_secs(3600);
                let before = if deltas.is_empty() { hour } else { Duration::ZERO };
                return Reply::deltas(deltas.into_iter().chain([Delta::Text("late".to_owned())])).slow(before, hour);
            }
            "fail" => return Reply::deltas(deltas).then_error(failure(words.next())),
            _ => {}
        }
    }
    Reply::deltas(deltas)
}

fn failure(kind: Option<&str>) -> Error {
    match kind {
        Some("denied") => Error::denied("policy", "not on Sundays"),
        Some("halted") => Error::halted("budget", "too many tokens"),
        Some("timeout") => Error::timed_out("no answer in 5 s"),
        _ => Error::new("the database at 10.0.0.7 is down"),
    }
}
