//! Hands a conversation over to another agent, and prints each step.
//!
//! ```text
//! cargo run --example handoff -- "My invoice is wrong"
//! ```
//!
//! Scripted models answer: the first transfers questions about invoices, and the second transfers all others back.

use std::sync::OnceLock;

use emitree::Result;
use emitree::agent::kinds::{HandedOff, Handoff};
use emitree::agent::{Agent, AgentRun, ChatModel, ChatRequest, Reply, Role, ScriptedModel, Session};
use serde_json::json;

#[path = "shared/help.rs"]
mod help;

static SUPPORT: OnceLock<Agent> = OnceLock::new();

fn transfer(to: &str, reason: &str) -> Reply {
    Reply::calls([(format!("transfer_to_{to}"), json!({ "reason": reason }))])
}

fn question(request: &ChatRequest) -> String {
    let user = request.messages.iter().rfind(|message| message.role == Role::User);
    user.map(|message| message.text()).unwrap_or_default()
}

fn support(request: &ChatRequest) -> Reply {
    if question(request).contains("invoice") {
        return transfer("billing", "a question about an invoice");
    }
    Reply::text("Have you tried turning it off and on again?").in_pieces(8)
}

fn billing(request: &ChatRequest) -> Reply {
    if question(request).contains("invoice") {
        return Reply::text("You have paid twice. The money comes back on Friday.").in_pieces(8);
    }
    transfer("support", "not about an invoice")
}

#[tokio::main]
async fn main() -> Result<()> {
    if help::is_asked(include_str!("handoff.rs")) {
        return Ok(());
    }
    let billing = Agent::builder("billing", ChatModel::new(ScriptedModel::by("billing", billing))?)
        .handoff(Handoff::later("support", "All other questions", || SUPPORT.get().cloned()))
        .build()?;
    let support = Agent::builder("support", ChatModel::new(ScriptedModel::by("support", support))?)
        .handoff(Handoff::to(&billing, "Questions about invoices"))
        .build()?;
    let support = SUPPORT.get_or_init(|| support);

    let session = Session::new();
    let asked = std::env::args().nth(1).unwrap_or_else(|| "My invoice is wrong".to_owned());
    ask(support, &asked, &session).await?;
    // The user stays with the agent that answered; this one passes the next question back.
    ask(&billing, "And my printer is broken.", &session).await
}

async fn ask(agent: &Agent, text: &str, session: &Session) -> Result<()> {
    println!("you: {text}");
    let run = agent.ask(text).session(session).on_token(|token| println!("   ... {}", token.text()));
    let print = |event: &mut HandedOff| println!("-- {} -> {}: {}", event.from, event.to, event.reason);
    let answer = run.on("**.handoff", move |event: &mut HandedOff, _| print(event)).await?;
    println!("{}: {}", answer.last_agent(), answer.text());
    Ok(())
}
