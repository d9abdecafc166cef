//! `SlidingWindow`: the model receives the last messages, and the history keeps all of them.

use std::sync::Arc;

use emitree_agent::{Agent, AgentRun, ChatModel, Message, ScriptedModel, ToolCall, ToolResult};
use emitree_agent_kit::built_in::SlidingWindow;
use emitree_runtime::{Result, RunContext};
use serde_json::json;

use super::{call, refused, request_of, session_of, short, shown, shown_in_each_way, talk};

/// One token for each message.
fn one_each(messages: &[Arc<Message>], _: &RunContext) -> u64 {
    messages.len() as u64
}

#[tokio::test]
async fn the_window_has_at_most_the_messages_or_the_tokens_of_its_limit() -> Result<()> {
    let talk: Vec<_> = [talk(1), talk(2)].concat().into_iter().chain([Message::user("u3")]).collect();
    let all = ["u u1", "a a1", "u u2", "a a2", "u u3"];
    for limit in 1..=6 {
        let expected = &all[5 - limit.min(5)..];
        assert_eq!(shown(talk.clone(), SlidingWindow::messages(limit)).await?, expected);
        let tokens = SlidingWindow::tokens(limit as u64).counter(one_each);
        assert_eq!(shown(talk.clone(), tokens).await?, expected);
        // By default, each of these messages has 9 tokens: 8, and one for its text.
        for (tokens, expected) in [(9 * limit as u64, expected), (9 * limit as u64 + 8, expected)] {
            assert_eq!(shown(talk.clone(), SlidingWindow::tokens(tokens)).await?, expected, "{tokens}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_history_keeps_what_is_not_in_the_window() -> Result<()> {
    let session = session_of([talk(1), talk(2), talk(3)].concat())?;
    request_of(&session, SlidingWindow::messages(1)).await?;
    let all = ["u u1", "a a1", "u u2", "a a2", "u u3", "a a3", "a answer"];
    assert_eq!(short(session.history().messages()), all);
    Ok(())
}

#[tokio::test]
async fn a_call_is_never_separated_from_its_results() -> Result<()> {
    let calls = Message::assistant("").with_call(ToolCall::new("1", "one", json!({}))).with_call(ToolCall::new(
        "2",
        "two",
        json!({}),
    ));
    let results = ["1", "2"].map(|id| Message::tool([ToolResult::new(id, id)]));
    let history = [vec![calls], results.to_vec(), vec![Message::user("u")]].concat();
    for limit in 1..=3 {
        assert_eq!(shown(history.clone(), SlidingWindow::messages(limit)).await?, ["u u"]);
        assert_eq!(shown(history.clone(), SlidingWindow::tokens(limit as u64).counter(one_each)).await?, ["u u"]);
    }
    let all = ["a one? two?", "t 1", "t 2", "u u"];
    assert_eq!(shown(history.clone(), SlidingWindow::messages(4)).await?, all);
    assert_eq!(shown(history, SlidingWindow::tokens(4).counter(one_each)).await?, all);
    Ok(())
}

#[tokio::test]
async fn the_last_user_message_and_what_follows_stay_even_if_they_exceed_the_limit() -> Result<()> {
    let history = [talk(1).to_vec(), vec![Message::user("u2")], call("x", "1").to_vec(), call("x", "2").to_vec()];
    let expected = ["u u2", "a x?", "t 1", "a x?", "t 2"];
    for window in [SlidingWindow::messages(1), SlidingWindow::messages(3), SlidingWindow::tokens(1)] {
        assert_eq!(shown(history.concat(), window).await?, expected);
    }
    Ok(())
}

#[tokio::test]
async fn a_conversation_without_a_user_message_keeps_its_last_message_with_its_results() -> Result<()> {
    let history = [call("x", "1"), call("x", "2")].concat();
    for window in [SlidingWindow::messages(1), SlidingWindow::tokens(1)] {
        assert_eq!(shown(history.clone(), window).await?, ["a x?", "t 2"]);
    }
    Ok(())
}

#[tokio::test]
async fn only_the_messages_of_the_window_and_those_before_it_are_counted() -> Result<()> {
    let log = crate::support::Log::default();
    let counted = log.clone();
    let counter = move |messages: &[Arc<Message>], _: &RunContext| {
        counted.add(short(messages).join(", "));
        messages.len() as u64
    };
    let history = [talk(1).to_vec(), talk(2).to_vec(), call("x", "1").to_vec(), vec![Message::user("u3")]];
    let window = shown(history.concat(), SlidingWindow::tokens(4).counter(counter)).await?;
    assert_eq!(window, ["a a2", "a x?", "t 1", "u u3"]);
    assert_eq!(log.lines(), ["u u3", "a x?, t 1", "a a2", "u u2"]);
    Ok(())
}

#[tokio::test]
async fn the_window_applies_on_an_agent_on_a_run_and_below_an_agent_above() -> Result<()> {
    let messages = [talk(1).to_vec(), vec![Message::user("u2")]].concat();
    let window = SlidingWindow::messages(2);
    assert_eq!(shown_in_each_way(&messages, window).await?, [(); 3].map(|()| vec!["a a1", "u u2"]));
    Ok(())
}

#[tokio::test]
async fn the_window_applies_to_a_restored_session() -> Result<()> {
    let session = session_of([talk(1).to_vec(), vec![Message::user("u2")]].concat())?;
    let restored = serde_json::from_str(&serde_json::to_string(&session).expect("JSON")).expect("a session");
    let request = request_of(&restored, SlidingWindow::messages(2)).await?;
    assert_eq!(short(&request.messages), ["a a1", "u u2"]);
    Ok(())
}

#[tokio::test]
async fn a_window_of_0_is_an_error_that_quotes_it() {
    let error = refused(SlidingWindow::messages(0)).await;
    assert_eq!(error, "`SlidingWindow::messages(0)` is a window without messages: allow at least 1");
    let error = refused(SlidingWindow::tokens(0)).await;
    assert_eq!(error, "`SlidingWindow::tokens(0)` is a window without messages: allow at least 1");
}

#[tokio::test]
async fn a_counter_that_panics_ends_the_run_and_the_history_stays_valid() -> Result<()> {
    let session = session_of(talk(1))?;
    let panics = |_: &[Arc<Message>], _: &RunContext| -> u64 { panic!("no tokenizer") };
    let error = request_of(&session, SlidingWindow::tokens(9).counter(panics)).await.expect_err("a panic");
    assert!(error.to_string().contains("no tokenizer"), "{error}");
    assert_eq!(crate::support::texts(&session), ["u1", "a1"]);
    Ok(())
}

#[tokio::test]
async fn two_windows_on_one_agent_are_an_error_and_explain_shows_the_limit() -> Result<()> {
    let builder = || Agent::builder("friend", ChatModel::new(ScriptedModel::new("test")).expect("a model"));
    let twice = builder().with(SlidingWindow::messages(2)).with(SlidingWindow::tokens(2)).build();
    assert!(twice.expect_err("twice").to_string().contains("`sliding_window` twice"));
    let run = builder().build()?;
    let text = run.ask("go").with(SlidingWindow::messages(40)).explain().to_string();
    assert!(text.contains("sliding_window") && text.contains("40 messages"), "{text}");
    Ok(())
}
