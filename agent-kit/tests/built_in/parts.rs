//! Results with parts, as middlewares of agents and transcripts take them.

use std::sync::Arc;

use emitree_agent::{AgentMiddleware, Message, Part, ScriptedModel, ToolOutput, ToolResult, tool_fn};
use emitree_agent_kit::built_in::{ClearToolResults, Guardrail, Judgement, LargeResults, transcript};
use emitree_middleware::values::{KeyValues, MemoryValues};
use emitree_runtime::{Result, RunContext};
use serde_json::json;

use super::{call, request_of, session_of};
use crate::support::{Log, Nothing, agent};

fn text(content: &str) -> Part {
    Part::Text { content: content.to_owned() }
}

fn image(uri: &str) -> Part {
    Part::Uri { modality: "image".to_owned(), mime_type: Some("image/png".to_owned()), uri: uri.to_owned() }
}

/// Returns the result that the model receives of a tool that returns "drawn" and parts.
async fn result_of(parts: Vec<Part>, middleware: impl AgentMiddleware) -> Result<ToolResult> {
    let draw = tool_fn("draw", "Draws", move |_: Nothing, _: RunContext| {
        let output = parts.iter().cloned().fold(ToolOutput::new("drawn"), ToolOutput::part);
        async move { Ok(output) }
    })?;
    let script = ScriptedModel::new("test").call("draw", json!({})).text("done");
    agent(&script).tool(draw).with(middleware).build()?.ask("go").await?;
    let requests = script.requests();
    Ok(requests[1].messages.iter().flat_map(|message| message.tool_results()).next().cloned().expect("a result"))
}

#[tokio::test]
async fn a_guardrail_judges_the_texts_and_addresses_of_parts_and_not_the_bytes_of_data() -> Result<()> {
    let log = Log::default();
    let judge = || {
        let log = log.clone();
        Guardrail::tool_result("calm", move |text, _| {
            log.add(text);
            let judgement = match text {
                text if text.contains("secret") => Judgement::Modify(text.replace("secret", "***")),
                text if text.contains("bad") => Judgement::block("it is bad"),
                _ => Judgement::Allow,
            };
            Box::pin(async move { Ok(judgement) })
        })
    };
    let parts = vec![text("a secret"), image("https://host/secret.png"), image("data:image/png,bad secret")];
    let result = result_of(parts, judge()).await?;
    assert_eq!(result.response, "drawn");
    assert_eq!(result.parts, [text("a ***"), image("https://host/***.png"), image("data:image/png,bad secret")]);
    assert_eq!(log.lines(), ["drawn", "a secret", "https://host/secret.png"]);
    for part in [text("bad"), image("https://bad.example")] {
        let result = result_of(vec![text("fine"), part], judge()).await?;
        assert_eq!((result.response, result.parts), (json!("denied by calm: it is bad"), vec![]));
    }
    Ok(())
}

// A17
#[tokio::test]
async fn large_texts_of_parts_are_stored_behind_the_content_and_images_stay() -> Result<()> {
    let picture = image(&format!("data:image/png;base64,{}", "A".repeat(1_000)));
    let (short, long) = (text("short"), text(&"x".repeat(100)));
    let store = MemoryValues::new();
    let large = || LargeResults::over_bytes(100).in_store(store.clone());
    let result = result_of(vec![short.clone(), picture.clone()], large()).await?;
    assert_eq!((result.response, result.parts), (json!("drawn"), vec![short.clone(), picture.clone()]));
    let result = result_of(vec![short, picture.clone(), long], large()).await?;
    // "drawn", "short" and 100 times "x", with blank lines between them.
    assert_eq!(
        (&result.response["bytes"], &result.response["head"]),
        (&json!(114), &json!("drawn\n\nshort\n\nxxxxxxxxxxx"))
    );
    assert_eq!(result.parts, [picture]);
    // No session needs it after the run.
    assert_eq!(store.keys(None).await?.len(), 0);
    Ok(())
}

#[tokio::test]
async fn a_cleared_result_has_no_parts() -> Result<()> {
    let [asks, _] = call("x", "");
    let with = |parts| {
        let mut result = ToolResult::new("c", "drawn");
        result.parts = parts;
        Message::tool([result])
    };
    let history = [asks.clone(), with(vec![image("https://host/a.png")]), asks, with(vec![text("b")])];
    let request = request_of(&session_of(history)?, ClearToolResults::keep(1).over_tokens(1)).await?;
    let results: Vec<_> = request.messages.iter().flat_map(|message| message.tool_results()).collect();
    assert_eq!((&results[0].response, &results[0].parts), (&json!("[cleared]"), &vec![]));
    assert_eq!((&results[1].response, &results[1].parts), (&json!("drawn"), &vec![text("b")]));
    Ok(())
}

#[tokio::test]
async fn a_transcript_has_the_texts_and_the_type_and_size_of_images_of_a_result() {
    let [asks, _] = call("x", "");
    let mut result = ToolResult::new("c", "drawn");
    result.parts = vec![text("Of May."), image("data:image/png;base64,AAAA")];
    let shown = transcript(&[Arc::new(asks), Arc::new(Message::tool([result]))]);
    assert_eq!(shown, "call of x: {}\n\nresult of x: drawn Of May. [image/png, 3 B]");
}
