//! `ClearToolResults`: the model receives placeholders for old results, and the history keeps the results.

use std::sync::Arc;

use emitree_agent::{Message, ToolCall, ToolResult};
use emitree_agent_kit::built_in::ClearToolResults;
use emitree_runtime::{Result, RunContext};
use serde_json::json;

use super::{call, refused, request_of, session_of, short, shown, shown_in_each_way};

fn three_calls() -> Vec<Message> {
    [vec![Message::user("u")], call("x", "1").to_vec(), call("todo", "2").to_vec(), call("x", "3").to_vec()].concat()
}

fn cleared() -> ClearToolResults {
    ClearToolResults::keep(1).over_tokens(1)
}

#[tokio::test]
async fn older_results_become_cleared_and_the_newest_and_all_calls_stay() -> Result<()> {
    let table = [
        (0, ["[cleared]", "[cleared]", "[cleared]"]),
        (1, ["[cleared]", "[cleared]", "3"]),
        (2, ["[cleared]", "2", "3"]),
        (3, ["1", "2", "3"]),
        (4, ["1", "2", "3"]),
    ];
    for (keep, [one, two, three]) in table {
        let expected = ["u u", "a x?", &format!("t {one}"), "a todo?", &format!("t {two}"), "a x?"].map(str::to_owned);
        let expected = [expected.to_vec(), vec![format!("t {three}")]].concat();
        let seen = shown(three_calls(), ClearToolResults::keep(keep).over_tokens(4)).await?;
        assert_eq!(seen, expected, "keep({keep})");
    }
    Ok(())
}

#[tokio::test]
async fn results_are_cleared_only_if_the_messages_exceed_the_limit() -> Result<()> {
    let history = three_calls();
    let one_each = |messages: &[Arc<Message>], _: &RunContext| messages.len() as u64;
    for (limit, first) in [(6, "t [cleared]"), (7, "t 1"), (8, "t 1")] {
        let clear = ClearToolResults::keep(1).over_tokens(limit).counter(one_each);
        assert_eq!(shown(history.clone(), clear).await?[2], first, "limit {limit}");
    }
    Ok(())
}

#[tokio::test]
async fn by_default_results_are_cleared_over_30_000_tokens() -> Result<()> {
    // Two messages have 16 tokens, and the arguments `{}` have 2 bytes.
    let most = 4 * (30_000 - 16) - 2;
    for (bytes, is_cleared) in [(most, false), (most + 1, true)] {
        let session = session_of(call("x", &"y".repeat(bytes)))?;
        let request = request_of(&session, ClearToolResults::keep(0)).await?;
        let result = request.messages[1].tool_results().next().expect("a result");
        assert_eq!(result.response == "[cleared]", is_cleared, "{bytes} bytes");
    }
    Ok(())
}

#[tokio::test]
async fn errors_and_the_results_of_excepted_tools_stay_and_do_not_count() -> Result<()> {
    let failed = [
        Message::assistant("").with_call(ToolCall::new("c", "x", json!({}))),
        Message::tool([ToolResult::error("c", "failed")]),
    ];
    let history = [call("todo", "old").to_vec(), three_calls(), failed.to_vec()].concat();
    let expected =
        ["a todo?", "t old", "u u", "a x?", "t [cleared]", "a todo?", "t 2", "a x?", "t 3", "a x?", "t !failed"];
    assert_eq!(shown(history, cleared().except(["todo"])).await?, expected);
    Ok(())
}

#[tokio::test]
async fn results_of_one_message_are_cleared_one_by_one_and_equal_ids_of_other_turns_are_told_apart() -> Result<()> {
    let asks = |names: [&str; 2]| {
        let calls = names.iter().zip(["1", "2"]).map(|(name, id)| ToolCall::new(id, *name, json!({})));
        calls.fold(Message::assistant(""), Message::with_call)
    };
    let results =
        |texts: [&str; 2]| Message::tool(texts.iter().zip(["1", "2"]).map(|(it, id)| ToolResult::new(id, *it)));
    let history =
        vec![asks(["todo", "x"]), results(["a", "b"]), asks(["x", "todo"]), results(["c", "d"]), Message::user("u")];
    let expected = ["a todo? x?", "t a [cleared]", "a x? todo?", "t c d", "u u"];
    assert_eq!(shown(history, cleared().except(["todo"])).await?, expected);
    Ok(())
}

#[tokio::test]
async fn the_history_keeps_the_results() -> Result<()> {
    let session = session_of(three_calls())?;
    let request = request_of(&session, cleared()).await?;
    assert_eq!(request.messages[2].tool_results().next().expect("a result").id, "c");
    let all = ["u u", "a x?", "t 1", "a todo?", "t 2", "a x?", "t 3", "a answer"];
    assert_eq!(short(session.history().messages()), all);
    Ok(())
}

#[tokio::test]
async fn results_are_cleared_on_an_agent_on_a_run_below_an_agent_above_and_in_a_restored_session() -> Result<()> {
    let expected = ["u u", "a x?", "t [cleared]", "a todo?", "t [cleared]", "a x?", "t 3"].map(str::to_owned).to_vec();
    assert_eq!(shown_in_each_way(&three_calls(), cleared()).await?, [(); 3].map(|()| expected.clone()));
    let stored = serde_json::to_string(&session_of(three_calls())?).expect("JSON");
    let restored = serde_json::from_str(&stored).expect("a session");
    assert_eq!(short(&request_of(&restored, cleared()).await?.messages), expected);
    Ok(())
}

#[tokio::test]
async fn keeping_more_results_than_the_limit_has_tokens_is_an_error_that_quotes_both() {
    let error = refused(ClearToolResults::keep(5).over_tokens(4)).await;
    let expected = "`ClearToolResults::keep(5).over_tokens(4)` keeps more results than the limit has tokens: a result \
                    has at least one token";
    assert_eq!(error, expected);
}

#[tokio::test]
async fn an_excepted_tool_that_the_agent_does_not_have_is_an_error_that_quotes_it() {
    let error = refused(cleared().except(["tood"])).await;
    assert_eq!(error, "the middleware `clear_tool_results` names the tool `tood`, but the agent `friend` has no tools");
}

#[tokio::test]
async fn a_counter_that_panics_ends_the_run_and_the_history_stays_valid() -> Result<()> {
    let session = session_of(three_calls())?;
    let panics = |_: &[Arc<Message>], _: &RunContext| -> u64 { panic!("no tokenizer") };
    let error = request_of(&session, cleared().counter(panics)).await.expect_err("a panic");
    assert!(error.to_string().contains("no tokenizer"), "{error}");
    assert_eq!(crate::support::assert_valid(&session).messages().len(), 7);
    Ok(())
}
