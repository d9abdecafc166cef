//! Lets a model that cannot call tools call them with text.
//!
//! ```text
//! cargo run --example react
//! cargo run --example react -- "How high is K2?"
//! ```
//!
//! A scripted model writes lines with prefixes, such as `Function Name:`. Its first reply has no thought, so it goes
//! back with what is wrong. The lines appear while the model writes them.

use std::io::Write;
use std::time::Duration;

use emitree::agent::kinds::{ReAct, ReActPartialUpdate, ReActRetry, ReActUpdate};
use emitree::agent::{Agent, AgentRun, ChatModel, ChatRequest, Reply, ScriptedModel, tool_fn};
use emitree::{Error, Result, RunContext};
use schemars::JsonSchema;
use serde::Deserialize;

#[path = "shared/help.rs"]
mod help;

const MOUNTAINS: [(&str, u32); 3] = [("Everest", 8849), ("K2", 8611), ("Lhotse", 8516)];

#[derive(Deserialize, JsonSchema)]
struct Mountain {
    name: String,
}

/// Answers as a model would: it calls the function for the mountain of the question, and then says its result.
fn answer(request: &ChatRequest) -> Reply {
    let question = request.messages.first().map(|message| message.text()).unwrap_or_default();
    let last = request.messages.last().map(|message| message.text()).unwrap_or_default();
    let name = MOUNTAINS.iter().map(|(name, _)| *name).find(|name| question.contains(name)).unwrap_or("Olympus");
    let call = format!("Function Name: height\nFunction Input: {{\"name\": \"{name}\"}}");
    let text = match last.strip_prefix("Function Output: ") {
        Some(height) => format!("Thought: I have what I need.\nFinal Answer: {name}: {height}"),
        None if last.starts_with("Your reply") => format!("Thought: I look the height up.\n{call}"),
        None => call,
    };
    Reply::text(text).in_pieces(6).slow(Duration::ZERO, Duration::from_millis(20))
}

#[tokio::main]
async fn main() -> Result<()> {
    if help::is_asked(include_str!("react.rs")) {
        return Ok(());
    }
    let question = std::env::args().nth(1).unwrap_or_else(|| "How high is Everest?".to_owned());
    let height =
        tool_fn("height", "Returns the height of a mountain", |mountain: Mountain, _: RunContext| async move {
            let found = MOUNTAINS.iter().find(|(name, _)| *name == mountain.name);
            found.map(|(_, meters)| format!("{meters} m")).ok_or_else(|| Error::new("no such mountain"))
        });

    let react = ReAct::new();
    react.emitter().on("partial_update", |update: &mut ReActPartialUpdate, _| {
        print!("{}", update.delta);
        std::io::stdout().flush().ok();
    })?;
    react.emitter().on("update", |update: &mut ReActUpdate, _| println!("   ({})", update.key))?;
    react.emitter().on("retry", |retry: &mut ReActRetry, _| println!("-- asked again: {}", retry.error))?;

    let model = ChatModel::new(ScriptedModel::by("scripted", answer))?;
    let agent = Agent::builder("climber", model).tool(height).with(react).build()?;
    let answer = agent.ask(question).on_token(|_| ()).await?;
    let results = answer.messages.iter().flat_map(|message| message.tool_results()).count();
    println!("-- {} turns, {results} tool results: {}", answer.turns, answer.text());
    Ok(())
}
