//! The effect of a listener's error or panic (E11).

mod support;

use std::error::Error as _;

use emitree_emitter::rt::{Delivery, Emitted, EventStamp, Facet};
use emitree_emitter::{
    AnyEvent, BoxError, EmitError, EmitErrorKind, Emitter, EventMeta, EventName, OnError, Options, Registration,
};
use futures_core::future::BoxFuture;
use futures_util::FutureExt;

use crate::support::{Any, Recorder, TestResult, block_on, yield_once};

type Answer<'a> = BoxFuture<'a, Result<(), BoxError>>;

fn fails(_: &mut Any, _: &EventMeta<'_>) -> Result<(), BoxError> {
    Err("the disk is full".into())
}

fn panics(_: &mut Any, _: &EventMeta<'_>) {
    panic!("the disk is full")
}

fn fails_late<'a>(_: &'a mut Any, _: &'a EventMeta<'a>) -> Answer<'a> {
    Box::pin(async {
        yield_once().await;
        Err("the disk is full".into())
    })
}

fn panics_late<'a>(_: &'a mut Any, _: &'a EventMeta<'a>) -> Answer<'a> {
    Box::pin(async {
        yield_once().await;
        panic!("the disk is full")
    })
}

fn panics_before_its_future<'a>(_: &'a mut Any, _: &'a EventMeta<'a>) -> Answer<'a> {
    panic!("the disk is full")
}

/// Listeners that may change the event. Each fails with an error or a panic.
fn failing(options: Options) -> [Registration; 7] {
    [
        options.on("*", fails),
        options.on("*", panics),
        options.on_async("*", fails_late),
        options.on_async("*", panics_late),
        options.on_async("*", panics_before_its_future),
        options.on(|_: &EventMeta<'_>| panic!("the disk is full"), |_: &mut dyn AnyEvent, _| ()),
        options.on_async(|_: &EventMeta<'_>| panic!("the disk is full"), fails_late),
    ]
}

fn sees_failing(options: Options) -> [Registration; 5] {
    fn late<'a>(fail: fn() -> Result<(), BoxError>) -> Answer<'a> {
        Box::pin(async move {
            yield_once().await;
            fail()
        })
    }
    [
        options.observe("*", |_: &dyn AnyEvent, _| Err::<(), BoxError>("the disk is full".into())),
        options.observe("*", |_: &dyn AnyEvent, _| -> () { panic!("the disk is full") }),
        options.observe_async("*", |_: &dyn AnyEvent, _| late(|| Err("the disk is full".into()))),
        options.observe_async("*", |_: &dyn AnyEvent, _| late(|| panic!("the disk is full"))),
        options.observe(|_: &EventMeta<'_>| panic!("the disk is full"), |_: &dyn AnyEvent, _| ()),
    ]
}

/// Emits on a child of a root, with a failing listener between other listeners of the child.
fn emit_among(failing: Registration) -> (Result<(), EmitError>, Vec<String>, Emitter) {
    emit_among_by(failing, |middle| block_on(middle.emit("x", &mut ())))
}

fn emit_among_by(
    failing: Registration,
    emit: impl FnOnce(&Emitter) -> Result<(), EmitError>,
) -> (Result<(), EmitError>, Vec<String>, Emitter) {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let middle = root.child("middle").expect("a name");
    let run = |registered: Result<_, _>| drop(registered.expect("a matcher"));
    run(middle.on("*", recorder.hears("before")));
    run(middle.register(failing));
    run(middle.on("*", recorder.hears("after")));
    run(root.on_async("*.*", recorder.hears_async("above")));
    run(middle.observe("*", recorder.sees("sees")));
    run(root.observe_async("*.*", recorder.sees_async("sees above")));
    let result = emit(&middle);
    (result, recorder.take(), middle)
}

const ALL: [&str; 7] = [
    "before middle.x",
    "after middle.x",
    "above middle.x",
    "above done",
    "sees middle.x",
    "sees above middle.x",
    "sees above done",
];

/// E11.
#[test]
fn after_a_failure_later_listeners_are_not_called_but_observers_receive_the_event() {
    for registration in failing(Options::new()) {
        let what = format!("{registration:?}");
        let (result, heard, emitter) = emit_among(registration);
        let error = result.expect_err(&what);
        let text = error.to_string();
        assert_eq!(heard, ["before middle.x", "sees middle.x", "sees above middle.x", "sees above done"], "{text}");
        assert!(text.contains("`middle.x`") && text.contains("tests/failure.rs:"), "path and place: {text}");
        let cause = error.source().map(ToString::to_string).unwrap_or(text);
        assert!(cause.contains("the disk is full"), "{cause}");
        assert_eq!(emitter.isolated_failures(), 0);
    }
}

/// E11: the emit continues as if the listener had succeeded.
#[test]
fn an_isolated_failure_is_counted_and_does_not_affect_other_listeners() {
    for registration in failing(Options::new().on_error(OnError::Isolate)) {
        let (result, heard, emitter) = emit_among(registration);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!((heard, emitter.isolated_failures()), (ALL.map(Into::into).to_vec(), 1));
    }
    for registration in sees_failing(Options::new()) {
        let (result, heard, emitter) = emit_among(registration);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!((heard, emitter.isolated_failures()), (ALL.map(Into::into).to_vec(), 1));
    }
}

/// Emits with a facet and a delivery, as a runtime does.
fn emit_with(emitter: &Emitter, facet: &Facet, delivery: &Delivery) -> Result<(), EmitError> {
    const X: EventName = EventName::new("x");
    let stamp = EventStamp::new();
    match emitter.emit_begin(X, &mut (), facet, delivery, &stamp) {
        Emitted::Done(result) => result,
        Emitted::Waits(waiting) => block_on(emitter.emit_rest(waiting, X, &mut (), facet, delivery, &stamp)),
    }
}

/// E11: failures are isolated even if the listener has `OnError::Propagate`.
#[test]
fn an_emit_of_an_event_that_only_reports_isolates_the_failures_of_all_listeners() {
    let propagates = || Options::new().on_error(OnError::Propagate);
    for registration in failing(propagates()).into_iter().chain(sees_failing(propagates())) {
        let (facet, delivery) = (Facet::new(&()).isolated(), Delivery::new());
        let (result, heard, emitter) = emit_among_by(registration, |middle| emit_with(middle, &facet, &delivery));
        assert!(result.is_ok(), "{result:?}");
        assert_eq!((heard, emitter.isolated_failures()), (ALL.map(Into::into).to_vec(), 1));
    }
}

/// E11: if sync listeners run first, the async listeners that are awaited afterwards are still called.
#[test]
fn an_isolated_failure_does_not_affect_other_listeners_if_sync_listeners_come_first() {
    for registration in failing(Options::new().on_error(OnError::Isolate)) {
        let (facet, delivery) = (Facet::new(&()), Delivery::new());
        delivery.sync_first();
        let (result, mut heard, emitter) = emit_among_by(registration, |middle| emit_with(middle, &facet, &delivery));
        assert!(result.is_ok(), "{result:?}");
        heard.sort_unstable();
        let mut all = ALL;
        all.sort_unstable();
        assert_eq!((heard, emitter.isolated_failures()), (all.map(Into::into).to_vec(), 1));
    }
}

/// E11: an observer's failure that propagates fails the emit. All other observers still run.
#[test]
fn a_propagated_failure_of_an_observer_fails_the_emit_after_all_observers_have_run() {
    for registration in sees_failing(Options::new().on_error(OnError::Propagate)) {
        let (result, heard, emitter) = emit_among(registration);
        assert!(result.is_err());
        assert_eq!((heard, emitter.isolated_failures()), (ALL.map(Into::into).to_vec(), 0));
    }
}

/// E11: the emit fails with the first failure.
#[test]
fn an_emit_returns_the_first_of_several_failures() -> TestResult {
    let emitter = Emitter::new();
    let loud = emitter.with(Options::new().on_error(OnError::Propagate));
    emitter
        .with(Options::new().priority(-1))
        .on("*", |_: &mut dyn AnyEvent, _| Err::<(), BoxError>("not reached".into()))?;
    emitter.on("*", |_: &mut dyn AnyEvent, _| Err::<(), BoxError>("changing".into()))?;
    loud.observe("*", |_: &dyn AnyEvent, _| Err::<(), BoxError>("observing".into()))?;
    let error = emitter.emit_now("x", &mut ()).expect_err("it fails");
    assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("changing"));
    assert_eq!(emitter.isolated_failures(), 1, "the other is counted");
    Ok(())
}

/// E11: for each way of registering a listener, the error names the line of the registration.
#[test]
fn an_error_names_the_place_of_registration() -> TestResult {
    let lines = |register: &dyn Fn(&Emitter) -> Result<u32, BoxError>| -> Result<(), BoxError> {
        let emitter = Emitter::new();
        let line = register(&emitter)?;
        let error = block_on(emitter.emit("x", &mut ())).expect_err("it fails");
        let EmitErrorKind::Listener { at, path, .. } = error.kind() else { panic!("{error:?}") };
        assert_eq!((at.line(), at.file(), path.as_str()), (line, file!(), "x"));
        Ok(())
    };
    lines(&|emitter| emitter.on("x", fails).map(|_| line!()).map_err(Into::into))?;
    lines(&|emitter| emitter.on_async("x", fails_late).map(|_| line!()).map_err(Into::into))?;
    lines(&|emitter| emitter.with(Options::new()).on("x", fails).map(|_| line!()).map_err(Into::into))?;
    lines(&|emitter| {
        let (registration, line) = (Options::new().on("x", fails), line!());
        emitter.register(registration)?;
        Ok(line)
    })
}

/// E11, R10: the error names the listener that failed. The outer emits do not wrap this error again.
#[test]
fn the_error_of_an_emit_inside_a_listener_passes_unchanged() -> TestResult {
    let emitter = Emitter::new();
    emitter.on("innermost", fails)?;
    let inner = emitter.clone();
    emitter.on("middle", move |_: &mut (), _| Ok(inner.emit_now("innermost", &mut ())?))?;
    let inner = emitter.clone();
    emitter.on_async("outer", move |_: &mut (), _| {
        let inner = inner.clone();
        Box::pin(async move { Ok(inner.emit("middle", &mut ()).await?) })
    })?;
    let inner = emitter.emit_now("innermost", &mut ()).expect_err("it fails");
    let outer = block_on(emitter.emit("outer", &mut ())).expect_err("it fails");
    assert_eq!(outer.to_string(), inner.to_string());
    assert_eq!(outer.source().map(ToString::to_string).as_deref(), Some("the disk is full"));
    Ok(())
}

/// E11.
#[test]
fn an_emitter_stays_usable_after_its_listeners_have_failed() -> TestResult {
    let (recorder, emitter) = (Recorder::new(), Emitter::new());
    for registration in failing(Options::new().once()) {
        emitter.register(registration)?.is_active().then_some(()).ok_or("active")?;
    }
    emitter.on("*", recorder.hears("after all"))?;
    let mut failures = 0;
    while block_on(emitter.emit("x", &mut ())).is_err() && failures < 5 {
        failures += 1;
    }
    // The two listeners whose matcher panics claim no call, so they fail each time.
    assert_eq!((failures, emitter.listener_count()), (5, 3));
    emitter.reset();
    emitter.on("*", recorder.hears("usable"))?;
    block_on(emitter.emit("x", &mut ()))?;
    recorder.expect(["usable x"]);
    Ok(())
}

/// E11: an emit that is dropped calls no further listeners and leaves the emitter usable.
#[test]
fn a_dropped_emit_drops_the_awaited_listener_and_calls_no_further_listener() -> TestResult {
    let (recorder, emitter) = (Recorder::new(), Emitter::new());
    emitter.on_async("*", recorder.hears_async("first"))?;
    emitter.on("*", recorder.hears("second"))?;
    emitter.observe("*", recorder.sees("sees"))?;
    let mut payload = ();
    assert!(emitter.emit("x", &mut payload).now_or_never().is_none());
    recorder.expect(["first x"]);
    block_on(emitter.emit("y", &mut ()))?;
    recorder.expect(["first y", "first done", "second y", "sees y"]);
    Ok(())
}

/// E11: the outer error names the listener, because the inner error names none.
#[test]
fn an_inner_error_without_a_listener_is_wrapped_with_the_listener_that_returned_it() -> TestResult {
    let app = Emitter::new().child("app")?;
    let inner = app.clone();
    app.on("outer", move |(): &mut (), _| Ok(inner.emit_now("bad name", &mut 1)?))?;
    let error = app.emit_now("outer", &mut ()).expect_err("the name is not valid");
    assert!(
        error.to_string().starts_with("a listener of `app.outer` failed (registered at emitter/tests/failure.rs"),
        "{error}"
    );
    assert!(error.source().is_some_and(|inner| inner.to_string().contains("`bad name`")));
    Ok(())
}
