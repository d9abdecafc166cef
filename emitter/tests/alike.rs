//! Batches: from the second event of each name on, many adjacent listeners of one type are called together. Each
//! listener behaves as if it were called alone (E5, E7, E8, E9, E11).

mod support;

use std::sync::{Arc, OnceLock};

use emitree_emitter::{BoxError, EmitErrorKind, Emitter, EventMeta, ListenError, OnError, Options, Subscription};

use crate::support::{Any, Recorder, TestResult, block_on, emit};

/// Enough listeners to be matched by a table instead of one by one.
const MANY: usize = 12;

/// Registers many listeners of one type. Each records its number when it is called.
fn many(emitter: &Emitter, recorder: &Recorder) -> Result<Vec<Subscription>, BoxError> {
    let hears = |n: usize| {
        let recorder = recorder.clone();
        move |(): &mut (), _: &EventMeta<'_>| recorder.note(n.to_string())
    };
    (0..MANY).map(|n| Ok(emitter.on("x", hears(n))?)).collect()
}

/// Checks that the listeners with these numbers were called, in this order.
#[track_caller]
fn expect(recorder: &Recorder, numbers: impl IntoIterator<Item = usize>) {
    let numbers: Vec<_> = numbers.into_iter().map(|n| n.to_string()).collect();
    recorder.expect(numbers.iter().map(String::as_str));
}

/// E5: listeners of equal priority are called in order of registration, even with other listeners in between.
#[test]
fn listeners_of_a_batch_are_called_in_order_among_other_listeners() -> TestResult {
    let (emitter, recorder) = (Emitter::new(), Recorder::new());
    many(&emitter, &recorder)?;
    emitter.on(|_: &EventMeta<'_>| false, |(): &mut (), _| -> () { panic!("its matcher says no") })?;
    emitter.on("x", recorder.hears("any"))?;
    emitter.on("x", recorder.hears("any too"))?;
    emitter.on_async("x", recorder.hears_async("slow"))?;
    many(&emitter, &recorder)?;
    emitter.observe("x", recorder.sees("observer"))?;
    emitter.with(Options::new().priority(1)).on("x", recorder.hears("first"))?;
    let numbers: Vec<_> = (0..MANY).map(|n| n.to_string()).collect();
    let numbers = || numbers.iter().map(String::as_str);
    for _ in 0..3 {
        emit(&emitter, "x");
        let between = ["any x", "any too x", "slow x", "slow done"];
        recorder.expect(["first x"].into_iter().chain(numbers()).chain(between).chain(numbers()).chain(["observer x"]));
    }
    Ok(())
}

/// E9: the dispatch is under way and has not reached the removed listener yet.
#[test]
fn a_listener_that_another_listener_removes_during_the_dispatch_is_not_called() -> TestResult {
    let (emitter, recorder, removed) = (Emitter::new(), Recorder::new(), Removed::default());
    removed.listen(&emitter)?;
    let listeners = many(&emitter, &recorder)?;
    for _ in 0..3 {
        emit(&emitter, "x");
        expect(&recorder, 0..MANY);
    }
    removed.set(listeners.into_iter().skip(1).step_by(2));
    emit(&emitter, "x");
    expect(&recorder, (0..MANY).step_by(2));
    Ok(())
}

/// The listeners to remove. The listener registered by `listen` removes them once `set` has stored them.
#[derive(Clone, Default)]
struct Removed(Arc<OnceLock<Vec<Subscription>>>);

impl Removed {
    fn listen(&self, emitter: &Emitter) -> Result<Subscription, ListenError> {
        let removed = self.clone();
        emitter.on("x", move |_: &mut Any, _| {
            for subscription in removed.0.get().into_iter().flatten() {
                subscription.off();
            }
        })
    }

    fn set(&self, listeners: impl IntoIterator<Item = Subscription>) {
        assert!(self.0.set(listeners.into_iter().collect()).is_ok(), "told once");
    }
}

/// E8: the limit does not affect the other listeners of the batch.
#[test]
fn a_limited_listener_in_a_batch_keeps_its_limit() -> TestResult {
    const LIMIT: usize = 3;
    let (emitter, recorder) = (Emitter::new(), Recorder::new());
    many(&emitter, &recorder)?;
    let limited = recorder.clone();
    emitter.with(Options::new().times(LIMIT)).on("x", move |(): &mut (), _| limited.note(MANY.to_string()))?;
    many(&emitter, &recorder)?;
    for _ in 0..LIMIT {
        emit(&emitter, "x");
        expect(&recorder, (0..MANY).chain([MANY]).chain(0..MANY));
    }
    for _ in 0..3 {
        emit(&emitter, "x");
        expect(&recorder, (0..MANY).chain(0..MANY));
    }
    assert_eq!(emitter.listener_count(), 2 * MANY, "spent, it is gone");
    Ok(())
}

/// E11: the error of the emit names the listener that failed or panicked.
#[test]
fn after_a_failure_in_a_batch_later_listeners_are_not_called_but_observers_are() -> TestResult {
    for panics in [false, true] {
        let (emitter, recorder) = (Emitter::new(), Recorder::new());
        many(&emitter, &recorder)?;
        let fails = move |(): &mut (), _: &EventMeta<'_>| {
            assert!(!panics, "the disk is full");
            Err::<(), BoxError>("the disk is full".into())
        };
        let line = line!() + 1;
        emitter.on("x", fails)?;
        many(&emitter, &recorder)?;
        emitter.observe("x", recorder.sees("observer"))?;
        for _ in 0..2 {
            let error = block_on(emitter.emit("x", &mut ())).expect_err("a listener fails");
            let (EmitErrorKind::Listener { at, .. } | EmitErrorKind::Panicked { at, .. }) = error.kind() else {
                panic!("{error}")
            };
            assert_eq!(at.line(), line, "{error}");
            let numbers: Vec<_> = (0..MANY).map(|n| n.to_string()).collect();
            recorder.expect(numbers.iter().map(String::as_str).chain(["observer x"]));
        }
    }
    Ok(())
}

/// E11: the other listeners are each called once, in order.
#[test]
fn an_isolated_failure_in_a_batch_does_not_affect_the_other_listeners() -> TestResult {
    let (emitter, recorder) = (Emitter::new(), Recorder::new());
    let isolated = emitter.with(Options::new().on_error(OnError::Isolate));
    for _ in 0..2 {
        many(&emitter, &recorder)?;
        isolated.on("x", |(): &mut (), _| Err::<(), BoxError>("the disk is full".into()))?;
        isolated.on("x", |(): &mut (), _| -> () { panic!("the disk is full") })?;
    }
    many(&emitter, &recorder)?;
    for emits in 1..=2 {
        emit(&emitter, "x");
        expect(&recorder, (0..MANY).chain(0..MANY).chain(0..MANY));
        assert_eq!(emitter.isolated_failures(), emits * 4);
    }
    Ok(())
}

/// E7: the first listener refuses the event, and the emit fails. If failures are isolated, every listener refuses the
/// event. A removed listener is not called.
#[test]
fn an_event_of_another_type_is_refused_by_each_listener_of_a_batch() -> TestResult {
    let (emitter, recorder, removed) = (Emitter::new(), Recorder::new(), Removed::default());
    removed.listen(&emitter)?;
    let listeners = many(&emitter, &recorder)?;
    let mismatch = || block_on(emitter.emit("x", &mut 7_u64)).map_err(|error| error.to_string());
    for _ in 0..3 {
        assert!(mismatch().is_err_and(|error| error.contains("carries `u64`, but a listener takes `()`")));
    }
    removed.set(listeners);
    assert_eq!(mismatch(), Ok(()), "removed while the event was under way");

    let isolated = emitter.with(Options::new().on_error(OnError::Isolate));
    for _ in 0..MANY {
        isolated.on("x", |(): &mut (), _| ())?;
    }
    for emits in 1..=3 {
        assert_eq!(mismatch(), Ok(()));
        assert_eq!(emitter.isolated_failures(), emits * MANY as u64);
    }
    recorder.expect([]);
    Ok(())
}

/// The inner emit calls all listeners before the outer emit continues.
#[test]
fn a_listener_may_emit_to_the_other_listeners_of_its_batch() -> TestResult {
    let (emitter, recorder) = (Emitter::new(), Recorder::new());
    many(&emitter, &recorder)?;
    let (again, inner) = (OnceLock::new(), emitter.clone());
    emitter.on("x", move |(): &mut (), _| match again.set(()) {
        Ok(()) => Ok(inner.emit_now("x", &mut ())?),
        Err(()) => Ok::<(), BoxError>(()),
    })?;
    many(&emitter, &recorder)?;
    emit(&emitter, "x");
    expect(&recorder, (0..MANY).chain(0..MANY).chain(0..MANY).chain(0..MANY));
    Ok(())
}
