//! R7: any thread may abort a run and state a reason. The first reason wins. An abort stops the work at its next await,
//! and work that has not begun never begins. The run ends as aborted, even if its work returns another result.

use std::sync::Arc;
use std::thread;

use crate::support::{Any, Gate, Recorder, Slot, TestResult, below, endless, poll_once};
use emitree_emitter::Emitter;
use emitree_runtime::{AbortHandle, Error, ErrorKind, Result, RunContext, Runnable, Stage};
use tokio::task::yield_now;

#[track_caller]
fn expect_aborted<T: std::fmt::Debug>(result: Result<T>, reason: &str) {
    let error = result.expect_err("it was aborted");
    assert_eq!((error.kind(), error.to_string().as_str()), (&ErrorKind::Aborted, reason));
}

const NEVER_WORKED: [&str; 3] = ["run.run.start", "run.run.error", "run.run.finish aborted"];
const WORKED: [&str; 5] = ["run.run.start", "works", "dropped", "run.run.error", "run.run.finish aborted"];

fn recorded() -> (Emitter, Recorder) {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.ends(&tree);
    (tree, recorder)
}

// R7
#[tokio::test]
async fn a_run_whose_signal_was_already_aborted_emits_start_error_and_finish_without_its_work() {
    let (tree, recorder) = recorded();
    let handle = AbortHandle::new();
    assert!(handle.abort("too late"));
    expect_aborted(endless(&tree, "run", &recorder).run(()).abort_on(&handle).await, "too late");
    recorder.expect(NEVER_WORKED);
}

// R7: the work does not begin, with or without listeners.
#[tokio::test]
async fn without_listeners_the_work_of_an_aborted_run_never_begins() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let handle = AbortHandle::new();
    handle.abort("too late");
    expect_aborted(endless(&tree, "run", &recorder).run(()).abort_on(&handle).await, "too late");
    recorder.expect([]);
}

// R7: the abort is checked after `start`.
#[tokio::test]
async fn an_abort_by_a_listener_of_start_keeps_the_work_from_beginning() {
    let (tree, recorder) = recorded();
    let run = endless(&tree, "run", &recorder);
    let run = run.run(()).on_start(|_, _| {
        let current = RunContext::current().expect("a listener is inside of the run");
        assert!(current.abort("not today"));
    });
    expect_aborted(run.await, "not today");
    recorder.expect(NEVER_WORKED);
}

// R7
#[tokio::test]
async fn an_answer_set_at_the_start_does_not_save_an_aborted_run() {
    let (tree, recorder) = recorded();
    let handle = AbortHandle::new();
    let aborts = handle.clone();
    let run = endless(&tree, "run", &recorder);
    let run = run.run(()).abort_on(&handle).on_start(move |start, _| {
        start.output = Some(());
        aborts.abort("not today");
    });
    expect_aborted(run.await, "not today");
    recorder.expect(NEVER_WORKED);
}

// R7
#[tokio::test]
async fn an_abort_while_a_run_is_bound_keeps_the_work_from_beginning() {
    let (tree, recorder) = recorded();
    let run = endless(&tree, "run", &recorder);
    let run = run.run(()).middleware(|ctx: &RunContext| {
        ctx.abort("not today");
        Ok(())
    });
    expect_aborted(run.await, "not today");
    recorder.expect(NEVER_WORKED);
}

// R7
#[tokio::test]
async fn an_abort_while_the_work_waits_wakes_its_task_and_drops_the_work() -> TestResult {
    let (tree, recorder) = recorded();
    let handle = AbortHandle::new();
    let task = tokio::spawn(Arc::new(endless(&tree, "run", &recorder)).run_shared(()).abort_on(&handle));
    yield_now().await;
    assert!(handle.abort("enough"));
    expect_aborted(task.await?, "enough");
    recorder.expect(WORKED);
    Ok(())
}

// R7
#[test]
fn a_run_can_be_aborted_from_another_thread() -> TestResult {
    let (tree, recorder) = recorded();
    let run = endless(&tree, "run", &recorder);
    let handle = AbortHandle::new();
    let (started, has_started) = std::sync::mpsc::channel();
    let aborts = handle.clone();
    let other = thread::spawn(move || {
        has_started.recv().expect("it starts");
        aborts.abort("from elsewhere")
    });
    let run = run.run(()).abort_on(&handle).on_start(move |_, _| started.send(()).expect("the other thread waits"));
    let result = block_on(run);
    assert!(other.join().expect("it only aborts"));
    expect_aborted(result, "from elsewhere");
    let recorded = recorder.take();
    assert!(recorded == WORKED || recorded == NEVER_WORKED, "{recorded:#?}");
    Ok(())
}

/// Runs a future to completion in a runtime without I/O and time drivers.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

// R7
#[tokio::test]
async fn the_first_reason_for_an_abort_wins_and_a_handle_aborts_only_once() {
    let (tree, recorder) = recorded();
    let (first, second) = (AbortHandle::new(), AbortHandle::new());
    let mut run = Box::pin(endless(&tree, "run", &recorder).run_shared_now().abort_on(&first).abort_on(&second));
    assert!(poll_once(&mut run).is_pending());
    assert!(first.abort("the first") && !first.abort("the first again") && second.abort("the second"));
    expect_aborted(run.await, "the first");
    recorder.expect(WORKED);
}

/// Creates runs that own their runnable.
trait RunShared: Runnable<Input = ()> + Sized + 'static {
    fn run_shared_now(self) -> emitree_runtime::Run<'static, Self> {
        Arc::new(self).run_shared(())
    }
}

impl<R: Runnable<Input = ()> + 'static> RunShared for R {}

// R7
#[tokio::test]
async fn when_threads_abort_concurrently_one_abort_returns_true_and_its_reason_wins() {
    for _ in 0..64 {
        let (tree, recorder) = recorded();
        let handle = AbortHandle::new();
        let mut run = Box::pin(endless(&tree, "run", &recorder).run_shared_now().abort_on(&handle));
        assert!(poll_once(&mut run).is_pending());
        let aborting = |n: usize| {
            let handle = handle.clone();
            thread::spawn(move || handle.abort(format!("thread {n}")))
        };
        let told: Vec<_> =
            [0, 1, 2].map(aborting).into_iter().map(|thread| thread.join().expect("it aborts")).collect();
        let winner = told.iter().position(|told| *told).expect("one of them did it");
        assert_eq!(told.iter().filter(|told| **told).count(), 1);
        expect_aborted(run.await, &format!("thread {winner}"));
    }
}

// R7
#[tokio::test]
async fn a_run_whose_work_sees_the_abort_and_returns_ok_still_ends_as_aborted() {
    let (tree, recorder) = recorded();
    let notes = recorder.clone();
    let run = below(&tree, "run", move |(), ctx: RunContext| {
        let notes = notes.clone();
        async move {
            // The work sees the abort in the same poll in which it aborts its run.
            assert!(ctx.abort("enough") && ctx.is_aborted());
            notes.note(format!("noticed: {}", ctx.abort_signal().aborted().await));
            Ok("all is well".to_owned())
        }
    });
    expect_aborted(run.run(()).await, "enough");
    recorder.expect(["run.run.start", "noticed: enough", "run.run.error", "run.run.finish aborted"]);
}

// R7
#[tokio::test]
async fn a_run_whose_work_fails_or_panics_after_an_abort_still_ends_as_aborted() {
    crate::support::silence_planned_panics();
    for panics in [false, true] {
        let (tree, recorder) = recorded();
        let run = below(&tree, "run", move |(), ctx: RunContext| async move {
            ctx.abort("enough");
            assert!(!panics, "a planned panic");
            Err::<(), _>(Error::new("broken by the abort"))
        });
        expect_aborted(run.run(()).await, "enough");
        recorder.expect(NEVER_WORKED);
    }
}

// R7
#[tokio::test]
async fn work_that_ignores_an_abort_is_dropped_at_its_next_await() {
    let (tree, recorder) = recorded();
    let notes = recorder.clone();
    let run = below(&tree, "run", move |(), ctx: RunContext| {
        let notes = notes.clone();
        async move {
            let _noted = crate::support::Noted(notes.clone(), "dropped");
            ctx.abort("enough");
            notes.note("goes on");
            yield_now().await;
            notes.note("never");
            Ok(())
        }
    });
    expect_aborted(run.run(()).await, "enough");
    recorder.expect(["run.run.start", "goes on", "dropped", "run.run.error", "run.run.finish aborted"]);
}

// R7: once the work is over, an abort has no effect.
#[tokio::test]
async fn an_abort_after_the_work_is_done_returns_false_and_changes_nothing() -> TestResult {
    for stage in [Stage::Success, Stage::Finish] {
        let (tree, recorder) = recorded();
        let kept = Slot::new();
        let keeps = kept.clone();
        let run = below(&tree, "run", |(), _: RunContext| async { Ok(7) });
        let run = run.run(()).on(stage, move |_: &mut Any, _| {
            let ctx = RunContext::current().expect("a listener is inside of the run");
            assert!(!ctx.abort("too late") && !ctx.is_aborted());
            keeps.put(ctx);
        });
        assert_eq!(run.await?, 7);
        let ctx = kept.take();
        assert!(!ctx.abort_handle().abort("too late") && ctx.abort_signal().reason().is_none());
        recorder.expect(["run.run.start", "run.run.success", "run.run.finish success"]);
    }
    Ok(())
}

// R7, R10: after an abort, listeners of `error` and the caller receive the same error.
#[tokio::test]
async fn the_error_of_an_abort_is_control_flow_and_explains_the_reason() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let notes = recorder.clone();
    let run = endless(&tree, "run", &Recorder::new());
    let run = run.run(()).middleware(|ctx: &RunContext| {
        ctx.abort("enough");
        Ok(())
    });
    let error = run.on_error(move |failure, _| notes.note(failure.error().explain())).await.expect_err("it is aborted");
    recorder.expect(["aborted: enough"]);
    assert!(error.kind().is_control_flow() && !error.is_fatal() && !error.is_retryable());
}

// R7
#[tokio::test]
async fn an_abort_while_a_start_listener_is_awaited_takes_effect_after_the_listener() {
    let (tree, recorder) = recorded();
    let (gate, handle) = (Gate::new(), AbortHandle::new());
    let passes = gate.clone();
    let run = endless(&tree, "run", &recorder).run_shared_now().abort_on(&handle);
    let mut run = Box::pin(run.on_async(Stage::Start, move |_: &mut Any, _| {
        let passes = passes.clone();
        Box::pin(async move {
            passes.pass().await;
            Ok(())
        })
    }));
    assert!(poll_once(&mut run).is_pending());
    handle.abort("not today");
    assert!(poll_once(&mut run).is_pending());
    recorder.expect([]);
    gate.open();
    expect_aborted(run.await, "not today");
    recorder.expect(NEVER_WORKED);
}

// R7: an abort after the run has failed to bind has no effect.
#[tokio::test]
async fn an_abort_after_a_failed_bind_returns_false_and_changes_nothing() {
    let (tree, kept) = (Emitter::new(), Slot::new());
    let keeps = kept.clone();
    let run = endless(&tree, "run", &Recorder::new());
    let run = run.run(()).middleware(move |ctx: &RunContext| {
        keeps.put(ctx.clone());
        Err(Error::new("cannot be bound"))
    });
    assert_eq!(run.await.expect_err("it cannot be bound").to_string(), "cannot be bound");
    assert!(!kept.take().abort("too late"));
}

// R7: the first reason wins, even if the run then fails to bind.
#[tokio::test]
async fn a_run_aborted_during_bind_ends_as_aborted_even_if_bind_then_fails() {
    let run = endless(&Emitter::new(), "run", &Recorder::new());
    let run = run.run(()).middleware(|ctx: &RunContext| {
        ctx.abort("not today");
        Err(Error::new("cannot be bound"))
    });
    expect_aborted(run.await, "not today");
}

// R7: a run whose work ignores the abort still ends as aborted, also without listeners.
#[tokio::test]
async fn without_listeners_a_run_whose_work_returns_ok_after_an_abort_ends_as_aborted() {
    let run = below(&Emitter::new(), "run", |(), ctx: RunContext| async move {
        ctx.abort("enough");
        Ok(())
    });
    expect_aborted(run.run(()).await, "enough");
}
