//! Records that tests make, and the spans that they become.

use emitree_emitter::{Sink, SinkRecord};
use emitree_otlp::Otlp;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};

use crate::collector::Collector;

pub(crate) const TOP: &str = "01a220d4-9313-70f2-b2ad-6751bb32e81b";
pub(crate) const CHILD: &str = "01a220d4-9314-7676-8175-bcad47efc75a";

/// Makes the record of an event of a run, at a second of 1970. The event is a lifecycle event if its name begins with
/// `run.`.
pub(crate) fn record(second: u32, kind: &str, run: &str, name: &str, payload: &Value) -> SinkRecord {
    let parent = (run == CHILD).then_some(TOP);
    let is_lifecycle = name.starts_with("run.");
    let record = json!({
        "id": "01a220d4-9313-71fe-a093-78e0a2246515", "path": format!("some.path.{name}"),
        "created_at": format!("1970-01-01T00:00:{second:02}.5Z"),
        "creator": {"kind": kind, "name": "some", "id": 7},
        "context": if is_lifecycle { json!({"internal": true}) } else { json!({}) }, "group_id": null,
        "trace": {"id": TOP, "run_id": run, "parent_run_id": parent}, "payload_type": "T", "payload": payload,
    });
    SinkRecord::from_json(&record.to_string()).unwrap()
}

/// Makes the record of a run's `start` that has these facts about the trace of another process, and this parent.
pub(crate) fn joined(second: u32, run: &str, parent: Option<&str>, facts: &Value) -> SinkRecord {
    let start = serde_json::to_string(&record(second, "Tool", run, "run.start", &json!({}))).unwrap();
    let mut start: Value = serde_json::from_str(&start).unwrap();
    start["context"]["trace"] = facts.clone();
    start["trace"]["parent_run_id"] = json!(parent);
    SinkRecord::from_json(&start.to_string()).unwrap()
}

/// The `finish` of a run that took this number of seconds.
pub(crate) fn finish(second: u32, kind: &str, run: &str, seconds: u64) -> SinkRecord {
    let payload = json!({"outcome": {"status": "success"}, "duration_ns": seconds * 1_000_000_000});
    record(second, kind, run, "run.finish", &payload)
}

pub(crate) fn gap(lost: u64) -> SinkRecord {
    SinkRecord::from_json(&json!({"gap": {"lost": lost}}).to_string()).unwrap()
}

/// Exports records, and returns the spans that a collector receives.
pub(crate) async fn exported(
    records: impl IntoIterator<Item = SinkRecord>,
    set: impl FnOnce(Otlp) -> Otlp,
) -> Vec<Span> {
    let collector = Collector::start([]).await;
    let mut sink = set(Otlp::to(&collector.url()).unwrap()).sink();
    for record in records {
        sink.write(&record).unwrap();
    }
    // The sink blocks its thread, and the collector needs one too.
    tokio::task::spawn_blocking(move || sink.close().unwrap()).await.unwrap();
    collector.spans()
}
