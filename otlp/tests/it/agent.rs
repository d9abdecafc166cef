//! O1, O2: the runs of an agent are spans with the ids of their records, live and from a recording.

use std::time::Duration;

use emitree_agent::{Agent, ChatModel, Reply, ScriptedModel, Tool, Usage, tool_fn};
use emitree_emitter::{BoxError, Sink};
use emitree_otlp::Otlp;
use emitree_runtime::{RunContext, Runnable};
use emitree_sinks::Memory;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;

use crate::collector::{Collector, attributes};

type Result<T> = std::result::Result<T, BoxError>;

const LONG: Duration = Duration::from_secs(60);

fn shout() -> Result<Tool> {
    #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    struct Text {
        text: String,
    }
    let shout = |Text { text }, _: RunContext| async move { Ok(text.to_uppercase()) };
    Ok(tool_fn("shout", "Shouts a text", shout)?)
}

fn librarian() -> Result<Agent> {
    let script = ScriptedModel::new("small")
        .reply(Reply::calls([("shout", json!({"text": "a"}))]).usage(Usage::new(1000, 20)))
        .reply(Reply::text("A").usage(Usage::new(2000, 30)));
    Ok(Agent::builder("librarian", ChatModel::new(script)?).tool(shout()?).build()?)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Spans in an order that does not depend on the requests that they came in.
fn sorted(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by(|a, b| (a.start_time_unix_nano, &a.span_id).cmp(&(b.start_time_unix_nano, &b.span_id)));
    spans
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runs_of_an_agent_are_spans_with_names_kinds_parents_and_times() -> Result<()> {
    let (collector, agent, memory) = (Collector::start([]).await, librarian()?, Memory::new());
    let otlp = Otlp::to(&collector.url())?;
    let traces = agent.emitter().pipe_to(otlp.sink())?;
    let recording = agent.emitter().pipe_to(memory.clone())?;
    agent.ask("Shout a.").await?;
    traces.close(LONG).await.complete()?;
    recording.close(LONG).await.complete()?;

    let spans = sorted(collector.spans());
    let names: Vec<_> = spans.iter().map(|span| (&*span.name, span.kind().as_str_name())).collect();
    let expected = [
        ("invoke_agent librarian", "SPAN_KIND_INTERNAL"),
        ("chat small", "SPAN_KIND_CLIENT"),
        ("execute_tool shout", "SPAN_KIND_INTERNAL"),
        ("chat small", "SPAN_KIND_CLIENT"),
    ];
    assert_eq!(names, expected);
    let top = &spans[0];
    let run = memory.records()[0].as_event().and_then(|event| event.trace).expect("a run");
    assert_eq!(hex(&top.trace_id), run.id.simple().to_string());
    assert_eq!(hex(&top.span_id), run.run_id.simple().to_string()[16..]);
    assert_eq!((&*top.parent_span_id, top.flags), (&[][..], 0x101));
    for span in &spans[1..] {
        assert_eq!((&span.trace_id, &span.parent_span_id), (&top.trace_id, &top.span_id));
        assert!(top.start_time_unix_nano <= span.start_time_unix_nano);
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
    }
    let tokens = |span: &Span| attributes(&span.attributes).get("gen_ai.usage.input_tokens")?.as_i64();
    assert_eq!(spans.iter().map(tokens).collect::<Vec<_>>(), [None, Some(1000), None, Some(2000)]);

    // The same records, written to another sink inside of the runtime, give the same spans.
    let again = Collector::start([]).await;
    let mut sink = Otlp::to(&again.url())?.sink();
    for record in memory.records() {
        sink.write(&record)?;
    }
    sink.close()?;
    assert_eq!(sorted(again.spans()), spans);
    Ok(())
}
