//! Payload types: events that are refused or skipped because of their type, and declared events (E7).

#[path = "../../tests/support/journal.rs"]
mod journal;
mod support;

use emitree_emitter::{
    AnyEvent, BoxError, EmitErrorKind, Emitter, Event, EventMeta, EventName, Opaque, Options, matcher_fn,
};
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::journal::Journal;
use crate::support::{Recorder, TestResult, block_on, run_of, run_within};

#[derive(Debug, PartialEq, Serialize)]
struct FetchData {
    url: String,
}

impl Event for FetchData {
    const NAME: EventName = EventName::new("fetch_data");
}

fn fetch() -> FetchData {
    FetchData { url: "old".into() }
}

/// E7.
#[test]
fn a_type_with_an_event_name_is_emitted_and_received_without_a_string() -> TestResult {
    let emitter = Emitter::new();
    emitter.on_event(|data: &mut FetchData, meta| data.url = format!("{}!", meta.name()))?;
    emitter.with(Options::new().priority(-1)).on_event(|data: &mut FetchData, _| data.url.push('?'))?;
    let mut data = fetch();
    block_on(emitter.emit_event(&mut data))?;
    assert_eq!(data.url, "fetch_data!?");
    emitter.emit_event_now(&mut data)?;
    assert_eq!(data.url, "fetch_data!?");
    Ok(())
}

/// E7.
#[test]
fn a_payload_is_received_as_its_type_or_as_any_event_and_changed_in_place() -> TestResult {
    let emitter = Emitter::new();
    emitter.on("fetch_data", |data: &mut FetchData, _| data.url = "typed".into())?;
    emitter.on("*", |event: &mut dyn AnyEvent, _| {
        assert!(event.is::<FetchData>() && !event.is::<String>());
        assert_eq!(event.to_json(), json!({"url": "typed"}));
        assert_eq!(event.to_raw_json().get(), r#"{"url":"typed"}"#);
        assert!(event.type_name().ends_with("FetchData"));
        if let Some(data) = event.downcast_mut::<FetchData>() {
            data.url.push_str(", then any");
        }
    })?;
    let mut data = fetch();
    emitter.emit_now("fetch_data", &mut data)?;
    assert_eq!(data.url, "typed, then any");
    Ok(())
}

/// E7: the listeners are sync or async, and are registered by name or by path.
#[test]
fn a_listener_under_an_exact_name_or_path_fails_the_emit_of_an_own_event_of_another_type() -> TestResult {
    let instance = Emitter::new().child("a")?;
    let run = run_of(&instance);
    let registrations = [
        Options::new().on("fetch_data", |_: &mut String, _| ()),
        Options::new().on("a.fetch_data", |_: &mut String, _| ()),
        Options::new().on_async("fetch_data", |_: &mut String, _| Box::pin(async { Ok(()) })),
        Options::new().on_async("a.fetch_data", |_: &mut String, _| Box::pin(async { Ok(()) })),
    ];
    for registration in registrations {
        let at = format!("{registration:?}");
        let subscription = instance.register(registration)?;
        for source in [&instance, &run] {
            let error = block_on(source.emit("fetch_data", &mut fetch())).expect_err("another type");
            assert!(matches!(error.kind(), EmitErrorKind::TypeMismatch { .. }), "{error:?}");
            for part in ["`a.fetch_data`", "types::FetchData`", "`alloc::string::String`", "tests/types.rs:"] {
                assert!(error.to_string().contains(part), "{error}, {at}");
            }
        }
        subscription.off();
    }
    Ok(())
}

/// E7: a listener skips an event of another type if the event was emitted neither on the listener's emitter nor on one
/// of its runs, or if the listener's matcher is a pattern, a regex or a function without names.
#[test]
fn events_of_another_type_are_filtered_unless_they_are_own_events_under_an_exact_name() -> TestResult {
    let (root, recorder) = (Emitter::new(), Recorder::new());
    let instance = root.child("a")?;
    let run = run_of(&instance);
    let nested = run_within(&root.child("b")?, &run);
    for matcher in ["*", "*.*", "fetch_*", "a.*", "{fetch_data,x}"] {
        let note = recorder.clone();
        instance.on(matcher, move |_: &mut String, _| note.note(matcher))?;
    }
    instance.on(regex::Regex::new("fetch")?, |_: &mut String, _| ())?;
    instance.on(|_: &EventMeta<'_>| true, |_: &mut String, _| ())?;
    root.on("a.fetch_data", |_: &mut String, _| ())?;
    run.on("b.fetch_data", |_: &mut String, _| ())?;
    let target = Emitter::new().child("a")?;
    target.on("a.fetch_data", |_: &mut String, _| ())?;
    instance.pipe(&target);
    for source in [&instance, &run, &nested] {
        block_on(source.emit("fetch_data", &mut fetch()))?;
    }
    recorder.expect([]);
    instance.emit_now("fetch_data", &mut String::new())?;
    recorder.expect(["*", "*.*", "fetch_*", "a.*", "{fetch_data,x}"]);
    Ok(())
}

/// E7: the mismatch of an observer is logged, and the emit continues.
#[test]
fn an_observer_of_another_type_does_not_fail_the_emit_but_is_counted() -> TestResult {
    let emitter = Emitter::new();
    emitter.observe("fetch_data", |_: &String, _| ())?;
    emitter.observe_async("fetch_data", |_: &u8, _| Box::pin(async { Ok(()) }))?;
    block_on(emitter.emit("fetch_data", &mut fetch()))?;
    assert_eq!(emitter.isolated_failures(), 2);
    Ok(())
}

/// E7.
#[test]
fn registration_and_emit_are_checked_against_declared_types() -> TestResult {
    let emitter = Emitter::builder()
        .build()?
        .child_builder("a")
        .declares_event::<FetchData>()
        .declares::<u32>("count")
        .build()?;
    emitter.on_event(|_: &mut FetchData, _| ())?;
    emitter.on("count", |_: &mut dyn AnyEvent, _| ())?;
    emitter.on("a.count", |_: &mut u32, _| ())?;
    emitter.on("b.count", |_: &mut u8, _| ())?;
    emitter.on("cou*", |_: &mut u8, _| ())?;
    emitter.emit_now("count", &mut 1_u32)?;
    emitter.emit_now("sub.count", &mut 1_u8)?;
    emitter.child("child")?.emit_now("other", &mut ())?;

    let registered = emitter.listener_count();
    let error = emitter.on("count", |_: &mut u8, _| ()).expect_err("another type");
    assert_eq!(error.to_string(), "`count` is declared with payload `u32`, but the listener takes `u8`");
    assert_eq!(emitter.listener_count(), registered, "nothing was registered");
    for source in [&emitter, &run_of(&emitter)] {
        let error = block_on(source.emit("count", &mut 1_u8)).expect_err("another type");
        assert_eq!(error.to_string(), "`count` is declared with payload `u32`, not `u8`");
    }
    Ok(())
}

/// E7: declarations do not close the set of names.
#[test]
fn an_emitter_that_declares_events_and_its_runs_also_emit_others() -> TestResult {
    let (emitter, recorder) = (Emitter::builder().declares::<u32>("count").build()?, Recorder::new());
    emitter.on("fetched", recorder.hears("fetched"))?;
    emitter.emit_now("fetched", &mut 1_u8)?;
    run_of(&emitter).emit_now("fetched", &mut 1_u8)?;
    recorder.expect(["fetched fetched", "fetched fetched"]);
    Ok(())
}

/// E7.
#[test]
fn a_listener_for_a_name_close_to_a_declared_one_is_registered_with_a_warning() -> TestResult {
    let (emitter, journal) = (Emitter::builder().declares::<u32>("count").build()?, Journal::default());
    tracing::subscriber::with_default(journal.clone(), || -> TestResult {
        for name in ["coutn", "counts", "fetched", "count", "cou*", "a.coutn"] {
            emitter.on(name, |_: &mut dyn AnyEvent, _| ())?;
        }
        Ok(())
    })?;
    assert_eq!(emitter.listener_count(), 6);
    let warning = |name| format!("a listener was registered for `{name}`; the emitter declares `count`");
    assert_eq!(journal.take(), [warning("coutn"), warning("counts")]);
    Ok(())
}

/// E7: every serializable type is an `AnyEvent`, also a record, whose payload is the payload of its event.
#[test]
fn to_json_of_a_record_is_the_payload() -> TestResult {
    let emitter = Emitter::new();
    emitter.observe("*", |event: &dyn AnyEvent, meta| {
        let record = Box::new(meta.to_record(event));
        assert_eq!((event.to_json(), record.to_json()), (json!({"n": 1}), json!({"n": 1})));
    })?;
    emitter.emit_now("x", &mut json!({"n": 1}))?;
    Ok(())
}

/// An event that is declared as data.
#[derive(Serialize, serde::Deserialize)]
struct Counted {
    n: u32,
}

impl Event for Counted {
    const NAME: EventName = EventName::new("counted");
}

/// E18.
#[test]
fn an_event_that_is_declared_as_data_is_changed_as_json_or_stays_as_it_was() -> TestResult {
    let emitter = Emitter::builder().declares_data::<Counted>().build()?;
    let run = run_of(&emitter);
    assert!(!run.filters_text("counted"));
    let filtering = Emitter::builder().declares_text::<Counted>().build()?;
    let run_of_filtering = run_of(&filtering);
    assert!(filtering.filters_text("counted") && run_of_filtering.filters_text("counted"));
    assert!(!run_of_filtering.filters_text("other"));
    emitter.on("*", |event: &mut dyn AnyEvent, meta: &EventMeta<'_>| {
        let is_changed = meta.change_data(event, |json| {
            json["n"] = if json["n"] == 1 { 2.into() } else { "many".into() };
            true
        })?;
        assert_eq!(is_changed, meta.name() == "counted");
        Ok::<_, BoxError>(())
    })?;
    for source in [&emitter, &run] {
        let mut counted = Counted { n: 1 };
        source.emit_event_now(&mut counted)?;
        assert_eq!(counted.n, 2);
        source.emit_event_now(&mut counted).expect_err("`n` is no text");
        assert_eq!(counted.n, 2);
        source.emit_now("other", &mut 1_u32)?;
        source.emit_now("counted", &mut 1_u32).expect_err("another type");
    }
    Ok(())
}

/// E7.
#[test]
fn a_payload_that_cannot_be_serialized_is_wrapped_in_opaque_or_recorded_as_an_error() -> TestResult {
    struct Connection(u32);
    struct Broken;
    impl Serialize for Broken {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("no"))
        }
    }
    let (emitter, recorder) = (Emitter::new(), Recorder::new());
    emitter.on("open", |event: &mut Opaque<Connection>, _| event.0.0 += 1)?;
    let note = recorder.clone();
    emitter
        .observe("*", move |event: &dyn AnyEvent, meta| note.note(format!("{} {}", meta.name(), event.to_json())))?;
    let mut opaque = Opaque(Connection(1));
    emitter.emit_now("open", &mut opaque)?;
    assert_eq!(opaque.0.0, 2);
    emitter.emit_now("broken", &mut Broken)?;
    let [open, broken] = &recorder.take()[..] else { panic!("two events") };
    assert!(open.starts_with("open \"<") && open.ends_with("::Connection>\""), "{open}");
    assert!(broken.contains("Broken cannot be serialized: no"), "{broken}");
    Ok(())
}

/// E7: a path is exact, even if the name of the event has a dot.
#[test]
fn a_listener_under_an_exact_path_fails_the_emit_of_a_dotted_event_of_another_type() -> TestResult {
    let app = Emitter::new().child("app")?;
    app.on("app.run.start", |_: &mut String, _| ())?;
    let error = app.emit_now("run.start", &mut 1_u32).expect_err("it would never fire");
    assert!(matches!(error.kind(), EmitErrorKind::TypeMismatch { .. }), "{error}");
    Ok(())
}

#[derive(Serialize)]
struct Below(u32);

impl Event for Below {
    const NAME: EventName = EventName::new("sub.below");
}

/// E7: `emit_event` and `on_event` need no string, even for names with a dot.
#[test]
fn on_event_receives_an_event_type_with_a_dotted_name() -> TestResult {
    let app = Emitter::new().child("app")?;
    app.on_event(|below: &mut Below, meta| {
        assert_eq!(meta.path(), "app.sub.below");
        below.0 += 1;
    })?;
    let mut below = Below(1);
    app.emit_event_now(&mut below)?;
    assert_eq!(below.0, 2);
    Ok(())
}

/// E7: an invalid declaration is refused when the emitter is built.
#[test]
fn an_event_declared_twice_or_for_a_sub_namespace_is_an_error_that_quotes_it() {
    let twice = Emitter::builder().declares::<u32>("n").declares::<String>("n").build();
    assert_eq!(twice.expect_err("twice").to_string(), "`n` cannot be declared: it is declared twice");
    let below = Emitter::builder().declares::<u32>("sub.n").build();
    assert!(below.expect_err("a dot").to_string().starts_with("`sub.n` cannot be declared: it has a dot"));
}

/// E7: a function with names is exact, like a name. With `of_types` or `nested(true)`, it filters by type.
#[test]
fn a_function_with_names_that_matches_an_own_event_of_another_type_fails_the_emit() -> TestResult {
    const FETCH: EventName = FetchData::NAME;
    let root = Emitter::new();
    let instance = root.child("a")?;
    let (asked, yes) = (Recorder::new(), Recorder::new());
    let note = asked.clone();
    let named = matcher_fn(move |meta| {
        note.note(meta.emitted_name());
        true
    })
    .named([FETCH, EventName::new("x.y")]);
    let nested = Options::new().nested(true);
    instance.on(named.clone().of_types(), |_: &mut String, _| ())?;
    instance.with(nested).on(named.clone(), |_: &mut String, _| ())?;
    instance.on(named.clone(), yes.hears("taken"))?;
    root.on(named.clone(), |_: &mut String, _| ())?;
    for source in [&instance, &run_of(&instance)] {
        source.emit_now("fetch_data", &mut fetch())?;
        source.emit_now("fetch_date", &mut fetch())?;
    }
    asked.expect(["fetch_data", "fetch_data"]);
    yes.expect(["taken a.fetch_data", "taken a.fetch_data"]);

    let own = instance.on(named.clone(), |_: &mut String, _| ())?;
    for source in [&instance, &run_of(&instance)] {
        let error = source.emit_now("fetch_data", &mut fetch()).expect_err("another type");
        assert!(matches!(error.kind(), EmitErrorKind::TypeMismatch { .. }), "{error:?}");
    }
    own.off();
    root.on(named.of_one_source(), |_: &mut String, _| ())?;
    let error = instance.emit_now("fetch_data", &mut fetch()).expect_err("another type");
    assert!(matches!(error.kind(), EmitErrorKind::TypeMismatch { .. }), "{error:?}");
    Ok(())
}
