//! O1, O2: the runs of an agent are spans with the ids of their records, live and from a recording.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use emitree_agent::{Agent, AgentRun, ChatModel, ChatOptions, Reply, ScriptedModel, Session, Tool, Usage, tool_fn};
use emitree_emitter::{BoxError, Sink};
use emitree_otlp::{Dialect, Otlp};
use emitree_runtime::{Error, RunContext, Runnable};
use emitree_sinks::Memory;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;

use crate::collector::{Collector, attributes};

type Result<T> = std::result::Result<T, BoxError>;

const LONG: Duration = Duration::from_secs(60);

/// A tool that fails at first.
fn shout() -> Result<Tool> {
    #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    struct Text {
        text: String,
    }
    let calls = AtomicU32::new(0);
    let shout = move |Text { text }, _: RunContext| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        async move { if call == 0 { Err(Error::new("busy").retryable(true)) } else { Ok(text.to_uppercase()) } }
    };
    Ok(tool_fn("shout", "Shouts a text", shout)?.retries(1))
}

fn librarian() -> Result<Agent> {
    let script = ScriptedModel::new("small")
        .reply(Reply::calls([("shout", json!({"text": "a"}))]).usage(Usage::new(1000, 20)))
        .reply(Reply::text("A").usage(Usage::new(2000, 30)));
    let options = ChatOptions::new().temperature(0.5).max_tokens(100).stop(["END"]).seed(7).stream(true);
    Ok(Agent::builder("librarian", ChatModel::new(script)?).tool(shout()?).options(options).build()?)
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
    agent.ask("Shout a.").session(&Session::with_id("order-17")?).await?;
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
    assert_eq!(spans.iter().map(tokens).collect::<Vec<_>>(), [Some(3000), Some(1000), None, Some(2000)]);
    let of_top = attributes(&top.attributes);
    assert_eq!(
        (&of_top["gen_ai.provider.name"], &of_top["gen_ai.request.model"]),
        (&json!("scripted"), &json!("small"))
    );
    let options = ["gen_ai.request.temperature", "gen_ai.request.max_tokens"].map(|name| of_top[name].clone());
    assert_eq!((options, &of_top["gen_ai.usage.output_tokens"]), ([json!(0.5), json!(100)], &json!(50)));
    let session = |span: &Span| attributes(&span.attributes).get("gen_ai.conversation.id").cloned();
    let expected = Some(json!("order-17"));
    assert_eq!(
        spans.iter().map(session).collect::<Vec<_>>(),
        [&expected, &expected, &None, &expected].map(Clone::clone)
    );
    Ok(())
}

/// A live sink without content receives heads, and a recording has whole payloads.
#[tokio::test(flavor = "multi_thread")]
async fn a_recording_has_the_spans_of_the_live_run_in_each_dialect_with_and_without_content() -> Result<()> {
    let (agent, memory) = (librarian()?, Memory::new());
    let recording = agent.emitter().pipe_to(memory.clone())?;
    let mut live = Vec::new();
    for (dialect, content) in
        [Dialect::GenAi, Dialect::OpenInference].into_iter().flat_map(|of| [(of, false), (of, true)])
    {
        let collector = Collector::start([]).await;
        let otlp = Otlp::to(&collector.url())?.dialect(dialect).content(content).event("tool_response");
        let traces = agent.emitter().pipe_to(otlp.sink())?;
        live.push((collector, otlp, traces));
    }
    agent.ask("Shout a.").await?;
    recording.close(LONG).await.complete()?;
    for (collector, otlp, traces) in live {
        traces.close(LONG).await.complete()?;
        let spans = sorted(collector.spans());
        // A sink may be written to inside of the runtime.
        let mut sink = otlp.sink();
        for record in memory.records() {
            sink.write(&record)?;
        }
        sink.close()?;
        let all = sorted(collector.spans());
        assert_eq!(all.len(), 8);
        for (number, span) in spans.iter().enumerate() {
            assert_eq!((span, span), (&all[2 * number], &all[2 * number + 1]), "{otlp:?}");
        }
    }
    Ok(())
}
