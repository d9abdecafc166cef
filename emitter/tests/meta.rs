//! The meta of an event, and its record (E14).

mod support;

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use emitree_emitter::rt::{Delivery, Emitted, EventStamp, Facet, RunLinks};
use emitree_emitter::{AnyEvent, Creator, Emitter, EventMeta, EventName, EventRecord, SinkRecord};
use futures_util::FutureExt;
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Recorder, TestResult, block_on, run_of, yield_once};

#[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
struct Token {
    text: String,
}

/// E14.
#[test]
fn an_id_is_a_uuid_v7_with_the_time_of_the_event_and_does_not_change() -> TestResult {
    let emitter = Emitter::new();
    let ids = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..2 {
        let ids = Arc::clone(&ids);
        emitter.on("*", move |_: &mut dyn AnyEvent, meta| {
            assert_eq!((meta.id(), meta.created_at(), meta.time()), (meta.id(), meta.created_at(), meta.time()));
            ids.lock().expect("calm").push((meta.id(), meta.created_at()));
        })?;
    }
    emitter.emit_now("x", &mut ())?;
    emitter.emit_now("x", &mut ())?;
    let ids: Vec<(Uuid, DateTime<Utc>)> = ids.lock().expect("calm").clone();
    let [first, again, second, _] = ids[..] else { panic!("{ids:?}") };
    assert_eq!(first, again, "all listeners see the same");
    assert_ne!(first.0, second.0);
    assert_eq!(first.0.get_version_num(), 7);
    let (seconds, nanos) = first.0.get_timestamp().expect("version 7 has one").to_unix();
    assert_eq!((i64::try_from(seconds)?, nanos / 1_000_000), (first.1.timestamp(), first.1.timestamp_subsec_millis()),);
    Ok(())
}

/// E14.
#[test]
fn the_time_of_an_event_is_the_time_of_the_first_read() -> TestResult {
    let (emitter, times) = (Emitter::new(), Arc::new(Mutex::new(None)));
    let keep = Arc::clone(&times);
    emitter.on("*", move |_: &mut dyn AnyEvent, meta| {
        let before = SystemTime::now();
        *keep.lock().expect("calm") = Some((before, meta.time(), SystemTime::now()));
    })?;
    emitter.emit_now("x", &mut ())?;
    let (before, time, after) = times.lock().expect("calm").take().expect("it was called");
    assert!(before <= time && time <= after, "{before:?} {time:?} {after:?}");
    Ok(())
}

/// E14: time and context are fixed even if no listener has read them before the first await.
#[test]
fn time_and_context_are_fixed_before_the_dispatch_first_awaits() -> TestResult {
    let emitter = Emitter::new();
    let looked = Arc::new(Mutex::new(None));
    let look = Arc::clone(&looked);
    emitter.set_context("step", 1)?;
    emitter.on_async("*", |_: &mut (), _| {
        Box::pin(async {
            yield_once().await;
            Ok(())
        })
    })?;
    emitter.on("*", move |_: &mut (), meta| {
        *look.lock().expect("calm") = Some((meta.time(), meta.context().clone(), meta.id()));
    })?;
    let mut payload = ();
    let mut emit = Box::pin(emitter.emit("x", &mut payload));
    assert!(emit.as_mut().now_or_never().is_none());
    let between = SystemTime::now();
    emitter.set_context("step", 2)?;
    block_on(emit)?;
    let (time, context, id) = looked.lock().expect("calm").take().expect("it was called");
    assert!(time <= between);
    assert_eq!(context.get("step"), Some(&json!(1)));
    assert_eq!(id.get_version_num(), 7);
    Ok(())
}

/// E14.
#[test]
fn the_meta_has_the_name_path_source_payload_type_context_creator_group_and_trace() -> TestResult {
    let creator = Creator::new("Agent", "desk");
    let instance = Emitter::new().child_builder("backend.chat").creator(creator.clone()).group_id("g").build()?;
    let run = run_of(&instance);
    run.set_context("user", 7)?;
    let (source, recorder) = (run.clone(), Recorder::new());
    let note = recorder.clone();
    // A failed assertion in a listener that was registered with `on` fails the emit.
    instance.on("*.*", move |_: &mut dyn AnyEvent, meta| {
        assert_eq!((meta.name(), meta.emitted_name(), meta.path()), ("start", "run.start", "backend.chat.run.start"));
        assert_eq!(*meta.source(), source);
        assert_eq!((meta.creator(), meta.group_id(), meta.trace()), (Some(&creator), Some("g"), source.trace()));
        assert_eq!(meta.context().iter().collect::<Vec<_>>(), [("user", &json!(7))]);
        assert!(meta.payload_type().ends_with("Token"));
        note.note("all as expected");
    })?;
    run.emit_now("run.start", &mut Token { text: "x".into() })?;
    recorder.expect(["all as expected"]);
    Ok(())
}

/// E14.
#[test]
fn a_record_round_trips_through_json() -> TestResult {
    let (records, metas) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let root = Emitter::builder().context(json!({"user": {"id": 1}})).group_id("g").build()?;
    let instance = root.child_builder("chat").creator(Creator::new("Agent", "desk")).build()?;
    let run = instance.for_run(RunLinks::new().parent(&run_of(&root)));
    let (keep, keep_meta) = (Arc::clone(&records), Arc::clone(&metas));
    run.observe("*.*", move |event: &dyn AnyEvent, meta| {
        keep.lock().expect("calm").push(meta.to_record(event));
        keep_meta.lock().expect("calm").push(serde_json::to_value(meta).expect("a meta is JSON"));
    })?;
    run.emit_now("run.token", &mut Token { text: "\"quoted\"\n".into() })?;

    let record = records.lock().expect("calm").pop().expect("one event");
    let text = serde_json::to_string(&record)?;
    let back: EventRecord = serde_json::from_str(&text)?;
    assert_eq!(serde_json::to_string(&back)?, text);
    assert_eq!((back.id, &back.path, back.created_at), (record.id, &record.path, record.created_at));
    assert_eq!((&back.creator, &back.context, &back.group_id), (&record.creator, &record.context, &record.group_id));
    assert_eq!((back.trace, &back.payload_type), (run.trace(), &record.payload_type));
    assert_eq!((back.name(), &*back.path), ("token", "chat.run.token"));
    assert_eq!(back.payload::<Token>()?, Token { text: "\"quoted\"\n".into() });
    assert!(back.payload::<u8>().is_err());

    let meta = metas.lock().expect("calm").pop().expect("one event");
    let mut whole: Value = serde_json::from_str(&text)?;
    whole["payload"] = Value::Null;
    assert_eq!(meta, whole, "a meta is a record whose payload is null");
    let SinkRecord::Event(event) = SinkRecord::from_json(&text)? else { panic!("it is an event") };
    assert_eq!(serde_json::to_string(&SinkRecord::Event(event))?, text);
    Ok(())
}

/// E13, E14: parsing a malformed record returns an error, never another record.
#[test]
fn a_gap_is_parsed_as_a_record_and_a_malformed_record_is_an_error() {
    let gap = SinkRecord::from_json(r#"{"gap":{"lost":3}}"#).expect("a gap");
    assert!(matches!(gap, SinkRecord::Gap(gap) if gap.lost == 3));
    assert_eq!(serde_json::to_string(&gap).expect("it is JSON"), r#"{"gap":{"lost":3}}"#);
    for bad in
        ["", "{}", "[]", "null", r#"{"gap":3}"#, r#"{"gap":{"lost":-1}}"#, r#"{"path":"a.b"}"#, r#"{"gap":{"lost":1}"#]
    {
        assert!(SinkRecord::from_json(bad).is_err(), "{bad}");
    }
}

struct Length(fn(&dyn AnyEvent) -> Option<usize>);

static LENGTH: Length = Length(|event| event.downcast_ref::<Token>().map(|token| token.text.len()));

/// R3: an emit may attach a facet. Only a facet that is marked as internal adds `internal` to the event's context.
#[test]
fn a_facet_reaches_listeners_beside_the_payload_and_may_mark_the_context_as_internal() -> TestResult {
    let emitter = Emitter::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&seen);
    emitter.observe("*", move |event: &dyn AnyEvent, meta| {
        let length = meta.facet::<Length>().and_then(|lens| lens.0(event));
        assert!(meta.facet::<String>().is_none());
        note.lock().expect("calm").push((length, meta.context().get("internal").cloned()));
    })?;
    let (plain, internal) = (Facet::new(&LENGTH), Facet::new(&LENGTH).internal());
    let mut token = Token { text: "four".into() };
    emitter.emit_now("x", &mut token)?;
    for facet in [plain, internal] {
        let stamp = EventStamp::new();
        let emitted = emitter.emit_begin(EventName::new("x"), &mut token, &facet, &Delivery::new(), &stamp);
        assert!(matches!(emitted, Emitted::Done(Ok(()))));
    }
    assert_eq!(*seen.lock().expect("calm"), [(None, None), (Some(4), None), (Some(4), Some(json!(true)))]);
    assert!(emitter.context().is_empty(), "the emitter's own context is as it was");
    Ok(())
}

/// E14: a meta implements `Debug`.
#[test]
fn a_meta_prints_its_path_and_the_type_of_the_payload() -> TestResult {
    let (emitter, recorder) = (Emitter::new().child("a")?, Recorder::new());
    let note = recorder.clone();
    emitter.on("*", move |_: &mut u8, meta: &EventMeta<'_>| note.note(format!("{meta:?}")))?;
    emitter.emit_now("x", &mut 1_u8)?;
    let printed = recorder.take().concat();
    assert!(printed.contains(r#"path: "a.x""#) && printed.contains(r#"payload_type: "u8""#), "{printed}");
    Ok(())
}

/// E13, E14: an event whose payload panics when it is serialized is still recorded.
#[test]
fn the_record_of_a_payload_that_panics_when_serialized_contains_the_panic() -> TestResult {
    struct Panics;
    impl Serialize for Panics {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("on purpose")
        }
    }
    let app = Emitter::new();
    let (sender, records) = std::sync::mpsc::channel();
    app.observe("x", move |event: &dyn AnyEvent, meta| drop(sender.send(meta.to_record(event))))?;
    app.emit_now("x", &mut Panics)?;
    let payload = records.recv()?.payload.get().to_owned();
    assert!(payload.contains("cannot be serialized: it panicked: on purpose"), "{payload}");
    Ok(())
}
