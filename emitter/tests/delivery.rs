//! Deliveries that are cut while a listener is awaited, and deliveries that call sync listeners first.

mod support;

use std::future::pending;
use std::pin::pin;
use std::task::{Context, Waker};

use emitree_emitter::rt::{Delivery, Emitted, EventStamp, Facet};
use emitree_emitter::{BoxError, EmitErrorKind, Emitter, EventName};

use crate::support::{Any, Recorder, TestResult, block_on};

const DONE: EventName = EventName::new("done");

/// A value that records its drop.
struct Noted(Recorder);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.note("dropped");
    }
}

async fn never(noted: Noted) -> Result<(), BoxError> {
    pending::<()>().await;
    drop(noted);
    Ok(())
}

/// Cuts a delivery while a listener is awaited. The cut wakes no task, and takes effect when the emit is polled again.
fn cut_while_awaiting(emitter: &Emitter, delivery: &Delivery) {
    let (facet, stamp, mut payload) = (Facet::new(&()), EventStamp::new(), ());
    let begun = emitter.emit_begin(DONE, &mut payload, &facet, delivery, &stamp);
    let Emitted::Waits(waiting) = begun else { panic!("somebody has to be awaited: {begun:?}") };
    let mut emit = pin!(emitter.emit_rest(waiting, DONE, &mut payload, &facet, delivery, &stamp));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(emit.as_mut().poll(&mut cx).is_pending());
    assert!(emit.as_mut().poll(&mut cx).is_pending());
    delivery.cut();
    assert!(emit.poll(&mut cx).is_ready());
}

#[test]
fn an_awaited_listener_is_dropped_and_counted_when_the_delivery_is_cut() -> TestResult {
    for sync_first in [false, true] {
        let (emitter, recorder, delivery) = (Emitter::new(), Recorder::new(), Delivery::new());
        let noted = recorder.clone();
        emitter.on_async("done", move |_: &mut Any, _| {
            let noted = Noted(noted.clone());
            Box::pin(never(noted))
        })?;
        emitter.observe("done", recorder.sees("observer"))?;
        if sync_first {
            delivery.sync_first();
        }
        cut_while_awaiting(&emitter, &delivery);
        match sync_first {
            true => recorder.expect(["observer done", "dropped"]),
            false => recorder.expect(["dropped", "observer done"]),
        }
        assert_eq!(delivery.skipped(), 1);
    }
    Ok(())
}

#[test]
fn awaited_observers_are_dropped_and_counted_when_the_delivery_is_cut() -> TestResult {
    for sync_first in [false, true] {
        let (emitter, recorder, delivery) = (Emitter::new(), Recorder::new(), Delivery::new());
        for _ in 0..3 {
            let noted = recorder.clone();
            emitter.observe_async("done", move |_: &Any, _| {
                let noted = Noted(noted.clone());
                Box::pin(never(noted))
            })?;
        }
        if sync_first {
            delivery.sync_first();
        }
        cut_while_awaiting(&emitter, &delivery);
        recorder.expect(["dropped", "dropped", "dropped"]);
        assert_eq!(delivery.skipped(), 3);
    }
    Ok(())
}

/// Without async listeners, `emit_begin` returns the result, and no future is needed.
#[test]
fn emit_begin_completes_an_emit_that_only_sync_listeners_receive() -> TestResult {
    for sync_first in [false, true] {
        let (emitter, recorder, delivery) = (Emitter::new(), Recorder::new(), Delivery::new());
        emitter.on("done", recorder.hears("listener"))?;
        emitter.observe("done", recorder.sees("observer"))?;
        if sync_first {
            delivery.sync_first();
        }
        let begun = emitter.emit_begin(DONE, &mut (), &Facet::new(&()), &delivery, &EventStamp::new());
        assert!(matches!(begun, Emitted::Done(Ok(()))), "{begun:?}");
        recorder.expect(["listener done", "observer done"]);
    }
    Ok(())
}

/// The async listeners were registered before the sync listeners, but `emit_rest` calls them afterwards.
#[test]
fn sync_listeners_that_come_first_have_received_the_event_when_emit_begin_returns() -> TestResult {
    let (emitter, recorder, delivery) = (Emitter::new(), Recorder::new(), Delivery::new());
    emitter.on_async("done", recorder.hears_async("slow"))?;
    emitter.on("done", recorder.hears("listener"))?;
    emitter.observe_async("done", recorder.sees_async("slow observer"))?;
    emitter.observe("done", recorder.sees("observer"))?;
    delivery.sync_first();
    let (facet, stamp, mut payload) = (Facet::new(&()), EventStamp::new(), ());
    let begun = emitter.emit_begin(DONE, &mut payload, &facet, &delivery, &stamp);
    let Emitted::Waits(pending) = begun else { panic!("a listener has to be awaited: {begun:?}") };
    recorder.expect(["listener done", "observer done"]);
    block_on(emitter.emit_rest(pending, DONE, &mut payload, &facet, &delivery, &stamp))?;
    // Each async listener records its label twice: at its start with the path `done`, at its end with the word `done`.
    recorder.expect(["slow done", "slow done", "slow observer done", "slow observer done"]);
    Ok(())
}

/// E11: the failure also skips the async listener, which was deferred.
#[test]
fn if_sync_listeners_come_first_a_failure_skips_async_listeners_but_not_observers() -> TestResult {
    let (emitter, recorder, delivery) = (Emitter::new(), Recorder::new(), Delivery::new());
    emitter.on_async("done", recorder.hears_async("slow"))?;
    emitter.on("done", |_: &mut Any, _| Err::<(), BoxError>("the disk is full".into()))?;
    emitter.on("done", recorder.hears("late"))?;
    emitter.observe_async("done", recorder.sees_async("slow observer"))?;
    emitter.observe("done", recorder.sees("observer"))?;
    delivery.sync_first();
    let (facet, stamp, mut payload) = (Facet::new(&()), EventStamp::new(), ());
    let begun = emitter.emit_begin(DONE, &mut payload, &facet, &delivery, &stamp);
    let Emitted::Waits(pending) = begun else { panic!("an observer has to be awaited: {begun:?}") };
    let rest = emitter.emit_rest(pending, DONE, &mut payload, &facet, &delivery, &stamp);
    let error = block_on(rest).expect_err("a listener failed");
    assert!(matches!(error.kind(), EmitErrorKind::Listener { .. }), "{error}");
    recorder.expect(["observer done", "slow observer done", "slow observer done"]);
    Ok(())
}
