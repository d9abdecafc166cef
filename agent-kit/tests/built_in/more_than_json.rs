//! Models that write more than the JSON that they were asked for.

use emitree_agent::{Agent, AgentInput, AgentRun, ChatModel, ChatOptions, Reply, ScriptedModel};
use emitree_agent_kit::built_in::{Partial, Structured, ToolSelector};
use emitree_emitter::EventMeta;
use emitree_runtime::{Result, RunContext};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::support::{Log, Text, agent};

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
struct Person {
    name: String,
    born: u32,
}

const RIGHT: &str = r#"{"name":"Ada","born":1815}"#;

/// Texts that contain `json`, as models write them.
fn texts_of(json: &str) -> [String; 7] {
    [
        json.to_owned(),
        format!("```json\n{json}\n```"),
        format!("<think>\nPerhaps {{\"name\": \"Bob\", \"tools\": []}}.\n</think>\n\n{json}"),
        format!("Here is the answer:\n{json}"),
        format!("Sure!\n\n```\n{json}\n```\n\nDo you need {{more}}?"),
        format!("<think></think>Of {{all}}, it is [1]:\n```json\n{json}\n```"),
        format!("The answer is `{json}`."),
    ]
}

fn plain(script: &ScriptedModel) -> Result<Agent> {
    Agent::builder("tester", ChatModel::new(script.clone())?).build()
}

#[tokio::test]
async fn a_typed_answer_is_found_in_a_fence_behind_thoughts_and_behind_a_sentence() -> Result<()> {
    for text in texts_of(RIGHT) {
        for structured in [Structured::of::<Person>(), Structured::of::<Person>().by_tool()] {
            let script = ScriptedModel::new("test").text(&text);
            let answer = plain(&script)?.ask("Who?").with(structured.attempts(0)).await?;
            assert_eq!(answer.structured::<Person>()?, Person { name: "Ada".to_owned(), born: 1815 }, "{text}");
            assert_eq!(answer.text(), text, "the text stays as the model wrote it");
        }
    }
    Ok(())
}

#[tokio::test]
async fn two_answers_that_differ_go_back_to_the_model() -> Result<()> {
    let two = format!("First {RIGHT}, then {}", RIGHT.replace("1815", "1816"));
    let script = ScriptedModel::new("test").text(two).text(RIGHT);
    let answer = plain(&script)?.ask("Who?").with(Structured::of::<Person>()).await?;
    assert_eq!(answer.structured::<Person>()?.born, 1815);
    let back = script.requests()[1].last_user_text();
    assert!(
        back.starts_with("Your answer does not fit: it has several JSON values that fit, and they differ"),
        "{back}"
    );
    Ok(())
}

#[tokio::test]
async fn the_parts_of_a_typed_answer_are_those_behind_thoughts_and_sentences() -> Result<()> {
    for text in texts_of(RIGHT) {
        for size in [1, 7, 1000] {
            let (structured, log) = (Structured::of::<Person>(), Log::default());
            let to = log.clone();
            structured.emitter().on("partial", move |partial: &mut Partial, _: &EventMeta<'_>| {
                to.add(partial.so_far().to_string());
            })?;
            let script = ScriptedModel::new("test").reply(Reply::text(&text).in_pieces(size));
            let streamed = AgentInput::from("go").options(ChatOptions::new().stream(true));
            plain(&script)?.ask(streamed).with(structured).await?;
            let lines = log.lines();
            let first = if size == 1 { r#"{"name":"A"}"# } else { "{\"name\":\"A" };
            assert!(lines[0].starts_with(first), "{text}, {size}: {lines:?}");
            let last: serde_json::Value = serde_json::from_str(lines.last().expect("parts"))?;
            assert_eq!(last, json!({"name": "Ada", "born": 1815}), "{text}, {size}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_selection_is_found_in_a_fence_behind_thoughts_and_behind_a_sentence() -> Result<()> {
    for text in texts_of(r#"{"tools": ["search"]}"#) {
        let tool = |name: &str| emitree_agent::tool_fn(name, "…", |_: Text, _: RunContext| async { Ok("ok") });
        let small = ChatModel::new(ScriptedModel::new("small").text(&text))?;
        let script = ScriptedModel::new("test").text("Done.");
        let helper = agent(&script).tool(tool("read")).tool(tool("search"));
        helper.with(ToolSelector::with(small).strict()).build()?.ask("Find it.").await?;
        let offered: Vec<_> = script.requests()[0].tools.iter().map(|tool| tool.name.clone()).collect();
        assert_eq!(offered, ["search"], "{text}");
    }
    Ok(())
}
