//! Emitting without listeners, and emitting from code that cannot await (E15, E17). `allocations.rs` checks that
//! emitting without listeners allocates nothing.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use emitree_emitter::rt::{Delivery, Emitted, EventStamp, Facet, Scope};
use emitree_emitter::{AnyEvent, Context, EmitErrorKind, Emitter, EventMeta, EventName, Options};

use crate::support::{Recorder, TestResult, block_on, emit, run_of};

/// E15.
#[test]
fn has_listeners_is_true_if_a_listener_or_pipe_is_on_the_emitter_or_above_it() -> TestResult {
    let root = Emitter::new();
    let leaf = root.child("a")?.child("b")?;
    assert!(!leaf.has_listeners());
    for emitter in [&root, &leaf] {
        let subscription = emitter.on("nothing", |_: &mut dyn AnyEvent, _| ())?;
        assert!(leaf.has_listeners() && !Emitter::new().has_listeners());
        subscription.off();
        assert!(!leaf.has_listeners());
        let pipe = emitter.pipe(&Emitter::new());
        assert!(leaf.has_listeners(), "a pipe is somebody");
        pipe.unpipe();
        assert!(!leaf.has_listeners());
    }
    Ok(())
}

/// E15: if the time and the context are first read after an emit without listeners, they are computed then.
#[test]
fn an_emit_without_listeners_computes_neither_time_nor_context() -> TestResult {
    const X: EventName = EventName::new("x");
    let (emitter, stamp) = (Emitter::new(), EventStamp::new());
    emitter.on("other", |_: &mut dyn AnyEvent, _| ())?;
    let emitted = emitter.emit_begin(X, &mut (), &Facet::new(&()), &Delivery::new(), &stamp);
    assert!(matches!(emitted, Emitted::Done(Ok(()))));
    let (after, later) = (SystemTime::now(), Context::new().with("looked", "later"));
    assert!(after <= stamp.time());
    assert_eq!(*stamp.context(|| later.clone()), later);
    Ok(())
}

/// E7, E15: the payload is emitted without and with listeners.
#[test]
fn a_payload_that_no_listener_serializes_is_never_serialized() -> TestResult {
    /// A payload that counts how often it is serialized. A panic in `serialize` would not be noticed: it would become
    /// the text of a record.
    #[derive(Default)]
    struct Counted(AtomicUsize);
    impl serde::Serialize for Counted {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.fetch_add(1, Ordering::Relaxed);
            serializer.serialize_unit()
        }
    }
    let (emitter, recorder, mut payload) = (Emitter::new(), Recorder::new(), Counted::default());
    emitter.emit_now("x", &mut payload)?;
    block_on(emitter.emit("x", &mut payload))?;
    emitter.on("*", |_: &mut Counted, _| ())?;
    emitter.observe("*.*", recorder.sees("observer"))?;
    emitter.emit_now("x", &mut payload)?;
    block_on(emitter.emit("x", &mut payload))?;
    recorder.expect(["observer x", "observer x"]);
    assert_eq!(payload.0.into_inner(), 0);
    Ok(())
}

/// E17.
#[test]
fn emit_now_runs_sync_listeners_and_observers_inline() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let child = root.child("a")?;
    child.observe("*", recorder.sees("child sees"))?;
    root.on("*.*", recorder.hears("root"))?;
    child.on("n", |n: &mut u32, _| *n += 1)?;
    root.on_async("elsewhere", recorder.hears_async("not concerned"))?;
    let mut n = 1_u32;
    child.emit_now("n", &mut n)?;
    assert_eq!(n, 2);
    recorder.expect(["root a.n", "child sees a.n"]);
    Ok(())
}

/// E17: the async listener may be at any place in the route and have any matcher.
#[test]
fn emit_now_fails_before_any_listener_runs_if_an_async_listener_would_receive_the_event() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let (child, aside) = (root.child("a")?, Emitter::new());
    child.pipe(&aside);
    child.on("*", recorder.hears("child"))?;
    let registrations = [
        (&child, Options::new().on_async("x", recorder.hears_async("async"))),
        (&root, Options::new().on_async("*.*", recorder.hears_async("async"))),
        (&root, Options::new().observe_async("*.*", recorder.sees_async("async"))),
        (&aside, Options::new().observe_async("**.x", recorder.sees_async("async"))),
        (&child, Options::new().on_async(|_: &EventMeta<'_>| true, recorder.hears_async("async"))),
    ];
    for (emitter, registration) in registrations {
        let subscription = emitter.register(registration)?;
        let error = child.emit_now("x", &mut ()).expect_err("somebody would have to be awaited");
        assert!(matches!(error.kind(), EmitErrorKind::WouldAwait { .. }), "{error:?}");
        assert!(error.to_string().contains("`a.x`") && error.to_string().contains("tests/emit_now.rs:"), "{error}");
        recorder.expect([]);
        subscription.off();
        child.emit_now("x", &mut ())?;
        recorder.expect(["child a.x"]);
    }
    child.on_async(|_: &EventMeta<'_>| false, recorder.hears_async("async"))?;
    child.on_async("x", |_: &mut u8, _| Box::pin(async { Ok(()) }))?.off();
    child.on_async("*", |_: &mut u8, _| Box::pin(async { Ok(()) }))?;
    child.emit_now("x", &mut ())?;
    recorder.expect(["child a.x"]);
    Ok(())
}

/// E17: this test covers an error that a listener returned.
#[test]
fn emit_now_returns_the_same_error_as_emit() -> TestResult {
    let emitter = Emitter::new();
    emitter.on("x", |_: &mut (), _| Err::<(), emitree_emitter::BoxError>("no".into()))?;
    let (now, awaited) = (emitter.emit_now("x", &mut ()), block_on(emitter.emit("x", &mut ())));
    assert_eq!(now.expect_err("no").to_string(), awaited.expect_err("no").to_string());
    Ok(())
}

struct Bracket(Recorder);

impl Scope for Bracket {
    fn within(self: Arc<Self>, f: &mut dyn FnMut()) {
        self.0.note("(");
        f();
        self.0.note(")");
    }
}

/// R9, the emitter's part: the scope of the event's run is entered for each call and each poll.
#[test]
fn listeners_of_a_runs_events_are_called_and_polled_inside_its_scope() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let scope: Arc<dyn Scope> = Arc::new(Bracket(recorder.clone()));
    let instance = root.child("a")?;
    let run = instance.for_run(emitree_emitter::rt::RunLinks::new().scope(Arc::downgrade(&scope)));
    let sync = root.on("*.*", recorder.hears("root"))?;
    run.child("part")?.emit_now("x", &mut ())?;
    recorder.expect(["(", "root a.part.x", ")"]);
    emit(&run_of(&instance), "x");
    recorder.expect(["root a.x"]);
    sync.off();
    root.on_async("*.*", recorder.hears_async("root"))?;
    emit(&run, "x");
    recorder.expect(["(", ")", "(", "root a.x", ")", "(", "root done", ")"]);
    drop(scope);
    emit(&run, "x");
    recorder.expect(["root a.x", "root done"]);
    Ok(())
}
