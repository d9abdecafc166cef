//! A custom middleware for agents in about fifty lines, with state, a part of the prompt, a gate, a layer and an end hook.
//!
//! ```text
//! cargo run --example custom_middleware
//! ```
//!
//! It records the calls, refuses repeated calls, measures each tool, and requests a summary at the end.

use emitree::agent::{Agent, AgentMiddleware, ChatModel, Hooks, Message, ScriptedModel, Tool, tool_fn};
use emitree::{Next, Result, RunContext};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

#[path = "shared/help.rs"]
mod help;

#[derive(Debug)]
struct Diary;

impl AgentMiddleware for Diary {
    fn id(&self) -> &str {
        "diary"
    }

    fn system_prompt(&self) -> Option<String> {
        Some("Never call a tool twice with the same arguments.".to_owned())
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        // State, which is kept for the session and is empty at first.
        let calls = hooks.state::<Vec<String>>();
        let asked = calls.clone();

        // A gate, which receives all calls of a turn before any of them starts.
        hooks.on_gate(move |batch, ctx| {
            calls.with(ctx, |calls| {
                for gated in batch.open() {
                    let call = format!("{}({})", gated.call.name, gated.call.arguments);
                    if calls.contains(&call) {
                        gated.deny("diary", "you have called it so before");
                    } else {
                        calls.push(call);
                    }
                }
            })
        });

        // A layer around the run of each tool.
        hooks.tool_call(|stack| {
            stack.layer_fn("timed", |args, ctx: &RunContext, next: Next<'_, Tool>| {
                Box::pin(async move {
                    let output = next.run(args).await?;
                    println!("{} took {:?}", ctx.name(), ctx.elapsed());
                    Ok(output)
                })
            })
        });

        // An end hook, which requests one more round with a last message.
        hooks.on_end(move |more, ctx| {
            asked.with(ctx, |calls| {
                if !calls.is_empty() {
                    more.push(Message::user(format!("Sum up, after {} calls.", calls.len())));
                    calls.clear();
                }
            })
        });
        Ok(())
    }
}

#[derive(Deserialize, JsonSchema)]
struct Coin {
    coin: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    if help::is_asked(include_str!("custom_middleware.rs")) {
        return Ok(());
    }
    let flip = tool_fn("flip", "Flips a coin", |Coin { coin }: Coin, _: RunContext| async move {
        Ok(if coin.len() % 2 == 0 { "heads" } else { "tails" })
    });
    // A script plays the model: it calls a tool, repeats the call, answers, and sums up.
    let model = ScriptedModel::new("script")
        .call("flip", json!({"coin": "euro"}))
        .call("flip", json!({"coin": "euro"}))
        .text("It was heads.")
        .text("One coin, flipped once: heads.");
    let agent = Agent::builder("gambler", ChatModel::new(model)?).tool(flip).with(Diary).build()?;

    let answer = agent.ask("Flip the euro twice.").await?;
    for result in answer.messages.iter().flat_map(|message| message.tool_results()) {
        println!("result: {}", result.response);
    }
    println!("answer: {}", answer.text());
    assert_eq!(answer.text(), "One coin, flipped once: heads.");
    Ok(())
}
