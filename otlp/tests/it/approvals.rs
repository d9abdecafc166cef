//! The calls of an agent that a person has decided about: the executed input, the approval as an event, and the id.

use std::time::Duration;

use emitree_agent::kinds::Handoff;
use emitree_agent::{Agent, AgentRun, ChatModel, Delta, FinishReason, Reply, ScriptedModel, Session, Tool, tool_fn};
use emitree_emitter::{BoxError, Creator, Emitter, Sink};
use emitree_middleware::Runs;
use emitree_middleware::approval::{Approval, Decision};
use emitree_otlp::Otlp;
use emitree_runtime::{Answer, Answers, RunContext, Runnable, for_tree, runnable_fn};
use emitree_sinks::Memory;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};

use crate::collector::{Collector, attributes};

type Result<T> = std::result::Result<T, BoxError>;

const LONG: Duration = Duration::from_secs(60);

fn delete() -> Result<Tool> {
    #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    struct File {
        path: String,
    }
    Ok(tool_fn(
        "delete",
        "Deletes a file",
        |File { path }, _: RunContext| async move { Ok(format!("{path} is gone")) },
    )?)
}

fn clerk() -> Result<Agent> {
    let script = ScriptedModel::new("small").call("delete", json!({"path": "/"})).text("Done.");
    let approval = Approval::by_interrupt().runs(Runs::named("delete"));
    Ok(Agent::builder("clerk", ChatModel::new(script)?).tool(delete()?).middleware(for_tree(approval)).build()?)
}

/// Returns the spans of a question and its answer, live and from the recording, in the order of their ends.
async fn answered(decision: Decision, content: bool) -> Result<Vec<Span>> {
    let (live, recorded, memory) = (Collector::start([]).await, Collector::start([]).await, Memory::new());
    let agent = clerk()?;
    let of = |collector: &Collector| Otlp::to(&collector.url()).map(|otlp| otlp.content(content));
    let traces = agent.emitter().pipe_to(of(&live)?.sink())?;
    let recording = agent.emitter().pipe_to(memory.clone())?;
    let session = Session::with_id("order-17")?;
    agent.ask("Delete it.").session(&session).await.expect_err("a question");
    session.answer(&session.questions()[0].id, Answer::from(decision).by("ada")).await?;
    agent.resume(&session).await?;
    traces.close(LONG).await.complete()?;
    recording.close(LONG).await.complete()?;
    let mut sink = of(&recorded)?.sink();
    for record in memory.records() {
        sink.write(&record)?;
    }
    tokio::task::spawn_blocking(move || sink.close().expect("a close")).await?;
    let spans = live.spans();
    assert_eq!(spans, recorded.spans());
    Ok(spans)
}

/// Returns the events of the spans with a name, with their attributes.
fn events(spans: &[Span], name: &str) -> Value {
    let of_name = spans.iter().filter(|span| span.name == name);
    let events = of_name.flat_map(|span| &span.events).map(|event| json!([event.name, attributes(&event.attributes)]));
    events.collect()
}

/// Returns an attribute of each span of the tool.
fn of_tool(spans: &[Span], name: &str) -> Value {
    let tools = spans.iter().filter(|span| span.name == "execute_tool delete");
    tools.map(|span| attributes(&span.attributes).get(name).cloned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_edit_a_span_has_the_executed_input_and_the_approval_as_an_event() -> Result<()> {
    for content in [false, true] {
        let spans = answered(Decision::Edit(json!({"path": "/tmp"})), content).await?;
        let arguments = if content { json!([r#"{"path":"/"}"#, r#"{"path":"/tmp"}"#]) } else { json!([null, null]) };
        assert_eq!(of_tool(&spans, "gen_ai.tool.call.arguments"), arguments);
        assert_eq!(of_tool(&spans, "gen_ai.tool.call.id")[0], of_tool(&spans, "gen_ai.tool.call.id")[1]);
        let approved = json!(["approval.approved", {"emitree.by": "ada"}]);
        assert_eq!(events(&spans, "execute_tool delete"), json!([["approval.asked", {}], approved]));
        let of_agent = events(&spans, "invoke_agent clerk");
        assert_eq!([&of_agent[0][0], &of_agent[1][0]], ["resumed", "answered"]);
        let facts = json!({
            "emitree.by": "ada", "emitree.edited": true, "gen_ai.tool.call.id": of_tool(&spans, "gen_ai.tool.call.id")[0],
        });
        assert_eq!(of_agent[1][1], facts);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_input_that_an_approval_edits_in_the_run_itself_takes_the_place_of_the_one_before() -> Result<()> {
    for content in [false, true] {
        let (collector, app) = (Collector::start([]).await, Emitter::new());
        let traces = app.pipe_to(Otlp::to(&collector.url())?.content(content).sink())?;
        let emitter = app.child_builder("work").creator(Creator::new("Tool", "work")).build()?;
        let work = runnable_fn("work", |input: Value, _: RunContext| async move { Ok(input) }).with_emitter(emitter);
        let error = work.run(json!("old")).middleware(Approval::by_interrupt()).await.expect_err("a question");
        let answers = Answers::new();
        let question = error.interrupt().expect("a question").id.clone();
        answers.answer(question, Answer::from(Decision::Edit(json!("new"))).by("ada"));
        work.run(json!("old")).middleware(Approval::by_interrupt()).extension(answers).await?;
        traces.close(LONG).await.complete()?;
        let span = collector.spans().pop().expect("a span");
        let facts = attributes(&span.attributes);
        assert_eq!(facts.get("gen_ai.tool.call.arguments"), content.then(|| json!(r#""new""#)).as_ref());
        let edited =
            if content { json!({"emitree.by": "ada", "emitree.input": "new"}) } else { json!({"emitree.by": "ada"}) };
        assert_eq!(events(&[span], "execute_tool work"), json!([["approval.edited", edited]]));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_call_has_its_id() -> Result<()> {
    let spans = answered(Decision::reject("never"), false).await?;
    assert_eq!(of_tool(&spans, "emitree.outcome"), json!(["interrupted", "denied"]));
    let id = of_tool(&spans, "gen_ai.tool.call.id");
    assert!(id[0].is_string() && id[0] == id[1], "{id}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_handoff_the_finish_reason_is_that_of_the_target() -> Result<()> {
    let collector = Collector::start([]).await;
    let cut = Reply::deltas([Delta::Text("You have".into()), Delta::Finish(FinishReason::Length)]);
    let billing = Agent::builder("billing", ChatModel::new(ScriptedModel::new("b").reply(cut))?).build()?;
    let script = ScriptedModel::new("a").call("transfer_to_billing", json!({"reason": "an invoice"}));
    let support =
        Agent::builder("support", ChatModel::new(script)?).handoff(Handoff::to(&billing, "Invoices")).build()?;
    let traces = support.emitter().pipe_to(Otlp::to(&collector.url())?.content(true).sink())?;
    support.ask("My invoice is wrong.").await?;
    traces.close(LONG).await.complete()?;
    for name in ["invoke_agent support", "invoke_agent billing"] {
        let facts = attributes(&collector.span(name).attributes);
        let messages = facts["gen_ai.output.messages"].as_str().expect("JSON");
        assert_eq!(serde_json::from_str::<Value>(messages)?[0]["finish_reason"], "length", "{name}");
    }
    Ok(())
}
