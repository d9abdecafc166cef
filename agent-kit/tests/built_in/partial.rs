//! The events `partial` of `Structured`: parts of the answer while the model writes it.

use std::sync::{Arc, Mutex};

use emitree_agent::{
    Agent, AgentInput, ChatModel, ChatOptions, ChatResponse, Chunks, Delta, Message, Reply, ScriptedModel, Session,
    ToolCall, hooks_fn,
};
use emitree_agent_kit::built_in::{Partial, PartialDiscarded, Structured};
use emitree_emitter::EventMeta;
use emitree_middleware::{Redact, Retry, Runs};
use emitree_runtime::{Error, Result, RunContext, for_tree};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::bound::Bound;
use crate::support::Log;

#[derive(Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
struct Person {
    name: String,
    born: u32,
}

const RIGHT: &str = r#"{"name":"Ada","born":1815}"#;

/// The events of [`RIGHT`] in pieces of ten characters.
const PARTS: [&str; 4] = ["/name +A", "/name +da", r#"/name = "Ada""#, "/born = 1815"];

fn short(partial: &Partial) -> String {
    let Partial { path, delta, value, .. } = partial;
    delta
        .iter()
        .map(|delta| format!("{path} +{delta}"))
        .chain(value.iter().map(|value| format!("{path} = {value}")))
        .collect()
}

/// The middleware, and a log of its events.
fn structured() -> (Structured, Log) {
    let (structured, log) = (Structured::of::<Person>(), Log::default());
    let (parts, discarded) = (log.clone(), log.clone());
    let listener = move |partial: &mut Partial, _: &EventMeta<'_>| {
        parts.add(short(partial));
        // Changes have no effect.
        partial.path.clear();
        partial.value = Some(json!("changed"));
    };
    structured.emitter().on("partial", listener).expect("a listener");
    let listener = move |_: &PartialDiscarded, _: &EventMeta<'_>| discarded.add("discarded");
    structured.emitter().observe("discarded", listener).expect("a listener");
    (structured, log)
}

fn agent(replies: impl IntoIterator<Item = Reply>) -> Result<emitree_agent::AgentBuilder> {
    let script = replies.into_iter().fold(ScriptedModel::new("test"), ScriptedModel::reply);
    Ok(Agent::builder("tester", ChatModel::new(script)?))
}

fn text(answer: &str) -> Reply {
    Reply::text(answer).in_pieces(10)
}

/// A call whose arguments are in the order in which the model writes them.
fn call(answer: &str) -> Reply {
    Reply::deltas([Delta::tool_call(0, Some("0".to_owned()), Some("final_answer".to_owned()), answer)])
}

/// An input whose run streams.
fn streamed() -> AgentInput {
    AgentInput::from("go").options(ChatOptions::new().stream(true))
}

fn whole() -> String {
    format!(" = {RIGHT}")
}

#[tokio::test]
async fn while_a_reply_streams_strings_grow_and_complete_members_follow_in_both_ways_and_bindings() -> Result<()> {
    for is_call in [false, true] {
        for bound in Bound::each_way() {
            let (structured, log) = structured();
            let (structured, reply) =
                if is_call { (structured.by_tool(), call(RIGHT)) } else { (structured, text(RIGHT)) };
            bound.ask(agent([reply.in_pieces(10)])?, structured, &Session::new()).await?;
            let lines: Vec<_> =
                log.lines().into_iter().map(|line| line.replace(r#"{"born":1815,"name":"Ada"}"#, RIGHT)).collect();
            if bound.streams {
                assert_eq!(lines.last(), Some(&whole()), "{bound:?}");
                assert_eq!(lines[lines.len() - 3..lines.len() - 1], PARTS[2..]);
                let grown = lines.iter().filter_map(|line| line.strip_prefix("/name +"));
                assert_eq!(grown.collect::<String>(), "Ada");
            } else {
                assert_eq!(lines, [""; 0], "{bound:?}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_answer_so_far_is_built_when_it_is_asked_for_even_later() -> Result<()> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&kept);
    let run = agent([text(RIGHT)])?.with(Structured::of::<Person>()).build()?;
    let keep = move |partial: &Partial, _: &EventMeta<'_>| to.lock().expect("no panic").push(partial.clone());
    run.ask(streamed()).observe("middleware.structured.partial", keep).await?;
    let kept = kept.lock().unwrap();
    let so_far: Vec<_> = kept.iter().map(Partial::so_far).collect();
    let ada = json!({"name": "Ada"});
    assert_eq!(
        so_far,
        [
            json!({"name": "A"}),
            ada.clone(),
            ada,
            json!({"name": "Ada", "born": 1815}),
            json!({"name": "Ada", "born": 1815})
        ]
    );
    assert_eq!(serde_json::to_value(&kept[3])?, json!({"run_id": kept[0].run_id, "path": "/born", "value": 1815}));
    Ok(())
}

#[tokio::test]
async fn another_answer_has_another_run_and_a_discarded_attempt_is_reported() -> Result<()> {
    let ids = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&ids);
    let (structured, log) = structured();
    let cut = Reply::text(r#"{"name":"Bo"#).in_pieces(10).then_error(Error::new("cut").retryable(true));
    let wrong = Reply::text(r#"{"name":"Bob"}"#);
    let retry = Retry::builder().base_delay(std::time::Duration::ZERO).build().expect("a retry");
    let of = agent([cut, wrong, text(RIGHT)])?.with(structured);
    let of = of.middleware(for_tree(Runs::of_kind("ChatModel").only(retry))).build()?;
    let listener = move |partial: &Partial, _: &EventMeta<'_>| to.lock().expect("no panic").push(partial.run_id);
    of.ask(streamed()).observe("middleware.structured.partial", listener).await?;
    let bob = ["/name +Bob", r#"/name = "Bob""#, r#" = {"name":"Bob"}"#];
    let lines = log.lines();
    assert_eq!(lines[..3], ["/name +B", "/name +o", "discarded"]);
    assert_eq!(lines[3..6], bob);
    assert_eq!(lines[6..10], PARTS);
    let ids = ids.lock().unwrap();
    // Two attempts of the first run of the model, and the second run.
    assert!(ids[..5].iter().all(|id| *id == ids[0]) && ids[5..].iter().all(|id| *id == ids[5]) && ids[0] != ids[5]);
    Ok(())
}

#[tokio::test]
async fn the_parts_are_those_that_stages_and_filters_let_pass() -> Result<()> {
    let renames = hooks_fn("renames", |hooks| {
        hooks.chunks(|| {
            |chunks: &mut Chunks, _: &RunContext| {
                for delta in &mut chunks.deltas {
                    if let Delta::Text(text) = delta {
                        *text = text.replace("Ada", "Eve");
                    }
                }
                Ok(())
            }
        });
    });
    let (structured, log) = structured();
    let of = agent([Reply::text(RIGHT)])?.with(structured).with(renames).build()?;
    of.ask(streamed()).await?;
    assert_eq!(log.lines()[..2], ["/name +Eve", r#"/name = "Eve""#]);

    let secret = r#"{"name":"ada.partial@mailbox.org","born":1815}"#;
    for is_call in [false, true] {
        let (structured, log) = self::structured();
        let (structured, reply) =
            if is_call { (structured.by_tool(), call(secret)) } else { (structured, text(secret)) };
        let of = agent([reply.in_pieces(3)])?.with(structured).build()?;
        of.ask(streamed()).middleware(for_tree(Redact::new())).await?;
        assert!(log.lines().contains(&r#"/name = "[REDACTED:email]""#.to_owned()), "{:?}", log.lines());
        assert!(!log.lines().concat().contains("mailbox"));
    }
    Ok(())
}

#[tokio::test]
async fn prose_and_reasoning_have_no_parts_and_of_several_answers_the_first_has_them() -> Result<()> {
    let (structured, log) = structured();
    let thinks = [Delta::Reasoning(RIGHT.to_owned()), Delta::Text("I do not know.".to_owned())];
    let of = agent([Reply::deltas(thinks), text(RIGHT)])?.with(structured).build()?;
    of.ask(streamed()).await?;
    assert_eq!(log.lines()[..4], PARTS);

    let (structured, log) = self::structured();
    let two = ["Ada", "Bob"].map(|name| ToolCall::new(name, "final_answer", json!({"name": name, "born": 1})));
    let message = two.into_iter().fold(Message::assistant(""), Message::with_call);
    let of = agent([Reply::response(ChatResponse::new(message))])?.with(structured.by_tool()).build()?;
    let answer = of.ask(streamed()).await?;
    assert_eq!(answer.structured::<Value>()?["name"], "Ada");
    assert!(log.lines().contains(&r#"/name = "Ada""#.to_owned()) && !log.lines().concat().contains("Bob"));
    Ok(())
}
