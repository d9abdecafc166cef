//! Whole agent loops against a server that sometimes fails.

use std::time::Duration;

use emitree_agent::{Agent, AgentRun, NewToken, ScriptedModel, Session};
use emitree_middleware::retry::RetryScheduled;
use emitree_middleware::{Fallback, Retry, Runs};
use emitree_runtime::{AttemptDiscarded, Result, Runnable, for_tree};
use serde_json::{Value, json};

use super::server::{Answer, Server};
use crate::support::*;

fn events(chunks: &[Value]) -> Vec<u8> {
    chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect::<String>().into_bytes()
}

fn text(text: &str) -> Value {
    json!({"choices": [{"delta": {"content": text}}]})
}

fn end() -> Value {
    json!({"choices": [{"delta": {}, "finish_reason": "stop"}]})
}

/// A stream in which the model calls the tool `shout`. The arguments arrive in two pieces.
fn call(arguments: &str) -> Vec<u8> {
    let (begin, rest) = arguments.split_at(arguments.len() / 2);
    events(&[
        json!({"choices": [{"delta": {"tool_calls": [
            {"index": 0, "id": "a", "function": {"name": "shout", "arguments": begin}},
        ]}}]}),
        json!({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": rest}}]}}]}),
        json!({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}),
    ])
}

fn answer(said: &str) -> Answer {
    Answer::stream([&events(&[text(said), end()])[..]])
}

fn tester(server: &Server) -> emitree_agent::AgentBuilder {
    Agent::builder("tester", server.model()).tool(shout())
}

#[tokio::test]
async fn an_agent_runs_the_tools_that_a_model_on_a_server_calls() -> Result<()> {
    let server = Server::start([Answer::stream([&call("{\"text\":\"hi\"}")[..]]), answer("It is HI.")]).await;
    let log = Log::default();
    let to = log.clone();
    let agent = tester(&server).prompt("Shout.").build()?;
    let answer = agent.ask("hi").on_token(move |token| to.add(token.text())).await?;
    assert_eq!((answer.text(), log.lines()), ("It is HI.".to_owned(), vec!["It is HI.".to_owned()]));
    assert_eq!(results(&answer.messages), ["HI"]);
    let second = &server.requests()[1].body["messages"];
    assert_eq!(second[0], json!({"role": "system", "content": "Shout."}));
    assert_eq!(second[3], json!({"role": "tool", "tool_call_id": "a", "content": "HI"}));
    Ok(())
}

#[tokio::test]
async fn malformed_arguments_become_an_error_result_and_the_run_continues() -> Result<()> {
    let server = Server::start([Answer::stream([&call("{\"text\":\"hi")[..]]), answer("Sorry.")]).await;
    let session = Session::new();
    let answer = tester(&server).build()?.ask("hi").on_token(|_| {}).session(&session).await?;
    assert_eq!(answer.text(), "Sorry.");
    let result = results(&answer.messages).remove(0);
    assert!(result.starts_with("!the arguments of `shout` are not JSON: EOF"), "{result}");
    assert_valid(&session);
    Ok(())
}

#[tokio::test]
async fn a_retry_waits_as_long_as_the_server_asks() -> Result<()> {
    let slow = Answer::new("429 Too Many Requests", &[("retry-after", "0.02")], "{\"error\": {\"message\": \"slow\"}}");
    let server = Server::start([slow, answer("Hello.")]).await;
    let log = Log::default();
    let to = log.clone();
    let hour = Duration::from_secs(3600);
    let retry = Retry::builder().max_retries(1).base_delay(hour).max_delay(hour).build()?;
    let answer = tester(&server)
        .middleware(for_tree(Runs::of_kind("ChatModel").only(retry)))
        .build()?
        .ask("hi")
        .on_token(|_| {})
        .observe("**.retry", move |retry: &RetryScheduled, _| to.add(format!("{:?}", retry.retry_after_ms)))
        .await?;
    assert_eq!((answer.text(), server.requests().len()), ("Hello.".to_owned(), 2));
    assert_eq!(log.lines(), ["Some(20)"]);
    Ok(())
}

#[tokio::test]
async fn a_stream_that_breaks_is_retried_and_its_tokens_are_discarded() -> Result<()> {
    let broken = Answer::open_stream([&events(&[text("wro")])[..]]).then_close();
    let server = Server::start([broken, answer("right")]).await;
    let log = Log::default();
    let (tokens, discarded) = (log.clone(), log.clone());
    let retry = Retry::builder().max_retries(1).base_delay(Duration::ZERO).build()?;
    let answer = tester(&server)
        .middleware(for_tree(Runs::of_kind("ChatModel").only(retry)))
        .build()?
        .ask("hi")
        .on_token(|_| {})
        .on("**.new_token", move |token: &mut NewToken, _| tokens.add(token.text()))
        .on("**.attempt_discarded", move |_: &mut AttemptDiscarded, _| discarded.add("discarded"))
        .await?;
    assert_eq!(answer.text(), "right");
    assert_eq!(log.lines(), ["wro", "discarded", "right"]);
    Ok(())
}

#[tokio::test]
async fn a_fallback_model_answers_if_the_first_model_fails() -> Result<()> {
    let server = Server::start([Answer::json("401 Unauthorized", &json!({"error": {"message": "no key"}}))]).await;
    let second = emitree_agent::ChatModel::new(ScriptedModel::new("second").text("I am the second."))?;
    let fallback = Fallback::to(second);
    let response = server.model().middleware(fallback).run("hi".into()).await?;
    assert_eq!(response.text(), "I am the second.");
    Ok(())
}

#[tokio::test]
async fn a_timeout_in_the_middle_of_a_stream_keeps_the_history_valid() -> Result<()> {
    let stalled = Answer::open_stream([&events(&[text("Hel")])[..]]).then_stall();
    let server = Server::start([Answer::stream([&call("{\"text\":\"hi\"}")[..]]), stalled, answer("Hello.")]).await;
    let (agent, session) = (tester(&server).build()?, Session::new());
    let late = agent.ask("hi").on_token(|_| {}).session(&session).timeout(Duration::from_secs(2)).await;
    assert!(late.unwrap_err().is_timed_out());
    server.client_closes().await;
    assert_eq!(results(assert_valid(&session).messages()), ["HI"]);
    let answer = agent.ask("Again.").on_token(|_| {}).session(&session).await?;
    assert_eq!(answer.text(), "Hello.");
    assert_valid(&session);
    Ok(())
}
