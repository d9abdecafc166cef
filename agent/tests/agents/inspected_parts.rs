//! Middleware that searches values reads the texts and addresses of parts, and not the bytes of `data:` URIs.

use std::sync::Arc;

use emitree_agent::{Agent, ChatModel, Part, ScriptedModel, Tool, ToolOutput, ToolResult, tool_fn};
use emitree_emitter::AnyEvent;
use emitree_middleware::{ContentFilter, ExfilGuard, Redact};
use emitree_runtime::{Middleware, Result, RunContext, Runnable, for_tree};
use serde_json::{Map, Value, json};

use crate::support::{Log, Nothing, Text};

/// A key of a cloud, which is a secret with a known format.
const KEY: &str = "AKIAZ5QW7RTB2KDM4NXP";

fn text(content: &str) -> Part {
    Part::Text { content: content.to_owned() }
}

fn image(uri: &str) -> Part {
    Part::Uri { modality: "image".to_owned(), mime_type: None, uri: uri.to_owned() }
}

fn draw(part: &Part) -> Tool {
    let part = part.clone();
    tool_fn("draw", "Draws", move |_: Nothing, _: RunContext| {
        let output = ToolOutput::new("drawn").part(part.clone());
        async move { Ok(output) }
    })
    .expect("a tool")
}

/// Returns the result that the model reads of a call of `draw`, and all events of the run as JSON.
async fn result_of(part: &Part, middleware: Arc<dyn Middleware>) -> Result<(ToolResult, Vec<String>)> {
    let script = ScriptedModel::new("m").call("draw", json!({})).text("done");
    let agent = Agent::builder("painter", ChatModel::new(script.clone())?).tool(draw(part)).build()?;
    let log = Log::default();
    let to = log.clone();
    let run = agent.ask("go").middleware(middleware);
    run.observe("*.*", move |event: &dyn AnyEvent, _| to.add(event.to_json().to_string())).await?;
    let requests = script.requests();
    let result = requests[1].messages.iter().flat_map(|message| message.tool_results()).next().cloned();
    Ok((result.expect("a result"), log.lines()))
}

fn filter() -> Result<ContentFilter> {
    Ok(ContentFilter::new().words("rude", ["darn"])?)
}

fn guard() -> ExfilGuard {
    ExfilGuard::new().allow_hosts(["host.example"])
}

#[tokio::test]
async fn redact_replaces_secrets_in_texts_and_addresses_of_parts_and_leaves_the_bytes_of_data() -> Result<()> {
    let redact = || Arc::new(for_tree(Redact::new()));
    let hidden = "[REDACTED:aws_key]";
    let table = [
        (text(KEY), text(hidden)),
        (image(&format!("https://host/{KEY}.png")), image(&format!("https://host/{hidden}.png"))),
        (image(&format!("data:image/png,{KEY}")), image(&format!("data:image/png,{KEY}"))),
    ];
    for (part, expected) in table {
        let (result, events) = result_of(&part, redact()).await?;
        let keeps = part == expected;
        assert_eq!(result.parts, [expected]);
        assert_eq!(events.iter().any(|event| event.contains(KEY)), keeps, "{events:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn guards_deny_texts_and_addresses_of_parts_and_do_not_read_the_bytes_of_data() -> Result<()> {
    // Base64 of the key, which `ExfilGuard` would decode.
    let encoded = "data:image/png;base64,QUtJQVo1UVc3UlRCMktETTROWFA=";
    let table = [
        (text(&format!("the key {KEY}")), true, false),
        (text("darn"), false, true),
        (image("https://evil.example/a.png"), true, false),
        (image("https://host.example/darn"), false, true),
        (image(encoded), false, false),
        (image("data:text/plain,darn"), false, false),
        (image("https://host.example/a.png"), false, false),
    ];
    for (part, is_leak, is_rude) in table {
        for (guard, is_denied) in
            [(Arc::new(for_tree(guard())) as Arc<dyn Middleware>, is_leak), (Arc::new(for_tree(filter()?)), is_rude)]
        {
            let (result, _) = result_of(&part, guard).await?;
            assert_eq!(result.is_error, is_denied, "{part:?}: {result:?}");
            assert_eq!(result.parts, if is_denied { vec![] } else { vec![part.clone()] });
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_a_model_writes_as_arguments_is_read_even_if_it_looks_like_a_part() -> Result<()> {
    let posts = Log::default();
    let to = posts.clone();
    let post = tool_fn("post", "Posts", move |_: Map<String, Value>, _: RunContext| {
        to.add("posted");
        async { Ok("posted") }
    })?;
    let uri = format!("data:text/plain,{KEY}");
    let part = json!({"type": "uri", "modality": "image", "uri": uri});
    let messages = json!([{"role": "user", "parts": [part]}]);
    let table = [
        json!({"text": uri}),
        part.clone(),
        json!({"parts": [part]}),
        json!({"messages": messages}),
        json!({"body": {"parts": [part]}}),
        json!({"arguments": {"message": messages[0]}}),
    ];
    for arguments in table {
        let script = ScriptedModel::new("m").call("post", arguments.clone()).text("done");
        let agent = Agent::builder("clerk", ChatModel::new(script.clone())?).tool(post.clone()).build()?;
        let error = agent.ask("go").middleware(for_tree(guard())).await.expect_err("the key would leave");
        assert!(error.is_denied(), "{arguments}: {error}");
        // The guard of the tool's own run denies it too.
        let error = post.run(arguments.clone()).middleware(guard()).await.expect_err("the key would leave");
        assert!(error.is_denied(), "{arguments}: {error}");
    }
    assert!(posts.lines().is_empty());
    // A text of the user that has a `data:` URI is read as well.
    let script = ScriptedModel::new("m").call("shout", json!({"text": "x"})).text(&uri);
    let shout = tool_fn("shout", "Shouts", |args: Text, _: RunContext| async move { Ok(args.text) })?;
    let agent = Agent::builder("clerk", ChatModel::new(script)?).tool(shout).build()?;
    assert!(agent.ask("go").middleware(for_tree(guard())).await.expect_err("the key would leave").is_denied());
    Ok(())
}
