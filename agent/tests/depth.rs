//! Agents that are nested up to the default `max_depth` fit on a small stack, even in a debug build. A stack overflow
//! ends the process, so these tests have a binary of their own.

use std::ptr::from_ref;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use emitree_agent::{Agent, ChatModel, Reply, ScriptedModel, tool_fn};
use emitree_middleware::{Budget, ContentFilter, ExfilGuard, Redact, Retry, Timeout};
use emitree_runtime::{Result, Run, RunContext, for_tree};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// The places of the stack at which the tool's function was called, outermost first.
type Places = Arc<Mutex<Vec<usize>>>;

/// Returns an agent that is its own tool, with the places of its calls.
fn agent(spawn_tools: bool) -> Result<(Agent, Places)> {
    let script = ScriptedModel::by("loop", |_| Reply::calls([("again", json!({}))]));
    let (cell, places) = (Arc::new(OnceLock::<Agent>::new()), Places::default());
    let (own, to) = (Arc::clone(&cell), Arc::clone(&places));
    let again = tool_fn("again", "Asks again", move |_: Nothing, _: RunContext| {
        let on_the_stack = 0_u8;
        to.lock().expect("no panic").push(from_ref(&on_the_stack).addr());
        let agent = own.get().expect("built").clone();
        async move { Ok(agent.ask("again").await?.text()) }
    });
    let agent = Agent::builder("loop", ChatModel::new(script)?).tool(again).spawn_tools(spawn_tools).build()?;
    cell.set(agent.clone()).expect("once");
    Ok((agent, places))
}

/// Binds six built-ins to the run and to each run below it.
fn with_built_ins(run: Run<'_, Agent>) -> Result<Run<'_, Agent>> {
    Ok(run
        .middleware(for_tree(Timeout::per_attempt(Duration::from_secs(3600))))
        .middleware(for_tree(Retry::new()))
        .middleware(for_tree(Budget::builder().calls(1_000).build()?))
        .middleware(for_tree(Redact::new()))
        .middleware(for_tree(ContentFilter::new().words("rude", ["darn"])?))
        .middleware(for_tree(ExfilGuard::new())))
}

/// Runs the agent until it is nested too deeply, on a thread with a stack of this size. Returns the bytes of stack
/// between the calls of the tool.
fn nest(stack: usize, spawn_tools: bool, built_ins: bool) -> Vec<usize> {
    let work = move || -> Result<Vec<usize>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let (agent, places) = agent(spawn_tools)?;
        let run = if built_ins { with_built_ins(agent.ask("go"))? } else { agent.ask("go") };
        let error = runtime.block_on(run).expect_err("the agent is nested too deeply");
        assert_eq!(
            error.to_string(),
            "the agent `loop` runs inside 21 other agents, but at most 20 are allowed (`max_depth`)"
        );
        let places = places.lock().expect("no panic");
        Ok(places.windows(2).map(|pair| pair[0].abs_diff(pair[1])).collect())
    };
    let thread = std::thread::Builder::new().stack_size(stack).spawn(work).expect("a thread");
    thread.join().expect("no panic").expect("a runtime and an agent")
}

#[test]
fn an_agent_in_an_agent_needs_at_most_120_kb_of_stack() {
    // The stack is large enough for all levels, so that all calls are on one stack.
    let levels = nest(64 << 20, false, false);
    assert_eq!(levels.len(), 20);
    assert!(levels.iter().all(|bytes| (1..=120 * 1024).contains(bytes)), "{levels:?}");
}

#[test]
fn agents_with_six_built_ins_are_nested_20_times_on_a_stack_of_2_mb() {
    for spawn_tools in [false, true] {
        nest(2 << 20, spawn_tools, true);
    }
}
