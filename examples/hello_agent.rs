//! The second program of the README: an agent with a tool and a guard.

use emitree::agent::{Agent, ChatModel, ScriptedModel, tool_fn};
use emitree::middleware::Runs;
use emitree::prelude::*;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize, JsonSchema)]
struct Bill {
    euros: u32,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let pay = tool_fn("pay", "Pays a bill", |bill: Bill, _: RunContext| async move { Ok(bill.euros) });
    let small = map_input(|bill: &mut Value, _: &RunContext| {
        if bill["euros"].as_u64() <= Some(100) { Ok(()) } else { Err(Error::denied("limit", "at most 100 euros")) }
    });
    let script = ScriptedModel::new("script") // with the feature `openai`: `ChatModel::from_name("ollama:granite4")`
        .calls([5, 500].map(|euros| ("pay", json!({"euros": euros}))))
        .text("The small bill is paid.");
    let agent = Agent::builder("clerk", ChatModel::new(script)?).tool(pay);
    let agent = agent.middleware(for_tree(Runs::named("pay").only(small.guard()))).build()?;
    agent.ask("Pay my bills.").middleware(Trajectory::stdout()).await?;
    Ok(())
}
