//! `EstimatedTokens`: estimates from the length of the text, corrected by what the provider reports.

use std::sync::{Arc, Mutex};

use emitree_agent::{
    Agent, AgentRun, ChatModel, HooksFn, Message, Reply, ScriptedModel, Session, ToolCall, ToolResult, Usage, hooks_fn,
};
use emitree_agent_kit::built_in::{EstimatedTokens, TokenCounter};
use emitree_runtime::{Result, RunContext, Runnable, runnable_fn};
use serde_json::json;

use crate::support::{Log, agent, refuse_bad};

/// Logs the tokens of one message with 8 bytes, at `model.context` of each turn.
fn counts(log: &Log) -> HooksFn {
    let log = log.clone();
    hooks_fn("counts", move |hooks| {
        let log = log.clone();
        hooks.on_context(move |_, ctx| log.add(EstimatedTokens.count(&[eight()], ctx).to_string()));
    })
}

fn eight() -> Arc<Message> {
    Arc::new(Message::user("8 bytes."))
}

fn reports(input_tokens: u64) -> Reply {
    Reply::text("ok").usage(Usage::new(input_tokens, 1))
}

#[tokio::test]
async fn an_estimate_is_a_quarter_of_the_text_and_8_for_each_message() -> Result<()> {
    let calls = Message::assistant("").with_call(ToolCall::new("c", "x", json!({"a": 1})));
    let result = Message::tool([ToolResult::new("c", "12345678")]);
    let messages = [eight(), Arc::new(calls), Arc::new(result)];
    let count = Arc::new(Mutex::new(0));
    let to = Arc::clone(&count);
    // A run that is neither an agent's run nor below one.
    let outside = runnable_fn("outside", move |(): (), ctx: RunContext| {
        *to.lock().unwrap() = EstimatedTokens.count(&messages, &ctx);
        async { Ok(()) }
    });
    outside.run(()).await?;
    // 8 bytes, `{"a":1}` and 8 bytes.
    assert_eq!(*count.lock().unwrap(), 6 + 3 * 8);
    Ok(())
}

#[tokio::test]
async fn the_report_of_the_last_call_corrects_estimates_also_in_the_next_run_and_after_restore() -> Result<()> {
    let log = Log::default();
    // The request "Hi there" has 10 tokens by the estimate, and 20 by the report.
    let script = ScriptedModel::new("test").reply(reports(20)).reply(Reply::text("no report")).reply(reports(1_000));
    let agent = Agent::builder("friend", ChatModel::new(script)?).with(counts(&log)).build()?;
    let session = Session::new();
    agent.ask("Hi there").session(&session).await?;
    agent.ask("Hi there").session(&session).await?;
    let stored = serde_json::to_string(&session).expect("JSON");
    let restored: Session = serde_json::from_str(&stored).expect("a session");
    agent.ask("Hi there").session(&restored).await?;
    assert_eq!(log.lines(), ["10", "20", "20"]);
    let unused = Session::new();
    let script = ScriptedModel::new("test").text("ok");
    let again = Agent::builder("friend", ChatModel::new(script)?).with(counts(&log)).build()?;
    again.ask("Hi there").session(&unused).await?;
    assert_eq!(log.lines()[3], "10", "another session has no report");
    Ok(())
}

#[tokio::test]
async fn the_measured_request_includes_the_system_prompt_and_the_tools() -> Result<()> {
    let log = Log::default();
    let script = ScriptedModel::new("test").reply(reports(200)).text("ok");
    let with_prompt = agent(&script).prompt("12345678".repeat(20)).with(counts(&log)).build()?;
    let session = Session::new();
    with_prompt.ask("Hi there").session(&session).await?;
    with_prompt.ask("Hi there").session(&session).await?;
    let spec = &script.requests()[0].tools[0];
    let tools = spec.name.len() + spec.description.len() + spec.parameters.to_string().len();
    let estimated = 10 + (tools + 160).div_ceil(4) as u64;
    assert_eq!(log.lines(), ["10".to_owned(), (10 * 200_u64).div_ceil(estimated).to_string()]);
    Ok(())
}

#[tokio::test]
async fn a_run_in_which_no_counter_asks_measures_nothing() -> Result<()> {
    let script = ScriptedModel::new("test").reply(reports(20));
    let session = Session::new();
    agent(&script).build()?.ask("Hi there").session(&session).await?;
    assert_eq!(session.state::<serde_json::Value>("token_counter")?, None);
    Ok(())
}

#[tokio::test]
async fn the_report_of_a_discarded_attempt_is_forgotten() -> Result<()> {
    let log = Log::default();
    let bad = Reply::text("bad").usage(Usage::new(20, 1));
    let script = ScriptedModel::new("test").reply(bad).text("good");
    let agent = Agent::builder("friend", ChatModel::new(script)?).with(counts(&log)).build()?;
    let run = agent.ask("Hi there").max_middleware_retries(1);
    run.middleware(emitree_runtime::map_output(refuse_bad)).await?;
    assert_eq!(log.lines(), ["10", "10"]);
    Ok(())
}
