//! Prints an argument of a tool call while the model writes it.
//!
//! ```text
//! cargo run --example streaming_tool_call
//! ```
//!
//! A scripted model writes a letter as the argument `text` of the tool `send`, in pieces of JSON with escapes. The letter
//! appears piece by piece, decoded, before the tool is called.

use std::io::Write;
use std::time::Duration;

use emitree::agent::reply::{StreamToolCall, ToolCallUpdate};
use emitree::agent::{Agent, ChatModel, Reply, ScriptedModel, tool_fn};
use emitree::{Result, RunContext};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

#[path = "shared/help.rs"]
mod help;

#[derive(Deserialize, JsonSchema)]
struct Letter {
    to: String,
    text: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    if help::is_asked(include_str!("streaming_tool_call.rs")) {
        return Ok(());
    }
    let send = tool_fn("send", "Sends a letter", |letter: Letter, _: RunContext| async move {
        Ok(format!("sent {} characters to {}", letter.text.chars().count(), letter.to))
    })?;

    let letter = "Dear Ada,\n\"numbers\" are not all that your engine can weave.\nYours, Charles\n";
    let call = Reply::calls([("send", json!({"to": "Ada", "text": letter}))]).in_pieces(7);
    let script = ScriptedModel::new("scripted")
        .reply(call.slow(Duration::ZERO, Duration::from_millis(30)))
        .text("The letter is on its way.");

    let text = StreamToolCall::tool(&send).key("text").force_streaming(true);
    text.emitter().on("update", |update: &mut ToolCallUpdate, _| {
        print!("{}", update.delta);
        if update.is_complete {
            println!("-- {} characters", update.output().chars().count());
        }
        std::io::stdout().flush().ok();
    })?;

    let agent = Agent::builder("secretary", ChatModel::new(script)?).tool(send).build()?;
    let answer = agent.ask("Write to Ada.").middleware(text).await?;
    println!("{}", answer.text());
    Ok(())
}
