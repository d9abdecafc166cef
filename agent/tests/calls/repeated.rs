//! Calls that a gateway sends twice, and calls of a reply that was cut off (A5).

use crate::support::{Log, Nothing, Text, assert_valid, results};
use emitree_agent::{
    Agent, AgentRun, ChatModel, ChatOptions, Delta, FinishReason, Reply, ScriptedModel, Session, Tool, tool_fn,
};
use emitree_runtime::{Result, RunContext};

/// A tool that logs its executions.
fn pay(log: &Log) -> Result<Tool> {
    let log = log.clone();
    let pay = tool_fn("pay", "Pays", move |args: Text, _: RunContext| {
        log.add(args.text.clone());
        async move { Ok(format!("paid {}", args.text)) }
    });
    Ok(pay?)
}

fn call(index: usize, id: &str, text: &str) -> Delta {
    Delta::tool_call(index, Some(id.to_owned()), Some("pay".to_owned()), format!("{{\"text\": \"{text}\"}}"))
}

/// Runs an agent on a reply of these pieces. Returns the executions, and the results of the calls.
async fn executed(deltas: Vec<Delta>) -> Result<(Vec<String>, Vec<String>)> {
    let mut seen = None;
    for stream in [false, true] {
        let log = Log::default();
        let script = ScriptedModel::new("test").reply(Reply::deltas(deltas.clone())).text("Done.");
        let session = Session::new();
        let model = ChatModel::new(script)?.options(ChatOptions::new().stream(stream));
        let agent = Agent::builder("tester", model).tool(pay(&log)?).build()?;
        agent.ask("Pay.").session(&session).await?;
        let history = assert_valid(&session);
        let mut lines = log.lines();
        lines.sort();
        let now = (lines, results(history.messages()));
        assert_eq!(*seen.get_or_insert_with(|| now.clone()), now);
    }
    Ok(seen.expect("two runs"))
}

#[tokio::test]
async fn a_call_that_a_gateway_sends_twice_runs_once() -> Result<()> {
    let (executed, results) = executed(vec![call(0, "c1", "5"), call(1, "c1", "5")]).await?;
    assert_eq!(executed, ["5"]);
    assert_eq!(results, ["paid 5"]);
    Ok(())
}

#[tokio::test]
async fn the_reply_has_a_warning_about_a_repeated_call() -> Result<()> {
    let script =
        ScriptedModel::new("test").reply(Reply::deltas([call(0, "c1", "5"), call(1, "c1", "5")])).text("Done.");
    let agent = Agent::builder("tester", ChatModel::new(script)?).tool(pay(&Log::default())?).build()?;
    assert_eq!(agent.ask("Pay.").await?.warnings, ["the server sent the call `c1` twice: it is executed once"]);
    Ok(())
}

#[tokio::test]
async fn two_calls_with_one_id_and_other_arguments_are_two_calls() -> Result<()> {
    let (executed, results) = executed(vec![call(0, "c1", "5"), call(1, "c1", "6")]).await?;
    assert_eq!(executed, ["5", "6"]);
    assert_eq!(results, ["paid 5", "paid 6"]);
    Ok(())
}

#[tokio::test]
async fn equal_calls_with_other_ids_or_without_ids_are_two_calls() -> Result<()> {
    for ids in [["c1", "c2"], ["", ""]] {
        let (executed, _) = executed(vec![call(0, ids[0], "5"), call(1, ids[1], "5")]).await?;
        assert_eq!(executed, ["5", "5"]);
    }
    Ok(())
}

#[tokio::test]
async fn of_a_reply_that_was_cut_off_no_call_is_executed() -> Result<()> {
    let cut = "!not executed: the reply was cut off by the token limit (finish reason `length`), so the call may be \
               incomplete";
    let empty = Delta::tool_call(1, Some("c2".to_owned()), Some("pay".to_owned()), "");
    for second in [call(1, "c2", "6"), empty] {
        let (executed, results) =
            executed(vec![call(0, "c1", "5"), second, Delta::Finish(FinishReason::Length)]).await?;
        assert!(executed.is_empty(), "{executed:?}");
        assert_eq!(results, [cut, cut]);
    }
    Ok(())
}

#[tokio::test]
async fn a_cut_off_call_without_arguments_is_not_executed_with_an_empty_object() -> Result<()> {
    let log = Log::default();
    let to = log.clone();
    let tool = tool_fn("wipe", "Wipes", move |_: Nothing, _: RunContext| {
        to.add("wiped");
        async { Ok("wiped") }
    })?;
    let cut = Delta::tool_call(0, Some("c1".to_owned()), Some("wipe".to_owned()), "");
    let script =
        ScriptedModel::new("test").reply(Reply::deltas([cut, Delta::Finish(FinishReason::Length)])).text("Done.");
    let agent = Agent::builder("tester", ChatModel::new(script)?).tool(tool).build()?;
    agent.ask("Wipe.").await?;
    assert!(log.lines().is_empty());
    Ok(())
}

#[test]
fn a_cut_off_reply_is_known_by_the_names_that_servers_give_it() {
    for name in ["length", "model_length", "max_tokens", "MAX_TOKENS"] {
        assert_eq!(FinishReason::from(name.to_owned()), FinishReason::Length, "{name}");
    }
    for name in ["content_filter", "refusal", "SAFETY"] {
        assert_eq!(FinishReason::from(name.to_owned()), FinishReason::ContentFilter, "{name}");
    }
}
