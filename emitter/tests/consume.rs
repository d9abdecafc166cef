//! Events that a listener consumes (E20).

mod support;

use std::sync::{Arc, Mutex};

use emitree_emitter::rt::binding;
use emitree_emitter::{BoxError, Emitter, EventMeta, Options};

use crate::support::block_on;

type Log = Arc<Mutex<Vec<&'static str>>>;

fn adds(log: &Log, text: &'static str) -> impl Fn(&mut u32, &EventMeta<'_>) + Send + Sync + 'static {
    let log = Arc::clone(log);
    move |_, _| log.lock().unwrap().push(text)
}

fn notes(log: &Log, text: &'static str) -> impl Fn(&u32, &EventMeta<'_>) + Send + Sync + 'static {
    let log = Arc::clone(log);
    move |_, _| log.lock().unwrap().push(text)
}

fn consumes(_: &mut u32, meta: &EventMeta<'_>) -> Result<(), BoxError> {
    Ok(meta.consume()?)
}

fn taken(log: &Log) -> Vec<&'static str> {
    std::mem::take(&mut log.lock().unwrap())
}

#[test]
fn later_listeners_of_user_code_are_skipped_on_the_emitter_above_it_and_behind_pipes() -> Result<(), BoxError> {
    let log = Log::default();
    let root = Emitter::root();
    let child = root.child("c")?;
    let target = Emitter::new();
    target.on("**.e", adds(&log, "behind the pipe"))?;
    target.observe("**.e", notes(&log, "observer behind the pipe"))?;
    root.on("c.e", adds(&log, "above"))?;
    root.observe("c.e", notes(&log, "observer above"))?;
    child.on("e", adds(&log, "before"))?;
    let consumer = child.on("e", consumes)?;
    child.on("e", adds(&log, "after"))?;
    child.on_async("e", |_: &mut u32, _| Box::pin(async { panic!("an async listener after") }))?;
    child.observe("e", notes(&log, "observer"))?;
    let without_pipe = ["before", "observer", "observer above"];
    // The first emit calls the listeners one by one, and later ones in batches.
    for _ in 0..3 {
        block_on(child.emit("e", &mut 1_u32))?;
        assert_eq!(taken(&log), without_pipe);
    }
    root.pipe(&target);
    block_on(child.emit("e", &mut 1_u32))?;
    assert_eq!(taken(&log), ["before", "observer", "observer above", "observer behind the pipe"]);
    consumer.off();
    assert!(block_on(child.emit("e", &mut 1_u32)).is_err(), "each event is consumed anew");
    Ok(())
}

#[test]
fn what_a_middleware_has_bound_receives_a_consumed_event_in_a_batch_of_many_listeners_too() -> Result<(), BoxError> {
    let log = Log::default();
    let emitter = Emitter::new();
    for _ in 0..10 {
        emitter.on("other", adds(&log, "another event"))?;
    }
    emitter.on("e", adds(&log, "first"))?;
    emitter.on("e", consumes)?;
    emitter.on("e", adds(&log, "skipped"))?;
    binding(|| emitter.on("e", adds(&log, "bound")))?;
    emitter.on("e", adds(&log, "skipped"))?;
    for _ in 0..4 {
        emitter.emit_now("e", &mut 1_u32)?;
        assert_eq!(taken(&log), ["first", "bound"]);
    }
    Ok(())
}

#[test]
fn a_listener_that_is_skipped_has_not_used_up_a_call() -> Result<(), BoxError> {
    let log = Log::default();
    let emitter = Emitter::new();
    let consumer = emitter.on("e", consumes)?;
    emitter.with(Options::new().once()).on("e", adds(&log, "once"))?;
    emitter.emit_now("e", &mut 1_u32)?;
    assert!(taken(&log).is_empty());
    consumer.off();
    emitter.emit_now("e", &mut 1_u32)?;
    emitter.emit_now("e", &mut 1_u32)?;
    assert_eq!(taken(&log), ["once"]);
    Ok(())
}
