//! O2, O5: spans of records that lack something, or have more than a start and an end.

use emitree_otlp::Otlp;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};

use crate::collector::attributes;
use crate::records::{CHILD, TOP, exported, finish, gap, joined, record};

fn none(otlp: Otlp) -> Otlp {
    otlp
}

/// Returns the start and the end of a span, in tenths of seconds since 1970.
fn times(span: &Span) -> (u64, u64) {
    (span.start_time_unix_nano / 100_000_000, span.end_time_unix_nano / 100_000_000)
}

fn start(second: u32, run: &str) -> emitree_emitter::SinkRecord {
    record(second, "Tool", run, "run.start", &json!({"input": 1, "output": null}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_span_lasts_from_start_for_the_duration_of_its_run() {
    // The record of `finish` is later than the run's end, because listeners took their time.
    let spans = exported([start(1, TOP), finish(9, "Tool", TOP, 4)], none).await;
    assert_eq!(spans.iter().map(times).collect::<Vec<_>>(), [(15, 55)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_start_was_recorded_late_begins_at_its_end_minus_its_duration() {
    let spans = exported([start(5, TOP), finish(9, "Tool", TOP, 6)], none).await;
    assert_eq!(spans.iter().map(times).collect::<Vec<_>>(), [(35, 95)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_start_was_lost_begins_at_its_end_minus_its_duration() {
    let records = [gap(3), record(4, "Tool", TOP, "start", &json!({"call_id": "c"})), finish(9, "Tool", TOP, 8)];
    let spans = exported(records, none).await;
    assert_eq!(spans.iter().map(times).collect::<Vec<_>>(), [(15, 95)]);
    let facts = attributes(&spans[0].attributes);
    // The events before the run's first record were not lost in it.
    assert_eq!((facts.get("emitree.lost_events"), &facts["gen_ai.tool.call.id"]), (None, &json!("c")));
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_are_open_at_the_close_are_sent_as_incomplete() {
    let spans = exported([start(1, TOP), start(2, CHILD), record(5, "X", CHILD, "progress", &json!(1))], none).await;
    assert_eq!(spans.iter().map(times).collect::<Vec<_>>(), [(15, 15), (25, 55)]);
    for span in &spans {
        let facts = attributes(&span.attributes);
        assert_eq!((&facts["emitree.incomplete"], facts.get("emitree.outcome")), (&json!(true), None));
        assert_eq!((&*span.name, span.status.clone().unwrap_or_default().code), ("execute_tool some", 0));
    }
}

/// A run of which only one own event was recorded has no kind and no name.
#[tokio::test(flavor = "multi_thread")]
async fn no_span_has_an_empty_name() {
    let spans = exported([record(1, "Middleware", TOP, "retry", &json!({}))], none).await;
    assert_eq!(spans.iter().map(|span| &*span.name).collect::<Vec<_>>(), ["run"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_marks_the_open_spans_with_the_number_of_lost_events() {
    let end = [finish(5, "Tool", CHILD, 1), gap(2), finish(6, "Tool", TOP, 1)];
    let records = [gap(100), start(1, TOP), gap(4), start(2, CHILD), gap(3)].into_iter().chain(end);
    let spans = exported(records, none).await;
    let lost: Vec<_> = spans.iter().map(|span| attributes(&span.attributes)["emitree.lost_events"].clone()).collect();
    assert_eq!(lost, [json!(3), json!(9)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_finish_was_lost_ends_as_incomplete_with_the_run_above() {
    let progress = record(3, "Tool", CHILD, "progress", &json!(1));
    let lost = [start(1, TOP), start(2, CHILD), progress, gap(5), finish(6, "Tool", TOP, 5)];
    let later = [record(7, "Tool", CHILD, "progress", &json!(1))];
    let spans = exported(lost.into_iter().chain(later), none).await;
    assert_eq!(spans.iter().map(times).collect::<Vec<_>>(), [(25, 35), (15, 65)]);
    let incomplete = |span: &Span| attributes(&span.attributes).contains_key("emitree.incomplete");
    assert_eq!(spans.iter().map(incomplete).collect::<Vec<_>>(), [true, false]);
}

#[tokio::test(flavor = "multi_thread")]
async fn later_events_of_a_run_that_has_ended_open_no_span() {
    let late = record(9, "Middleware", TOP, "trajectory.finish", &json!({}));
    let spans = exported([start(1, TOP), finish(2, "Tool", TOP, 1), late], none).await;
    assert_eq!(spans.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn own_events_that_explain_a_run_are_events_of_its_span() {
    let own = |second, name: &str, payload: Value| record(second, "X", TOP, name, &payload);
    let records = [
        start(1, TOP),
        own(2, "attempt_discarded", json!({"attempt": 0, "reason": "busy", "metadata": null})),
        own(3, "retry", json!({"retry": 1, "error": {"message": "no"}})),
        own(3, "middleware.retry.retry", json!({"attempt": 2, "delay_ms": 5, "cause": "no", "kind": "failed"})),
        own(4, "fell_back", json!({"from": "a", "to": "b", "error": {"message": "no"}})),
        own(4, "middleware.fallback.answered", json!({"by": "c", "after": []})),
        own(5, "would_deny", json!({"guard": "policy", "at": "input", "reason": "rude"})),
        own(6, "secret_event", json!({"text": "secret"})),
        own(6, "asked_for", json!({"text": "secret"})),
        finish(7, "Tool", TOP, 6),
    ];
    let events = |spans: &[Span]| -> Value {
        spans[0].events.iter().map(|event| json!([event.name, attributes(&event.attributes)])).collect()
    };
    let spans = exported(records.clone(), |otlp| otlp.event("asked_for")).await;
    let expected = json!([
        ["attempt_discarded", {"emitree.reason": "busy"}], ["retry", {"emitree.retry": 1}], ["retry", {}],
        ["fell_back", {"emitree.from": "a", "emitree.to": "b"}], ["fallback.answered", {}],
        ["would_deny", {"emitree.by": "policy"}], ["asked_for", {}],
    ]);
    assert_eq!(events(&spans), expected);
    assert_eq!(spans[0].events[0].time_unix_nano, 2_500_000_000);
    assert_eq!(attributes(&spans[0].attributes)["emitree.discarded_attempts"], 1);
    let spans = exported(records, |otlp| otlp.event("asked_for").content(true)).await;
    let expected = json!([
        ["attempt_discarded", {"emitree.reason": "busy"}],
        ["retry", {"emitree.retry": 1, "exception.message": "no"}],
        ["retry", {"exception.message": "no"}],
        ["fell_back", {"emitree.from": "a", "emitree.to": "b", "exception.message": "no"}],
        ["fallback.answered", {"emitree.by": "c"}],
        ["would_deny", {"emitree.by": "policy", "emitree.reason": "rude"}],
        ["asked_for", {}],
    ]);
    assert_eq!(events(&spans), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_a_span_above_the_limit_are_counted() {
    let discarded = (0..200).map(|_| record(2, "X", TOP, "attempt_discarded", &json!({"reason": "busy"})));
    let records = [start(1, TOP)].into_iter().chain(discarded).chain([finish(3, "Tool", TOP, 1)]);
    let spans = exported(records, none).await;
    assert_eq!((spans[0].events.len(), spans[0].dropped_events_count), (128, 72));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_run_has_a_link_to_the_run_that_it_continues() {
    let resumed = json!({"continues": CHILD, "turn": {}, "executed": [], "demoted": []});
    let again = [start(4, TOP), record(5, "Agent", TOP, "resumed", &resumed), finish(6, "Tool", TOP, 1)];
    let links = |spans: &[Span]| -> Vec<(String, String)> {
        spans.last().unwrap().links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect()
    };
    let (top, child) = (TOP.replace('-', ""), CHILD.replace('-', ""));
    // A run that this sink has seen is linked with its trace, any other as the outermost run of a trace.
    let seen = [start(1, CHILD), finish(2, "Tool", CHILD, 1)].into_iter().chain(again.clone());
    assert_eq!(links(&exported(seen, none).await), [(top, child[16..].to_owned())]);
    assert_eq!(links(&exported(again, none).await), [(child.clone(), child[16..].to_owned())]);
}

/// The span id of another process, as the parent's id of a run.
const FOREIGN: &str = "00000000-0000-0000-00f0-67aa0ba902b7";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_a_foreign_trace_lies_below_the_foreign_span() {
    let facts = json!({"flags": 3, "state": "vendor=7"});
    let below = [start(2, CHILD), finish(3, "Tool", CHILD, 1)];
    let records = [joined(1, TOP, Some(FOREIGN), &facts)].into_iter().chain(below).chain([finish(4, "Tool", TOP, 3)]);
    let spans = exported(records, none).await;
    let parents: Vec<_> = spans.iter().map(|span| (hex(&span.parent_span_id), span.flags)).collect();
    // The parent of the first is known to be here, and the parent of the second to be elsewhere.
    assert_eq!(parents, [(TOP.replace('-', "")[16..].to_owned(), 0x103), ("00f067aa0ba902b7".to_owned(), 0x303)]);
    assert!(spans.iter().all(|span| span.trace_state == "vendor=7"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_that_began_a_trace_decides_for_all_of_its_runs() {
    for (flags, is_exported) in [(0, false), (2, false), (1, true)] {
        let start = joined(1, TOP, Some(FOREIGN), &json!({"flags": flags}));
        let below = [record(2, "Tool", CHILD, "retry", &json!({})), finish(3, "Tool", CHILD, 1)];
        let records = [start].into_iter().chain(below).chain([finish(4, "Tool", TOP, 3)]);
        let spans = exported(records, none).await;
        assert_eq!(spans.len(), if is_exported { 2 } else { 0 }, "flags {flags}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_a_parent_here_links_to_the_foreign_span() {
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let link = json!({"trace_id": trace, "span_id": "00f067aa0ba902b7", "flags": 0, "state": "vendor=7"});
    let invalid = json!({"trace_id": "***", "span_id": 7});
    let start = joined(1, CHILD, Some(TOP), &json!({"links": [link, invalid]}));
    let spans = exported([start, finish(2, "Tool", CHILD, 1)], none).await;
    let [link] = &*spans[0].links else { panic!("{:?}", spans[0].links) };
    assert_eq!((hex(&link.trace_id), hex(&link.span_id)), (trace.to_owned(), "00f067aa0ba902b7".to_owned()));
    assert_eq!((&*link.trace_state, link.flags, spans[0].flags), ("vendor=7", 0, 0x101));
}

/// A recorder may have replaced any payload, and a recording may come from another version.
#[tokio::test(flavor = "multi_thread")]
async fn payloads_that_cannot_be_read_leave_a_span_without_their_facts() {
    for payload in [json!(null), json!("***"), json!([1]), json!({"input": 7, "output": "***", "request": "***"})] {
        let chat = |second, name: &str| record(second, "ChatModel", TOP, name, &payload);
        let records = ["run.start", "start", "usage", "success", "run.success", "resumed", "retry", "run.finish"];
        let records = records.into_iter().zip(1..).map(|(name, second)| chat(second, name));
        let spans = exported(records, |otlp| otlp.content(true)).await;
        assert_eq!(spans.len(), 1, "{payload}");
        assert_eq!((&*spans[0].name, times(&spans[0])), ("chat some", (15, 85)), "{payload}");
    }
}
