//! The memory of waiting runs is proportional to their number, and is freed. An allocator counts the bytes of one
//! thread.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use allocation_counter::measure;
use emitree_agent::{Agent, ChatModel, tool_fn};
use emitree_runtime::{Result, RunContext, Runnable};
use futures_util::future::join_all;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

/// The number of tools that wait.
static WAITING: AtomicUsize = AtomicUsize::new(0);

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// Starts runs of an agent whose tool never returns, counts their bytes, and aborts them. Returns the bytes that are
/// allocated while the runs wait and after they are aborted.
fn waiting(agent: &Arc<Agent>, runs: usize) -> (i64, i64) {
    let mut held = 0;
    let left = measure(|| {
        // The runtime is measured too, because its queue grows with the number of tasks.
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let mut tasks = Vec::new();
        WAITING.store(0, Ordering::Relaxed);
        held = measure(|| {
            runtime.block_on(async {
                tasks.extend((0..runs).map(|_| tokio::spawn(agent.run_shared("go".into()).into_future())));
                while WAITING.load(Ordering::Relaxed) < runs {
                    tokio::task::yield_now().await;
                }
            });
        })
        .bytes_current;
        runtime.block_on(async {
            tasks.iter().for_each(tokio::task::JoinHandle::abort);
            join_all(tasks).await;
        });
    });
    (held, left.bytes_current)
}

#[test]
fn the_memory_of_waiting_runs_is_proportional_to_their_number_and_is_freed() {
    let wait = tool_fn("wait", "Waits", |_: Nothing, _: RunContext| {
        WAITING.fetch_add(1, Ordering::Relaxed);
        pending::<Result<()>>()
    });
    // Unlike `ScriptedModel`, this model keeps no requests.
    let model = ChatModel::new(Calls).expect("a model");
    let agent = Arc::new(Agent::builder("waiter", model).tool(wait).build().expect("an agent"));
    waiting(&agent, 10);
    let (thousand, _) = waiting(&agent, 1_000);
    // The process keeps a list of runs that never shrinks. This round makes the list grow before the measurement.
    waiting(&agent, 10_000);
    let (ten_thousand, left) = waiting(&agent, 10_000);
    let each = ten_thousand / 10_000;
    println!("{each} bytes for each waiting run: the agent's, and its tool's");
    assert!(each > 1_000, "the runs were not waiting: {each} bytes each");
    assert!(ten_thousand < thousand * 11, "{thousand} bytes for 1,000, {ten_thousand} for 10,000");
    assert!(left < 1_000, "{left} bytes are left");
}

/// A model that always calls the tool.
struct Calls;

impl emitree_agent::Provider for Calls {
    fn name(&self) -> &str {
        "calls"
    }

    fn model(&self) -> &str {
        "calls"
    }

    async fn chat(&self, _: &emitree_agent::ChatRequest, _: &RunContext) -> Result<emitree_agent::DeltaStream> {
        let call = emitree_agent::ToolCall::new("c", "wait", json!({}));
        let message = emitree_agent::Message::assistant("").with_call(call);
        Ok(emitree_agent::whole(emitree_agent::ChatResponse::new(message)))
    }
}
