//! R16: a run joins the trace of its caller in another process, and is named to the services that it calls.
//!
//! The tables of headers have the vectors of W3C's test suite (`trace-context/test/test.py`), and some more. `#` stands
//! for two valid ids.

use std::sync::{Arc, Mutex};

use emitree_emitter::{AnyEvent, Emitter, EventMeta, EventRecord, SinkRecord, Trace};
use emitree_runtime::{RunContext, RunEvent, Runnable, TraceParent};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::journal::Journal;
use crate::support::below;

const TRACE: &str = "12345678901234567890123456789012";
const SPAN: &str = "1234567890123456";

fn parse(header: &str) -> Option<TraceParent> {
    TraceParent::parse(header).ok()
}

// R16
#[test]
fn a_traceparent_is_read_as_w3c_defines_it() {
    let ids = format!("{TRACE}-{SPAN}");
    let valid = [
        ("00-#-00", "00"),
        ("00-#-01", "01"),
        ("00-#-03", "03"),
        // Flags that are not defined are not passed on.
        ("00-#-ff", "03"),
        ("00-#-fc", "00"),
        // A later version is read as version 00.
        ("cc-#-01", "01"),
        ("cc-#-01-what-the-future-will-be-like", "01"),
        ("cc-#-01-", "01"),
        // Spaces and tabs around a header's value are not part of it.
        (" 00-#-01", "01"),
        ("\t00-#-01", "01"),
        ("00-#-01 ", "01"),
        ("00-#-01\t", "01"),
        ("\t 00-#-01 \t", "01"),
    ];
    for (header, flags) in valid {
        let parsed = parse(&header.replace('#', &ids)).map(|parent| parent.to_string());
        assert_eq!(parsed.as_deref(), Some(&*format!("00-{ids}-{flags}")), "{header:?}");
    }
}

// R16
#[test]
fn an_invalid_traceparent_is_an_error_that_quotes_it_and_names_the_part() {
    let ids = format!("{TRACE}-{SPAN}");
    let invalid = [
        ("", "version"),
        ("0-#-01", "version"),
        ("000-#-01", "version"),
        ("0000-#-01", "version"),
        (".0-#-01", "version"),
        ("0.-#-01", "version"),
        ("+0-#-01", "version"),
        ("ff-#-01", "version"),
        ("FF-#-01", "version"),
        ("00-#-01.", "flags"),
        ("00-#-01-what-the-future-will-be-like", "four parts"),
        ("00-#-01-", "four parts"),
        ("cc-#-01.what-the-future-will-be-like", "flags"),
        ("00-#", "flags"),
        ("00-#-", "flags"),
        ("00-#-.0", "flags"),
        ("00-#-0.", "flags"),
        ("00-#-001", "flags"),
        ("00-#-1", "flags"),
        ("00-#-0A", "flags"),
        ("00-00000000000000000000000000000000-1234567890123456-01", "trace id is zero"),
        ("00-.2345678901234567890123456789012-1234567890123456-01", "trace id"),
        ("00-1234567890123456789012345678901.-1234567890123456-01", "trace id"),
        ("00-1234567890123456789012345678901A-1234567890123456-01", "trace id"),
        ("00-123456789012345678901234567890123-1234567890123456-01", "trace id"),
        ("00-1234567890123456789012345678901-1234567890123456-01", "trace id"),
        ("00-1234567890123456789012345678901é-1234567890123456-01", "trace id"),
        ("00-12345678901234567890123456789012-0000000000000000-01", "parent id is zero"),
        ("00-12345678901234567890123456789012-.234567890123456-01", "parent id"),
        ("00-12345678901234567890123456789012-123456789012345.-01", "parent id"),
        ("00-12345678901234567890123456789012-12345678901234567-01", "parent id"),
        ("00-12345678901234567890123456789012-123456789012345-01", "parent id"),
        ("00-12345678901234567890123456789012_1234567890123456-01", "trace id"),
    ];
    for (header, fault) in invalid {
        let header = header.replace('#', &ids);
        let error = TraceParent::parse(&header).expect_err(&header).to_string();
        let quoted: String = header.chars().take(80).collect();
        assert!(error.starts_with(&format!("`{quoted}` is not a traceparent: ")), "{error}");
        assert!(error.contains(fault), "{error}");
    }
}

// R16
#[test]
fn an_error_quotes_only_the_beginning_of_a_long_header() {
    let error = TraceParent::parse(&"é".repeat(10_000)).expect_err("no traceparent");
    assert!(error.to_string().chars().count() < 250, "{error}");
}

// R16
#[test]
fn ids_of_a_trace_are_valid_unless_one_of_them_is_zero() {
    let (trace, span) = ([0xab; 16], [0, 0, 0, 0, 0, 0, 0, 7]);
    let parent = TraceParent::new(trace, span, 1).expect("valid ids");
    assert_eq!(parent.to_string(), format!("00-{}-0000000000000007-01", "ab".repeat(16)));
    assert!(TraceParent::new([0; 16], span, 1).is_err() && TraceParent::new(trace, [0; 8], 1).is_err());
}

// R16
#[test]
fn an_invalid_tracestate_is_left_out_and_logged() {
    let journal = Journal::default();
    let _subscribed = tracing::subscriber::set_default(journal.clone());
    let parent = parse(&format!("00-{TRACE}-{SPAN}-01")).expect("valid");
    let members = |count: usize| (0..count).map(|i| format!("k{i}=1")).collect::<Vec<_>>().join(",");
    let valid = [
        "foo=1".to_owned(),
        "foo=1,bar=2".to_owned(),
        "foo=1,".to_owned(),
        "foo=1 \t , \t bar=2, \t baz=3".to_owned(),
        "foo=1,foo=1".to_owned(),
        "a_-*/0=!~ x".to_owned(),
        "0t_-*/@v_-*/9=1".to_owned(),
        format!("{}=1", "z".repeat(256)),
        format!("{}@{}=1", "t".repeat(241), "v".repeat(14)),
        format!("foo={}", "v".repeat(256)),
        members(32),
    ];
    for state in &valid {
        assert_eq!(parent.clone().with_state(state).state(), Some(&**state));
    }
    for empty in ["", " ", "\t"] {
        assert_eq!(parent.clone().with_state(empty).state(), None);
    }
    assert_eq!(journal.take(), [""; 0]);
    let invalid = [
        "foo".to_owned(),
        "foo =1".to_owned(),
        "FOO=1".to_owned(),
        "foo.bar=1".to_owned(),
        "foo@=1,bar=2".to_owned(),
        "@foo=1,bar=2".to_owned(),
        "foo@@bar=1,bar=2".to_owned(),
        "foo@bar@baz=1,bar=2".to_owned(),
        "foo@9=1".to_owned(),
        "foo=bar=baz".to_owned(),
        "foo=,bar=3".to_owned(),
        "foo=é".to_owned(),
        format!("{}=1", "z".repeat(257)),
        format!("{}@v=1", "t".repeat(242)),
        format!("t@{}=1", "v".repeat(15)),
        format!("foo={}", "v".repeat(257)),
        members(33),
    ];
    for state in &invalid {
        assert_eq!(parent.clone().with_state("a=1").with_state(state).state(), None, "{state}");
        let quoted: String = state.chars().take(80).collect();
        let [warning] = &*journal.take() else { panic!("one warning for {state}") };
        assert!(warning.contains(&format!("`{quoted}` is not a tracestate")), "{warning}");
    }
}

/// The ids of a run, and the headers that it sends to other services.
type Known = (Trace, String, Option<String>);

fn known(ctx: &RunContext) -> Known {
    let parent = ctx.trace_parent();
    (ctx.trace(), parent.to_string(), parent.state().map(str::to_owned))
}

/// A run `outer` and a run `inner` in it, with these parents.
struct Runs {
    known: [Known; 2],
    /// The records that a stream and a subscriber have received.
    records: [Vec<EventRecord>; 2],
}

async fn runs(outer: Option<TraceParent>, inner: Option<TraceParent>) -> Runs {
    let tree = Emitter::new();
    let mut stream = tree.stream("*.*", 100).expect("a stream");
    let work = Arc::new(below(&tree, "inner", |(): (), ctx: RunContext| async move {
        ctx.emitter().emit("own", &mut ()).await?;
        Ok(known(&ctx))
    }));
    let above = below(&tree, "outer", move |(): (), ctx: RunContext| {
        let (work, inner) = (Arc::clone(&work), inner.clone());
        async move { Ok([known(&ctx), work.run(()).trace_parent(inner).await?]) }
    });
    let shown = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&shown);
    let run = above.run(()).trace_parent(outer).middleware(move |ctx: &RunContext| {
        let seen = Arc::clone(&seen);
        ctx.subscribe(move |event: &RunEvent<'_>| seen.lock().unwrap().push(event.to_record()));
        Ok(())
    });
    let known = run.await.expect("a success");
    // The stream ends with its emitter.
    drop((above, tree));
    let mut streamed = Vec::new();
    while let Some(SinkRecord::Event(event)) = stream.recv().await {
        streamed.push(*event);
    }
    Runs { known, records: [streamed, std::mem::take(&mut *shown.lock().unwrap())] }
}

/// Returns what the contexts of the events have under `trace`, without events that have nothing there.
fn facts(records: &[EventRecord]) -> Vec<(&str, Value)> {
    records.iter().filter_map(|record| Some((&*record.path, record.context.get("trace")?.clone()))).collect()
}

fn span_of(run: Uuid) -> String {
    run.simple().to_string().split_off(16)
}

// R16
#[tokio::test]
async fn a_run_without_a_parent_here_joins_the_trace_and_the_runs_below_belong_to_it() {
    let parent = parse(&format!("00-{TRACE}-{SPAN}-02")).expect("valid").with_state("vendor=7");
    let Runs { known, records } = runs(Some(parent), None).await;
    let [(outer, ..), (inner, ..)] = known;
    assert_eq!(outer.id.simple().to_string(), TRACE);
    assert_eq!(outer.parent_run_id.map(|id| id.simple().to_string()), Some(format!("{:016}{SPAN}", 0)));
    assert_eq!((inner.id, inner.parent_run_id), (outer.id, Some(outer.run_id)));
    for (trace, header, state) in &known {
        assert_eq!(*header, format!("00-{TRACE}-{}-02", span_of(trace.run_id)));
        assert_eq!(state.as_deref(), Some("vendor=7"));
    }
    for records in &records {
        assert_eq!(facts(records), [("outer.run.start", json!({"flags": 2, "state": "vendor=7"}))]);
        for record in records {
            let trace = if record.path.starts_with("outer") { outer } else { inner };
            assert_eq!(record.trace, Some(trace), "{}", record.path);
            // A recording that is read back has the same ids.
            let json = serde_json::to_string(record).expect("JSON");
            let read: EventRecord = serde_json::from_str(&json).expect("a record");
            assert_eq!(read.trace, record.trace);
        }
    }
    assert_eq!(records.map(|records| records.len()), [7, 6]);
}

// R16
#[tokio::test]
async fn a_run_with_a_parent_here_keeps_its_ids_and_has_a_link() {
    let parent = parse(&format!("00-{TRACE}-{SPAN}-01")).expect("valid").with_state("vendor=7");
    let Runs { known, records } = runs(None, Some(parent)).await;
    let [(outer, ..), (inner, ..)] = known;
    assert_eq!((outer.id, outer.parent_run_id), (outer.run_id, None));
    assert_eq!((inner.id, inner.parent_run_id), (outer.id, Some(outer.run_id)));
    for (trace, header, state) in &known {
        assert_eq!(*header, format!("00-{}-{}-01", outer.id.simple(), span_of(trace.run_id)));
        assert_eq!(*state, None);
    }
    let link = json!({"trace_id": TRACE, "span_id": SPAN, "flags": 1, "state": "vendor=7"});
    for records in &records {
        assert_eq!(facts(records), [("inner.run.start", json!({"links": [link]}))]);
    }
}

// R16
#[tokio::test]
async fn a_service_that_is_called_continues_the_trace_of_the_run_that_calls_it() {
    let Runs { known: [_, (caller, header, _)], .. } = runs(None, None).await;
    let Runs { known: [(called, ..), _], records } = runs(parse(&header), None).await;
    assert_eq!(called.id, caller.id);
    let above = called.parent_run_id.expect("the caller");
    assert_eq!(above.as_bytes()[..8], [0; 8]);
    assert_eq!(above.as_bytes()[8..], caller.run_id.as_bytes()[8..]);
    assert_eq!(facts(&records[0]), [("outer.run.start", json!({"flags": 1}))]);
}

// R16, E14
#[tokio::test]
async fn all_listeners_of_start_see_the_facts_beside_the_context_of_the_run() {
    let (tree, seen) = (Emitter::new(), Arc::new(Mutex::new(Vec::new())));
    let of_sync = Arc::clone(&seen);
    let of_async = Arc::clone(&seen);
    tree.on("job.run.start", move |_: &mut dyn AnyEvent, meta: &EventMeta<'_>| {
        of_sync.lock().unwrap().push(meta.context().clone());
    })
    .expect("a listener");
    tree.on_async("job.run.start", move |_: &mut dyn AnyEvent, meta: &EventMeta<'_>| {
        of_async.lock().unwrap().push(meta.context().clone());
        Box::pin(async { Ok(()) })
    })
    .expect("a listener");
    let job = below(&tree, "job", |(): (), _: RunContext| async { Ok(()) });
    let parent = parse(&format!("00-{TRACE}-{SPAN}-01"));
    job.run(()).context(json!({"user": "ada"})).trace_parent(parent).await.expect("a success");
    let expected = json!({"user": "ada", "internal": true, "trace": {"flags": 1}});
    assert_eq!(serde_json::to_value(&*seen.lock().unwrap()).expect("JSON"), json!([expected, expected]));
}
