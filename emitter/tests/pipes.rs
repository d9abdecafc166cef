//! Pipes, which forward events to other emitters (E12).

mod support;

use std::sync::Arc;

use emitree_emitter::{AnyEvent, Emitter};

use crate::support::{Recorder, TestResult, block_on, emit};

fn recorded(recorder: &Recorder, who: &str) -> Result<Emitter, emitree_emitter::ListenError> {
    let emitter = Emitter::new();
    emitter.on("*.*", recorder.hears(who))?;
    Ok(emitter)
}

/// E12.
#[test]
fn a_pipe_forwards_the_events_that_reach_its_emitter_to_the_target_and_emitters_above() -> TestResult {
    let (recorder, from) = (Recorder::new(), Emitter::new());
    let above = recorded(&recorder, "above")?;
    let target = above.child("target")?;
    target.on("*.*", recorder.hears("target"))?;
    from.pipe(&target);
    emit(&from, "own");
    emit(&from.child("deep")?.child("below")?, "x");
    recorder.expect(["target own", "above own", "target deep.below.x", "above deep.below.x"]);
    emit(&target, "x");
    recorder.expect(["target target.x", "above target.x"]);
    Ok(())
}

/// E12.
#[test]
fn each_emitter_receives_an_event_once_through_a_diamond_or_a_cycle_of_pipes() -> TestResult {
    let recorder = Recorder::new();
    let all = ["a", "b", "c", "d"].map(|who| recorded(&recorder, who).expect("a matcher"));
    let [a, b, c, d] = &all;
    for (from, to) in [(a, b), (a, c), (b, d), (c, d), (d, a)] {
        from.pipe(to);
    }
    emit(a, "x");
    recorder.expect(["a x", "b x", "c x", "d x"]);
    emit(c, "x");
    recorder.expect(["c x", "d x", "a x", "b x"]);
    Ok(())
}

/// E12: dropping a handle leaves its pipe in place.
#[test]
fn unpipe_removes_its_pipe_and_close_removes_all_pipes() -> TestResult {
    let (recorder, from) = (Recorder::new(), Emitter::new());
    let (a, b) = (recorded(&recorder, "a")?, recorded(&recorder, "b")?);
    let to_a = from.pipe(&a);
    drop(from.pipe(&b));
    from.on("*", recorder.hears("own"))?;
    emit(&from, "x");
    recorder.expect(["own x", "a x", "b x"]);
    assert!(to_a.unpipe() && !to_a.unpipe());
    emit(&from, "x");
    recorder.expect(["own x", "b x"]);
    assert_eq!(from.reset(), 1, "a pipe is no listener");
    emit(&from, "x");
    recorder.expect(["b x"]);
    from.close();
    emit(&from, "x");
    recorder.expect([]);
    Ok(())
}

/// E12.
#[test]
fn a_pipe_keeps_its_target_alive_until_unpipe_or_close_but_not_its_own_emitter() -> TestResult {
    let kept = |emitter: &Emitter| -> Result<Arc<()>, emitree_emitter::ListenError> {
        let held = Arc::new(());
        let captured = Arc::clone(&held);
        emitter.on("*", move |_: &mut dyn AnyEvent, _| drop(Arc::clone(&captured)))?;
        Ok(held)
    };
    let (from, to) = (Emitter::new(), Emitter::new());
    let (from_lives, to_lives) = (kept(&from)?, kept(&to)?);
    let handle = from.pipe(&to);
    drop(to);
    emit(&from, "x");
    assert_eq!(Arc::strong_count(&to_lives), 2);
    assert!(handle.unpipe());
    assert_eq!(Arc::strong_count(&to_lives), 1);
    drop(from);
    assert_eq!((Arc::strong_count(&from_lives), handle.unpipe()), (1, false));

    let (a, b) = (Emitter::new(), Emitter::new());
    let (a_lives, b_lives) = (kept(&a)?, kept(&b)?);
    let ends = [a.pipe(&b), b.pipe(&a)];
    a.pipe(&a);
    drop((b, a.clone()));
    emit(&a, "x");
    a.close();
    drop(a);
    assert_eq!((Arc::strong_count(&a_lives), Arc::strong_count(&b_lives)), (1, 1), "the cycle has ended");
    assert!(!ends[1].unpipe());
    Ok(())
}

/// E12.
#[test]
fn the_source_of_an_event_is_the_emitter_on_which_the_event_was_emitted() -> TestResult {
    let (recorder, here) = (Recorder::new(), Emitter::new());
    let (note, this) = (recorder.clone(), here.clone());
    here.on("*.*", move |_: &mut dyn AnyEvent, meta| {
        note.note(if *meta.source() == this { "emitted here" } else { "came by" });
    })?;
    let elsewhere = Emitter::new();
    elsewhere.pipe(&here);
    emit(&here, "x");
    emit(&elsewhere, "x");
    emit(&here.child("a")?, "x");
    recorder.expect(["emitted here", "came by", "came by"]);
    here.close();
    Ok(())
}

/// E12: a listener reached through the pipe changes the event for all later listeners, and its failure fails the emit.
#[test]
fn a_listener_that_a_pipe_reaches_can_change_the_event_and_fail_the_emit() -> TestResult {
    let (from, to) = (Emitter::new(), Emitter::new());
    from.pipe(&to);
    to.on("*.*", |n: &mut u32, _| *n += 1)?;
    to.on_async("*.*", |n: &mut u32, _| Box::pin(async move { if *n > 5 { Err("too many".into()) } else { Ok(()) } }))?;
    let mut n = 4_u32;
    block_on(from.emit("n", &mut n))?;
    let error = block_on(from.emit("n", &mut n)).expect_err("too many");
    assert_eq!((n, error.to_string().contains("`n`")), (6, true));
    Ok(())
}
