//! Makes a model think first, ask for the weather before it searches, and ask before it books. Prints which tools were
//! offered in each turn, and why the others were not.
//!
//! ```text
//! cargo run --example requirement -- "What to do in Lima?"
//! ```
//!
//! A scripted model answers. It is in a hurry: it searches and answers before it may.

use emitree::agent::kinds::{FinalAnswer, Requirement, Requirements, RequirementsStart};
use emitree::agent::{Agent, AgentRun, ChatModel, Reply, ScriptedModel, Tool, ToolCall, ToolResponse, tool_fn};
use emitree::{Result, RunContext};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

#[path = "shared/help.rs"]
mod help;

#[derive(Deserialize, JsonSchema)]
struct About {
    about: String,
}

fn tool(name: &str, description: &str, reply: &'static str) -> Result<Tool> {
    let work = move |args: About, _: RunContext| async move { Ok(format!("{}: {reply}", args.about)) };
    Ok(tool_fn(name, description, work)?)
}

fn model() -> ScriptedModel {
    let call = |name: &str| Reply::calls([(name, json!({"about": "Lima"}))]);
    let answer = json!({"response": "Visit the Larco Museum: it drizzles in Lima."});
    ScriptedModel::new("hasty")
        .reply(call("search"))
        .reply(call("think"))
        .text("Go to the beach!")
        .reply(call("weather"))
        .reply(call("think"))
        .reply(Reply::calls(["search", "book"].map(|name| (name, json!({"about": "Lima"})))))
        .reply(Reply::calls([("final_answer", answer)]).in_pieces(16))
}

fn requirements() -> Requirements {
    Requirements::new([
        Requirement::tool("think").force_at_step(1).force_after(["weather"]).consecutive(false),
        Requirement::tool("weather").only_after(["think"]).at_least(1).because("a plan needs the weather"),
        Requirement::tool("search").only_after(["weather"]).at_most(3),
        Requirement::ask(["book"]).by(|call: ToolCall| async move {
            println!("-- may the model call {} {}? no", call.name, call.arguments);
            Ok(false)
        }),
    ])
    .final_answer::<String>()
}

fn print_start(start: &RequirementsStart) {
    println!("{}. offered: {}", start.turn, start.offered.join(", "));
    start.refused.iter().for_each(|(tool, reason)| println!("   not {tool}: {reason}"));
}

fn print_result(response: &ToolResponse) {
    let result = response.result.response.as_str().unwrap_or_default();
    println!("   {} -> {result}", response.call.name);
}

#[tokio::main]
async fn main() -> Result<()> {
    if help::is_asked(include_str!("requirement.rs")) {
        return Ok(());
    }
    let asked = std::env::args().nth(1).unwrap_or_else(|| "What to do in Lima?".to_owned());
    let requirements = requirements();
    requirements.emitter().on("start", |start: &mut RequirementsStart, _| print_start(start))?;
    requirements.emitter().on("final_answer", |answer: &mut FinalAnswer, _| println!("   ... {}", answer.delta))?;
    let agent = Agent::builder("planner", ChatModel::new(model())?)
        .tool(tool("think", "Thinks about the next step", "what would a traveller like?")?)
        .tool(tool("weather", "Returns the weather of a city", "drizzle, 18 degrees")?)
        .tool(tool("search", "Searches the web", "the Larco Museum is open")?)
        .tool(tool("book", "Books a hotel", "booked")?)
        .with(requirements)
        .build()?;
    println!("you: {asked}");
    let run = agent.ask(asked.as_str()).on_token(|token| println!("   \"{}\"", token.text()));
    let answer = run.on("tool_response", |response: &mut ToolResponse, _| print_result(response)).await?;
    println!("planner: {}", answer.text());
    Ok(())
}
