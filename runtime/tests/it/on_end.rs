//! `RunContext::on_end`: a function that is called once when a run is over, however the run ends (R4).

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use crate::support::ends::{OUTCOMES, run_to};
use crate::support::{Any, Recorder, TestResult, below, endless, silence_planned_panics};
use emitree_emitter::Emitter;
use emitree_runtime::{AbortHandle, Error, Result, RunContext, Runnable, Stage, Status};
use futures_util::FutureExt;

/// Returns a middleware that records how runs end.
fn notes(recorder: &Recorder, label: &'static str) -> impl Fn(&RunContext) -> Result<()> + Send + Sync + 'static {
    let recorder = recorder.clone();
    move |ctx| {
        let recorder = recorder.clone();
        ctx.on_end(move |_, status| recorder.note(format!("{label} {}", status.as_str())));
        Ok(())
    }
}

#[tokio::test]
async fn on_end_is_called_once_however_the_run_ends_with_and_without_listeners() {
    silence_planned_panics();
    for has_listeners in [false, true] {
        let (tree, recorder) = (Emitter::new(), Recorder::new());
        if has_listeners {
            tree.observe(Stage::Finish, |_: &Any, _| ()).expect("a valid matcher");
        }
        for (outcome, name) in OUTCOMES {
            run_to(outcome, &tree, notes(&recorder, "run")).await;
            recorder.expect([&*format!("run {name}")]);
        }

        let handle = AbortHandle::new();
        handle.abort("enough");
        let waits = endless(&tree, "waits", &Recorder::new());
        waits.run(()).abort_on(handle.signal()).middleware(notes(&recorder, "before")).await.ok();
        recorder.expect(["before aborted"]);
    }
}

#[tokio::test]
async fn on_end_is_called_even_if_a_later_middleware_fails_to_bind() {
    let recorder = Recorder::new();
    let run = below(&Emitter::new(), "run", |(): (), _: RunContext| async { Ok(()) });
    let fails = |_: &RunContext| Err(Error::new("not here"));
    run.run(()).middleware(notes(&recorder, "run")).middleware(fails).await.expect_err("it is not bound");
    recorder.expect(["run failed"]);
}

#[tokio::test]
async fn on_end_is_called_after_finish_in_order_of_registration_and_for_children_first() -> TestResult {
    let recorder = Recorder::new();
    let tree = Emitter::new();
    let inner = Arc::new(below(&tree, "inner", |(): (), _: RunContext| async { Ok(()) }));
    let bound = recorder.clone();
    let outer = below(&tree, "outer", move |(): (), _: RunContext| {
        let (inner, recorder) = (Arc::clone(&inner), bound.clone());
        async move { inner.run(()).middleware(notes(&recorder, "inner")).await }
    });
    let finish = recorder.clone();
    let run = outer.run(()).middleware(notes(&recorder, "first")).middleware(notes(&recorder, "second"));
    run.on_finish(move |_, _| finish.note("finish")).await?;
    recorder.expect(["inner success", "finish", "first success", "second success"]);
    Ok(())
}

#[tokio::test]
async fn a_panic_in_on_end_is_isolated_and_functions_registered_in_on_end_are_called() -> TestResult {
    silence_planned_panics();
    let recorder = Recorder::new();
    let run = below(&Emitter::new(), "run", |(): (), _: RunContext| async { Ok(7) });
    let more = recorder.clone();
    let panics = |ctx: &RunContext| {
        ctx.on_end(|_, _| panic!("planned"));
        Ok(())
    };
    let leaves_more = move |ctx: &RunContext| {
        let more = more.clone();
        ctx.on_end(move |ctx, _| {
            assert!(!ctx.has_ended());
            ctx.on_end(move |_, status| more.note(format!("{}", status == Status::Success)));
        });
        Ok(())
    };
    assert_eq!(run.run(()).middleware(panics).middleware(leaves_more).await?, 7);
    recorder.expect(["true"]);
    Ok(())
}

// R4: the run has not ended until all end hooks have been called.
#[tokio::test]
async fn has_ended_is_false_while_on_end_functions_are_called() -> TestResult {
    for has_listeners in [false, true] {
        let (tree, recorder) = (Emitter::new(), Recorder::new());
        if has_listeners {
            tree.observe(Stage::Finish, |_: &Any, _| ())?;
        }
        let notes = recorder.clone();
        let bound = move |ctx: &RunContext| {
            let notes = notes.clone();
            ctx.on_end(move |ctx, _| notes.note(format!("has ended: {}", ctx.has_ended())));
            Ok(())
        };
        below(&tree, "ends", |(): (), _: RunContext| async { Ok(()) }).run(()).middleware(bound).await?;
        recorder.expect(["has ended: false"]);
    }
    Ok(())
}

thread_local! {
    /// `true` while this thread calls `on_end`.
    static IS_ADDING: Cell<bool> = const { Cell::new(false) };
}

/// An end hook that another thread adds while the run ends. If the hook is dropped without a call, and not by the call of
/// `on_end` that received it, it is counted in `lost`.
struct LateHook {
    was_called: bool,
    lost: Arc<AtomicUsize>,
}

impl LateHook {
    fn call(mut self) {
        self.was_called = true;
    }
}

impl Drop for LateHook {
    fn drop(&mut self) {
        if !self.was_called && !IS_ADDING.get() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// R4: the function is either called as the run ends, or, if it comes too late, dropped by `on_end` on the calling thread.
#[test]
fn a_function_that_another_thread_registers_as_the_run_ends_is_called_or_dropped_by_that_thread() {
    let (lost, run) =
        (Arc::new(AtomicUsize::new(0)), below(&Emitter::new(), "run", |(): (), _: RunContext| async { Ok(()) }));
    let (to_thread, contexts) = mpsc::channel::<RunContext>();
    let count = Arc::clone(&lost);
    let adds = thread::spawn(move || {
        for ctx in contexts {
            while !ctx.has_ended() {
                let hook = LateHook { was_called: false, lost: Arc::clone(&count) };
                IS_ADDING.set(true);
                ctx.on_end(move |_, _| hook.call());
                IS_ADDING.set(false);
            }
        }
    });
    for _ in 0..2_000 {
        let to_thread = to_thread.clone();
        let sends = move |ctx: &RunContext| {
            let to_thread = to_thread.clone();
            ctx.on_end(move |ctx, _| to_thread.send(ctx.clone()).expect("the thread is alive"));
            Ok(())
        };
        run.run(()).middleware(sends).now_or_never().expect("it waits for nothing").expect("it succeeds");
    }
    drop(to_thread);
    adds.join().expect("no panic");
    assert_eq!(lost.load(Ordering::Relaxed), 0);
}
