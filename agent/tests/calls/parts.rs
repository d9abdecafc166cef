//! Results with parts: texts, images, sounds and files that a tool returns beside its content.

use emitree_agent::{
    Agent, AgentBuilder, AgentRun, ChatModel, HooksFn, Part, ScriptedModel, Session, Tool, ToolOutput, ToolResponse,
    ToolResult, hooks_fn, tool_fn,
};
use emitree_runtime::{Error, Interrupt, Result, RunContext};
use serde_json::json;

use crate::support::{Log, Nothing, assert_valid};

const MIB: usize = 1 << 20;

fn text(content: impl Into<String>) -> Part {
    Part::Text { content: content.into() }
}

fn image(uri: impl Into<String>) -> Part {
    Part::Uri { modality: "image".to_owned(), mime_type: Some("image/png".to_owned()), uri: uri.into() }
}

/// A tool that returns these parts.
fn draw(parts: Vec<Part>) -> Tool {
    tool_fn("draw", "Draws", move |_: Nothing, _: RunContext| {
        let output = ToolOutput::new("drawn").detail("seed", 7);
        let output = parts.iter().cloned().fold(output, ToolOutput::part);
        async move { Ok(output) }
    })
    .expect("a tool")
}

fn agent(script: &ScriptedModel, tool: Tool) -> AgentBuilder {
    Agent::builder("painter", ChatModel::new(script.clone()).expect("a model")).tool(tool)
}

fn script() -> ScriptedModel {
    ScriptedModel::new("m").call("draw", json!({})).text("done")
}

/// Returns the result that the model received.
fn received(script: &ScriptedModel) -> ToolResult {
    let requests = script.requests();
    let results = requests[1].messages.iter().flat_map(|message| message.tool_results());
    results.last().cloned().expect("a result")
}

#[tokio::test]
async fn the_model_the_history_and_listeners_receive_the_parts_of_a_result() -> Result<()> {
    let parts = vec![text("The chart:"), image("https://host/a.png")];
    let (script, session, log) = (script(), Session::new(), Log::default());
    let to = log.clone();
    let agent = agent(&script, draw(parts.clone())).build()?;
    let run = agent.ask("go").session(&session);
    run.observe("tool_response", move |event: &ToolResponse, _| to.add(format!("{}", event.result.parts.len())))
        .await?;
    let result = received(&script);
    assert_eq!((&result.response, &result.parts, result.is_error), (&json!("drawn"), &parts, false));
    assert_eq!(log.lines(), ["2"]);
    assert_eq!(assert_valid(&session).messages()[2].tool_results().next(), Some(&result));
    // "drawn", "The chart:" and the address.
    assert_eq!(session.history().messages()[2].text_len(), 5 + 10 + 18);
    let stored: Session = serde_json::from_value(serde_json::to_value(&session)?)?;
    assert_eq!(stored.history(), session.history());
    Ok(())
}

#[tokio::test]
async fn a_resumed_turn_keeps_the_parts_of_results_that_were_there_before() -> Result<()> {
    let calls = ScriptedModel::new("m").calls([("draw", json!({})), ("ask", json!({}))]).text("done");
    let ask = tool_fn("ask", "Asks", |_: Nothing, ctx: RunContext| async move {
        ctx.ask::<String>(Interrupt::new("name", json!({})))
    })?;
    let agent = agent(&calls, draw(vec![image("data:image/png;base64,AA==")])).tool(ask.idempotent()).build()?;
    let session = Session::new();
    assert!(agent.ask("go").session(&session).await.unwrap_err().is_interrupted());
    let session: Session = serde_json::from_value(serde_json::to_value(&session)?)?;
    let question = session.questions().remove(0);
    session.answer(&question.id, json!("Ada")).await?;
    agent.resume(&session).await?;
    let requests = calls.requests();
    let results: Vec<_> = requests[1].messages.iter().flat_map(|message| message.tool_results()).collect();
    assert_eq!(results[0].parts, [image("data:image/png;base64,AA==")]);
    assert_eq!((&results[1].response, &results[1].parts[..]), (&json!("Ada"), &[][..]));
    Ok(())
}

/// Returns the result of the call, made by the tool, the gate or the hook.
async fn result_of(tool: Tool, with: HooksFn) -> Result<ToolResult> {
    let script = script();
    let session = Session::new();
    agent(&script, tool).with(with).build()?.ask("go").session(&session).await?;
    assert_valid(&session);
    Ok(received(&script))
}

fn nothing() -> HooksFn {
    hooks_fn("nothing", |_| {})
}

fn by_gate(parts: Vec<Part>) -> HooksFn {
    hooks_fn("gate", move |hooks| {
        let parts = parts.clone();
        hooks.on_gate_each(move |gated, _| {
            gated.answer(parts.iter().cloned().fold(ToolOutput::new("ok"), ToolOutput::part));
        });
    })
}

fn by_hook(parts: Vec<Part>) -> HooksFn {
    hooks_fn("hook", move |hooks| {
        let parts = parts.clone();
        hooks.on_result(move |result, _| result.output.parts.clone_from(&parts));
    })
}

#[tokio::test]
async fn parts_that_are_too_large_or_of_another_kind_make_the_result_an_error_that_says_so() -> Result<()> {
    let blank = |bytes: usize| text(" ".repeat(bytes));
    let table = [
        (vec![blank(8 * MIB), blank(8 * MIB)], None),
        (
            vec![blank(1), blank(8 * MIB + 1)],
            Some("part 1 of the result has 8388609 bytes: a part has at most 8388608"),
        ),
        (
            vec![image(format!("data:{}", "A".repeat(8 * MIB)))],
            Some("part 0 of the result has 8388627 bytes: a part has at most 8388608"),
        ),
        (
            vec![blank(8 * MIB), blank(8 * MIB), blank(1)],
            Some("the parts of the result have 16777217 bytes: they have at most 16777216"),
        ),
        (
            vec![blank(1), Part::reasoning("hm", None)],
            Some("the result has a reasoning as part 1: parts are texts and references to content"),
        ),
    ];
    for (parts, fault) in table {
        let by_tool = result_of(draw(parts.clone()), nothing()).await?;
        let by_gate = result_of(draw(vec![]), by_gate(parts.clone())).await?;
        let by_hook = result_of(draw(vec![]), by_hook(parts.clone())).await?;
        for result in [by_tool, by_gate, by_hook] {
            assert_eq!(result.is_error, fault.is_some());
            match fault {
                Some(fault) => assert_eq!((result.response, result.parts), (json!(fault), vec![])),
                None => assert_eq!(result.parts, parts),
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_failed_hook_leaves_no_parts_and_a_failed_output_keeps_its_details() -> Result<()> {
    let fails = hooks_fn("fails", |hooks| {
        hooks.on_result(|_, _| Err(Error::new("no")));
    });
    let result = result_of(draw(vec![image("https://host/a.png")]), fails).await?;
    assert_eq!((result.response, result.parts), (json!("no"), vec![]));

    let log = Log::default();
    let to = log.clone();
    let reads = hooks_fn("reads", move |hooks| {
        let to = to.clone();
        hooks.on_result(move |result, _| to.add(result.output.details["seed"].to_string()));
    });
    result_of(draw(vec![Part::reasoning("hm", None)]), reads).await?;
    assert_eq!(log.lines(), ["7"]);
    Ok(())
}
