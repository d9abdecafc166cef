//! Sessions of an agent in a store.

use std::sync::Arc;
use std::time::Instant;

use emitree::RunContext;
use emitree::agent::{Agent, AgentRun, ChatModel, Reply, Role, ScriptedModel, Session, tool_fn};
use emitree::middleware::store::Store;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::support::Case;

/// Runs with some turns, each with some calls at a time. Each run has a session of its own.
pub(crate) fn talks<S: Store + Clone>(
    runtime: &Arc<Runtime>,
    store: &S,
    calls: usize,
    turns: u32,
) -> impl Case + use<S> {
    let (runtime, store) = (Arc::clone(runtime), store.clone());
    let mut runs = 0;
    let agent = caller(calls, turns);
    move |n| {
        let begin = Instant::now();
        for _ in 0..n {
            runs += 1;
            let answer = runtime.block_on(async {
                let session = Session::open(&store, format!("talk-{calls}-{turns}-{runs}")).await?;
                agent.ask("Go.").session(&session).await
            });
            assert_eq!(answer.expect("an answer").turns, turns + 1);
        }
        begin.elapsed()
    }
}

/// An agent whose model makes calls in each of some turns, and then answers.
pub(crate) fn caller(calls: usize, turns: u32) -> Agent {
    #[derive(Deserialize, JsonSchema)]
    struct Text {
        text: String,
    }
    let shout = tool_fn("shout", "Shouts", |args: Text, _: RunContext| async move { Ok(args.text.to_uppercase()) });
    let script = ScriptedModel::by("scripted", move |request| {
        let responses = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
        if responses == turns as usize {
            return Reply::text("Done.");
        }
        Reply::calls((0..calls).map(|n| ("shout", json!({"text": format!("{n} {}", "a".repeat(400))}))))
    });
    let agent = Agent::builder("caller", ChatModel::new(script).expect("a model")).tool(shout.expect("a tool"));
    agent.max_steps(u32::MAX).build().expect("an agent")
}
