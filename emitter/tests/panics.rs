//! User values that panic when they are dropped or displayed: errors, futures, closures, and payloads of panics. No
//! such panic leaves an emit or ends the thread of a sink (E11, E13).

mod support;

use std::error::Error as StdError;
use std::fmt;
use std::future::pending;
use std::panic::panic_any;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use emitree_emitter::rt::{Delivery, Emitted, EventStamp, Facet};
use emitree_emitter::{
    BoxError, EmitErrorKind, Emitter, EventMeta, EventName, OnError, Options, Progress, Registration, Sink, SinkRecord,
    panic_text,
};
use futures_core::future::BoxFuture;
use futures_util::FutureExt;

use crate::support::{Any, Recorder, TestResult, block_on, yield_once};

const TEXT: &str = "a non-string panic payload";

/// A value that panics when it is dropped. The field is the number of panics whose payload is another bomb, or `None`
/// if there is no end.
#[derive(Debug)]
struct Bomb(Option<usize>);

const ONCE: Bomb = Bomb(Some(0));
const ENDLESS: Bomb = Bomb(None);

impl Drop for Bomb {
    fn drop(&mut self) {
        match self.0 {
            None => panic_any(ENDLESS),
            Some(0) => panic!("the bomb was dropped"),
            Some(more) => panic_any(Self(Some(more - 1))),
        }
    }
}

/// An error that panics when it is dropped.
#[derive(Debug)]
struct Faulty {
    _bomb: Bomb,
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

impl StdError for Faulty {}

/// An error that panics when it is displayed.
#[derive(Debug)]
struct Unspeakable;

impl fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic_any(ENDLESS)
    }
}

impl StdError for Unspeakable {}

type Answer<'a> = BoxFuture<'a, Result<(), BoxError>>;

fn bombs() -> [fn() -> Bomb; 3] {
    [|| ONCE, || Bomb(Some(2)), || ENDLESS]
}

/// Listeners that panic with a bomb: in the matcher, in the call, or in the future.
fn panicking(options: Options, bomb: fn() -> Bomb) -> [Registration; 7] {
    let late = move || -> Answer<'static> {
        Box::pin(async move {
            yield_once().await;
            panic_any(bomb())
        })
    };
    [
        options.on("*", move |_: &mut Any, _| -> () { panic_any(bomb()) }),
        options.on(move |_: &EventMeta<'_>| panic_any(bomb()), |_: &mut Any, _| ()),
        options.on_async("*", move |_: &mut Any, _| late()),
        options.on_async("*", move |_: &mut Any, _| panic_any(bomb())),
        options.observe("*", move |_: &Any, _| -> () { panic_any(bomb()) }),
        options.observe_async("*", move |_: &Any, _| late()),
        options.observe_async("*", move |_: &Any, _| panic_any(bomb())),
    ]
}

/// E11.
#[test]
fn no_panic_leaves_an_emit_if_the_payload_of_a_panic_panics_when_dropped() -> TestResult {
    for bomb in bombs() {
        for registration in panicking(Options::new().on_error(OnError::Propagate), bomb) {
            let (recorder, emitter, what) = (Recorder::new(), Emitter::new(), format!("{registration:?}"));
            emitter.on("*", recorder.hears("hears"))?;
            emitter.register(registration)?;
            emitter.observe("*", recorder.sees("sees"))?;
            let error = block_on(emitter.emit("x", &mut ())).expect_err(&what);
            let EmitErrorKind::Panicked { message, .. } = error.kind() else { panic!("{what}: {error:?}") };
            assert_eq!(message, TEXT, "{what}");
            recorder.expect(["hears x", "sees x"]);
        }
        for registration in panicking(Options::new().on_error(OnError::Isolate), bomb) {
            let emitter = Emitter::new();
            emitter.register(registration)?;
            block_on(emitter.emit("x", &mut ()))?;
            assert_eq!(emitter.isolated_failures(), 1);
        }
    }
    Ok(())
}

/// E11: from the second event on, the listeners are called in a batch.
#[test]
fn no_panic_leaves_an_emit_to_a_batch_if_the_payload_of_a_panic_panics_when_dropped() -> TestResult {
    let (emitter, recorder) = (Emitter::new(), Recorder::new());
    for _ in 0..10 {
        emitter
            .with(Options::new().on_error(OnError::Isolate))
            .on("x", |_: &mut u32, _| -> () { panic_any(ENDLESS) })?;
    }
    emitter.on("x", recorder.hears("last"))?;
    for emits in 1..=3 {
        block_on(emitter.emit("x", &mut 1_u32))?;
        assert_eq!(emitter.isolated_failures(), 10 * emits);
        recorder.expect(["last x"]);
    }
    Ok(())
}

/// E11.
#[test]
fn no_panic_of_a_matcher_leaves_an_emit_even_if_its_payload_panics_when_dropped() -> TestResult {
    let emitter = Emitter::new();
    let panics = |_: &EventMeta<'_>| -> bool { panic_any(ENDLESS) };
    emitter.on_async(panics, |_: &mut Any, _| Box::pin(async { Ok(()) }))?;
    let errors = [emitter.emit_now("x", &mut ()), block_on(emitter.emit("x", &mut ()))].map(Result::unwrap_err);
    for error in errors {
        assert!(matches!(error.kind(), EmitErrorKind::Panicked { .. }), "{error:?}");
    }
    Ok(())
}

/// Emits with a delivery. Drops the future after one poll, or cuts the delivery and polls again.
fn emit_impatiently(emitter: &Emitter, delivery: &Delivery, cut: bool) {
    const X: EventName = EventName::new("x");
    let (facet, stamp, mut payload) = (Facet::new(&()), EventStamp::new(), ());
    let Emitted::Waits(waiting) = emitter.emit_begin(X, &mut payload, &facet, delivery, &stamp) else { return };
    let mut emit = Box::pin(emitter.emit_rest(waiting, X, &mut payload, &facet, delivery, &stamp));
    drop((&mut emit).now_or_never());
    if cut {
        delivery.cut();
        drop((&mut emit).now_or_never());
    }
}

/// E11.
#[test]
fn no_panic_leaves_an_emit_with_sync_listeners_first_if_a_panic_payload_panics_when_dropped() -> TestResult {
    for registration in panicking(Options::new(), || ENDLESS) {
        let (emitter, recorder, delivery) = (Emitter::new(), Recorder::new(), Delivery::new());
        emitter.register(registration)?;
        emitter.observe("*", recorder.sees("sees"))?;
        delivery.sync_first();
        emit_impatiently(&emitter, &delivery, false);
        recorder.expect(["sees x"]);
    }
    Ok(())
}

/// A listener's future that panics when it is dropped, ready or not.
struct Armed<F> {
    work: F,
    _bomb: Bomb,
}

impl<F: Future<Output = Result<(), BoxError>> + Unpin> Future for Armed<F> {
    type Output = F::Output;

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<F::Output> {
        self.work.poll_unpin(cx)
    }
}

fn armed(answer: impl Future<Output = Result<(), BoxError>> + Send + 'static) -> Answer<'static> {
    Box::pin(Armed { work: Box::pin(answer), _bomb: ENDLESS })
}

/// E11.
#[test]
fn a_listener_whose_future_panics_when_dropped_has_failed() -> TestResult {
    let loud = Options::new().on_error(OnError::Propagate);
    for (registration, says) in [
        (loud.on_async("*", |_: &mut Any, _| armed(async { Ok(()) })), TEXT),
        (loud.observe_async("*", |_: &Any, _| armed(async { Ok(()) })), TEXT),
        (loud.on_async("*", |_: &mut Any, _| armed(async { Err("the disk is full".into()) })), "the disk is full"),
        (loud.observe_async("*", |_: &Any, _| armed(async { panic!("the disk is full") })), "the disk is full"),
    ] {
        let emitter = Emitter::new();
        emitter.register(registration)?;
        let error = block_on(emitter.emit("x", &mut ())).expect_err("its drop panics");
        let text = format!("{error} {}", error.source().map(ToString::to_string).unwrap_or_default());
        assert!(text.contains(says), "{text}");
    }
    Ok(())
}

/// E11.
#[test]
fn no_panic_leaves_a_dropped_or_cut_emit_if_the_future_of_a_listener_panics_when_dropped() -> TestResult {
    for cut in [false, true] {
        for sync_first in [false, true] {
            let (emitter, recorder, delivery) = (Emitter::new(), Recorder::new(), Delivery::new());
            emitter.on_async("*", |_: &mut Any, _| armed(pending()))?;
            emitter.observe_async("*", |_: &Any, _| armed(pending()))?;
            emitter.observe("*", recorder.sees("sees"))?;
            if sync_first {
                delivery.sync_first();
            }
            emit_impatiently(&emitter, &delivery, cut);
            assert_eq!(recorder.take().len(), usize::from(cut || sync_first));
        }
    }
    let emitter = Emitter::new();
    for _ in 0..3 {
        emitter.observe_async("*", |_: &Any, _| armed(pending()))?;
    }
    let mut payload = ();
    assert!(emitter.emit("x", &mut payload).now_or_never().is_none());
    Ok(())
}

/// E11.
#[test]
fn no_panic_leaves_an_emit_if_an_isolated_error_panics_when_dropped_or_displayed() -> TestResult {
    let (emitter, recorder) = (Emitter::new(), Recorder::new());
    emitter.observe("*", |_: &Any, _| Err::<(), BoxError>(Faulty { _bomb: ENDLESS }.into()))?;
    emitter.observe("*", |_: &Any, _| Err::<(), BoxError>(Unspeakable.into()))?;
    emitter.observe_async("*", |_: &Any, _| Box::pin(async { Err(Faulty { _bomb: ONCE }.into()) }))?;
    emitter.observe("*", recorder.sees("sees"))?;
    block_on(emitter.emit("x", &mut ()))?;
    assert_eq!(emitter.isolated_failures(), 3);
    recorder.expect(["sees x"]);
    Ok(())
}

/// E11: an emit fails with the first error. Later errors are counted.
#[test]
fn a_second_error_is_counted_and_no_panic_leaves_the_emit_if_its_drop_panics() -> TestResult {
    let emitter = Emitter::new();
    let loud = emitter.with(Options::new().on_error(OnError::Propagate));
    loud.observe("*", |_: &Any, _| Err::<(), BoxError>("first".into()))?;
    loud.observe("*", |_: &Any, _| Err::<(), BoxError>(Faulty { _bomb: ENDLESS }.into()))?;
    let error = block_on(emitter.emit("x", &mut ())).expect_err("it fails");
    assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("first"));
    assert_eq!(emitter.isolated_failures(), 1);
    Ok(())
}

/// E11: the emit is dropped while it holds an error.
#[test]
fn no_panic_leaves_a_dropped_emit_if_its_error_panics_when_dropped() -> TestResult {
    let emitter = Emitter::new();
    emitter.on("*", |_: &mut Any, _| Err::<(), BoxError>(Faulty { _bomb: ENDLESS }.into()))?;
    emitter.observe_async("*", |_: &Any, _| Box::pin(pending()))?;
    let mut payload = ();
    assert!(emitter.emit("x", &mut payload).now_or_never().is_none());
    Ok(())
}

/// E9, E11: an emit may hold the last handle to a removed listener.
#[test]
fn no_panic_leaves_an_emit_that_drops_the_captured_values_of_a_listener() -> TestResult {
    fn captures(bomb: Bomb) -> impl Fn(&mut u32, &EventMeta<'_>) + Send + Sync + 'static {
        move |_, _| drop(format!("{bomb:?}"))
    }
    for many in [0, 10] {
        let (emitter, recorder) = (Emitter::new(), Recorder::new());
        let subscriptions = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..=many {
            subscriptions.lock().expect("no panic").push(emitter.on("x", captures(ENDLESS))?);
        }
        emitter.with(Options::new().once()).on("x", captures(ENDLESS))?;
        let bomb = ENDLESS;
        subscriptions
            .lock()
            .expect("no panic")
            .push(emitter.on(move |_: &EventMeta<'_>| format!("{bomb:?}").is_empty(), |_: &mut u32, _| ())?);
        emitter.on("x", recorder.hears("hears"))?;
        block_on(emitter.emit("x", &mut 1_u32))?;
        block_on(emitter.emit("x", &mut 1_u32))?;
        emitter.on("x", move |_: &mut u32, _| {
            subscriptions.lock().expect("no panic").drain(..).for_each(|subscription| _ = subscription.off());
        })?;
        block_on(emitter.emit("x", &mut 1_u32))?;
        assert_eq!(emitter.listener_count(), 2);
        recorder.expect(["hears x"; 3]);
    }
    Ok(())
}

/// The text of a panic is read from its payload, even if the payload panics in its drop.
#[test]
fn the_text_of_a_panic_is_read_even_if_its_payload_panics_when_dropped() {
    let cases: [(Box<dyn std::any::Any + Send>, &str); 4] = [
        (Box::new("text"), "text"),
        (Box::new("a string".to_owned()), "a string"),
        (Box::new(Bomb(Some(1))), TEXT),
        (Box::new(ENDLESS), TEXT),
    ];
    for (payload, text) in cases {
        assert_eq!(panic_text(payload), text);
    }
}

/// The behavior of a sink's method.
type Act = fn() -> Result<(), BoxError>;

/// A sink whose methods panic or fail. `write` does so only for odd numbers.
struct Rigged {
    act: Act,
    written: mpsc::Sender<u64>,
    _bomb: Bomb,
}

impl Sink for Rigged {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        let number = record.as_event().map_or(Ok(0), |event| event.payload::<u64>())?;
        self.written.send(number)?;
        if number % 2 == 1 { (self.act)() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        (self.act)()
    }

    fn close(&mut self) -> Result<(), BoxError> {
        (self.act)()
    }

    fn progress(&self) -> Option<Progress> {
        drop((self.act)());
        None
    }

    fn flush_interval(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }
}

/// E13.
#[test]
fn a_sink_that_panics_or_fails_receives_every_record_and_is_closed() -> TestResult {
    let acts: [Act; 4] = [
        || panic_any(ENDLESS),
        || panic_any(ONCE),
        || Err(Faulty { _bomb: ENDLESS }.into()),
        || Err(Unspeakable.into()),
    ];
    for act in acts {
        let (emitter, (written, reads)) = (Emitter::new(), mpsc::channel());
        let sink = emitter.pipe_to(Rigged { act, written, _bomb: ENDLESS })?;
        for mut number in 0..10_u64 {
            emitter.emit_now("n", &mut number)?;
        }
        let flushed = sink.flush_blocking();
        assert_eq!((flushed.buffered, flushed.failed, flushed.pending), (5, 5, 0), "{flushed}");
        emitter.emit_now("n", &mut 10_u64)?;
        let closed = sink.close_blocking(Duration::MAX);
        // No flush succeeded, so the accepted events count as failed, too.
        assert_eq!((closed.failed, closed.buffered, closed.lost, closed.pending), (11, 0, 0, 0), "{closed}");
        assert!(closed.error.is_some());
        assert_eq!(reads.into_iter().collect::<Vec<_>>(), (0..=10).collect::<Vec<_>>());
    }
    Ok(())
}

/// E13: a payload that panics when it is serialized does not affect the emit.
#[test]
fn a_payload_whose_serialization_panics_is_recorded_as_text() -> TestResult {
    struct Unwritable;
    impl serde::Serialize for Unwritable {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic_any(ENDLESS)
        }
    }
    let emitter = Emitter::new();
    let mut stream = emitter.stream("*", 1)?;
    emitter.emit_now("x", &mut Unwritable)?;
    let record = block_on(stream.recv()).ok_or("a record")?;
    let text = record.as_event().ok_or("an event")?.payload::<String>()?;
    assert!(text.contains("panicked") && text.contains(TEXT), "{text}");
    Ok(())
}
