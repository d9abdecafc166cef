//! O5: runs of several services are one trace.

use std::time::Duration;

use emitree_emitter::{BoxError, Emitter, SinkHandle};
use emitree_otlp::Otlp;
use emitree_runtime::{RunContext, Runnable, TraceParent, runnable_fn};
use opentelemetry_proto::tonic::trace::v1::Span;

use crate::collector::Collector;

const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A service with a tree of emitters and an exporter of its own.
fn service(collector: &Collector) -> Result<(Emitter, SinkHandle), BoxError> {
    let app = Emitter::new();
    let traces = app.pipe_to(Otlp::to(&collector.url())?.sink())?;
    Ok((app, traces))
}

/// Runs work that calls another service, and returns the header that it would send.
async fn call(app: &Emitter, name: &'static str, header: &str) -> Result<String, BoxError> {
    let work = runnable_fn(name, |(): (), ctx: RunContext| async move { Ok(ctx.trace_parent().to_string()) });
    let parent = TraceParent::parse(header)?.with_state("vendor=7");
    Ok(work.with_emitter(app.child(name)?).run(()).trace_parent(parent).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runs_of_two_services_are_one_trace() -> Result<(), BoxError> {
    let collector = Collector::start([]).await;
    let ((front, front_traces), (back, back_traces)) = (service(&collector)?, service(&collector)?);
    let sent = call(&front, "front", HEADER).await?;
    call(&back, "back", &sent).await?;
    for traces in [front_traces, back_traces] {
        traces.close(Duration::from_secs(60)).await.complete()?;
    }
    let (front, back) = (collector.span("front"), collector.span("back"));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let ids = |span: &Span| [hex(&span.trace_id), hex(&span.parent_span_id)];
    assert_eq!(ids(&front), ["4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"]);
    assert_eq!(ids(&back), [hex(&front.trace_id), hex(&front.span_id)]);
    for span in [front, back] {
        // Sampled, and the parent is elsewhere.
        assert_eq!((&*span.trace_state, span.flags), ("vendor=7", 0x301));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_that_its_beginner_does_not_sample_is_not_exported() -> Result<(), BoxError> {
    let collector = Collector::start([]).await;
    let (app, traces) = service(&collector)?;
    let unsampled = HEADER.replace("b7-01", "b7-00");
    let sent = call(&app, "front", &unsampled).await?;
    assert!(sent.ends_with("-00"), "{sent}");
    traces.close(Duration::from_secs(60)).await.complete()?;
    assert_eq!(collector.spans(), []);
    Ok(())
}
