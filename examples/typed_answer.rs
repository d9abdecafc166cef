//! Makes a model answer with a value of a Rust type.
//!
//! ```text
//! cargo run --example typed_answer -- "Ada Lovelace, born 1815"
//! ```
//!
//! A scripted model reads the name and the year out of the text. At first it forgets the year, so its answer does not fit
//! the type and goes back to it with the reason. Without a year in the text, no answer fits, and the run fails.

use emitree::Result;
use emitree::agent::built_in::Structured;
use emitree::agent::{Agent, AgentRun, ChatModel, ChatRequest, Reply, ScriptedModel};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

#[path = "shared/help.rs"]
mod help;

#[derive(Debug, Deserialize, JsonSchema)]
struct Person {
    name: String,
    born: u32,
}

/// Answers as a model would: first incomplete, and then with what the text says.
fn answer(request: &ChatRequest) -> Reply {
    let mut texts = request.messages.iter().map(|message| message.text());
    let text = texts.next().unwrap_or_default();
    let (name, rest) = text.split_once(',').unwrap_or((&text, ""));
    let born = rest.split_whitespace().find_map(|word| word.parse::<u32>().ok());
    let is_corrected = texts.any(|text| text.starts_with("Your answer does not fit"));
    match born.filter(|_| is_corrected) {
        Some(born) => Reply::text(json!({"name": name, "born": born}).to_string()),
        None => Reply::text(json!({ "name": name }).to_string()),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    if help::is_asked(include_str!("typed_answer.rs")) {
        return Ok(());
    }
    let question = std::env::args().nth(1).unwrap_or_else(|| "Ada Lovelace, born 1815".to_owned());
    let agent = Agent::builder("historian", ChatModel::new(ScriptedModel::by("scripted", answer))?).build()?;
    let answer = agent.ask(question).with(Structured::of::<Person>()).await?;
    for message in &answer.messages {
        println!("{}: {}", message.role.as_str(), message.text());
    }
    let Person { name, born } = answer.structured()?;
    println!("-- {name} was born in {born}, after {} turns", answer.turns);
    Ok(())
}
