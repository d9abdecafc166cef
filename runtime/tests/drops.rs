//! If a value of a run panics when it is dropped, the panic is contained like any other panic: the run still ends (R4,
//! R8).

mod support;

use std::future::{Future, pending};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use emitree_emitter::Emitter;
use emitree_runtime::{AbortHandle, Error, ErrorKind, Result, RunContext, Runnable, Stage, map_input};
use serde::{Deserialize, Serialize};
use support::{Any, Recorder, below, silence_planned_panics};

/// A value that panics when it is dropped.
struct Bad;

impl Drop for Bad {
    fn drop(&mut self) {
        panic!("a planned panic");
    }
}

/// A future that never completes, and panics when it is dropped: used as work or as a listener.
async fn endless<E>() -> Result<(), E> {
    let _bad = Bad;
    pending().await
}

fn tree() -> (Emitter, Recorder) {
    silence_planned_panics();
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    (tree, recorder)
}

fn poll<F: Future + Unpin>(mut run: F) -> Poll<F::Output> {
    pin!(&mut run).poll(&mut Context::from_waker(Waker::noop()))
}

const ENDED: [&str; 3] = ["bad.run.start", "bad.run.error", "bad.run.finish"];

#[test]
fn a_run_whose_work_panics_while_the_run_is_dropped_ends() {
    let (tree, recorder) = tree();
    let bad = below(&tree, "bad", |(): (), _: RunContext| endless());
    let mut run = bad.run(());
    assert!(poll(&mut run).is_pending());
    drop(run);
    recorder.expect(ENDED);
}

#[test]
fn a_run_whose_work_panics_while_it_is_aborted_ends_as_aborted() {
    let (tree, recorder) = tree();
    let (bad, handle) = (below(&tree, "bad", |(): (), _: RunContext| endless()), AbortHandle::new());
    let mut run = bad.run(()).abort_on(&handle);
    assert!(poll(&mut run).is_pending());
    handle.abort("enough");
    let Poll::Ready(Err(error)) = poll(&mut run) else { panic!("it goes on") };
    assert_eq!(error.kind(), &ErrorKind::Aborted);
    recorder.expect(ENDED);
}

#[test]
fn a_run_ends_even_if_a_pending_listener_panics_when_the_run_is_dropped() {
    let (tree, recorder) = tree();
    let good = below(&tree, "good", |(): (), _: RunContext| async { Result::Ok(()) });
    let mut run = good.run(()).observe_async(Stage::Success, |_: &Any, _| Box::pin(endless()));
    assert!(poll(&mut run).is_pending());
    // There is no runtime, so async listeners are skipped.
    drop(run);
    recorder.expect(["good.run.start", "good.run.success", "good.run.finish"]);
}

/// A value that panics when it is dropped, unless its thread is already panicking.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Touchy;

impl Drop for Touchy {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a planned panic");
        }
    }
}

impl std::fmt::Display for Touchy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a planned failure")
    }
}

impl std::error::Error for Touchy {}

/// Polls a run once, and checks that it ends with an error of this kind.
#[track_caller]
fn expect_end<O: std::fmt::Debug>(run: impl Future<Output = Result<O>> + Unpin, kind: &ErrorKind) {
    let Poll::Ready(Err(error)) = poll(run) else { panic!("it does not fail") };
    assert_eq!(error.kind(), kind);
}

// R4, R7: the output of the work is dropped unread.
#[test]
fn a_run_whose_output_panics_when_dropped_after_an_abort_ends_as_aborted() {
    let (tree, recorder) = tree();
    let bad = below(&tree, "bad", |(): (), ctx: RunContext| async move {
        ctx.abort("enough");
        Ok(Touchy)
    });
    expect_end(bad.run(()), &ErrorKind::Aborted);
    recorder.expect(ENDED);
}

// R4, R7
#[test]
fn a_run_whose_error_panics_when_dropped_after_an_abort_ends_as_aborted() {
    let (tree, recorder) = tree();
    let bad = below(&tree, "bad", |(): (), ctx: RunContext| async move {
        ctx.abort("enough");
        Result::<()>::Err(Touchy.into())
    });
    expect_end(bad.run(()), &ErrorKind::Aborted);
    recorder.expect(ENDED);
}

// R4, R10
#[test]
fn a_run_whose_output_panics_when_dropped_after_a_failed_success_listener_fails() {
    let (tree, recorder) = tree();
    let bad = below(&tree, "bad", |(): (), _: RunContext| async { Ok(Touchy) });
    expect_end(bad.run(()).on_success(|_, _| Err("a planned failure".into())), &ErrorKind::Failed);
    recorder.expect(["bad.run.start", "bad.run.success", "bad.run.finish"]);
}

// R4, R5
#[test]
fn a_run_whose_answer_panics_when_dropped_after_a_failed_start_listener_fails() {
    let (tree, recorder) = tree();
    let bad = below(&tree, "bad", |(): (), _: RunContext| pending::<Result<Touchy>>());
    let run = bad.run(()).on_start(|start, _| {
        start.output = Some(Touchy);
        Err("a planned failure".into())
    });
    expect_end(run, &ErrorKind::Failed);
    recorder.expect(ENDED);
}

// R4, R5, R7
#[test]
fn a_run_whose_answer_panics_when_dropped_after_an_abort_ends_as_aborted() {
    let (tree, recorder) = tree();
    let (bad, handle) = (below(&tree, "bad", |(): (), _: RunContext| pending::<Result<Touchy>>()), AbortHandle::new());
    let aborts = handle.clone();
    let run = bad.run(()).abort_on(&handle).on_start(move |start, _| {
        start.output = Some(Touchy);
        aborts.abort("enough");
    });
    expect_end(run, &ErrorKind::Aborted);
    recorder.expect(ENDED);
}

/// A value that panics when it is cloned.
#[derive(Debug, Deserialize, Serialize)]
struct Single;

impl Clone for Single {
    fn clone(&self) -> Self {
        panic!("a planned panic");
    }
}

/// Returns a middleware that records how a run has ended.
fn notes_end(recorder: &Recorder) -> impl Fn(&RunContext) -> Result<()> + Send + Sync + 'static {
    let recorder = recorder.clone();
    move |ctx: &RunContext| {
        let recorder = recorder.clone();
        ctx.on_end(move |_, status| recorder.note(status.as_str()));
        Ok(())
    }
}

// R1, R4: the run has not started.
#[test]
fn a_run_whose_input_panics_when_cloned_ends_as_panicked() {
    let (tree, recorder) = tree();
    let bad = below(&tree, "bad", |_: Single, _: RunContext| async { Result::Ok(()) });
    let run =
        bad.run(Single).middleware(notes_end(&recorder)).middleware(map_input(|_: &mut Single, _: &RunContext| Ok(())));
    expect_end(run, &ErrorKind::Panicked);
    recorder.expect(["panicked"]);
}

// R1, R4: the run has not started.
#[test]
fn a_run_whose_input_panics_when_dropped_after_a_failed_bind_ends_as_failed() {
    let (tree, recorder) = tree();
    let bad = below(&tree, "bad", |_: Touchy, _: RunContext| async { Result::Ok(()) });
    let fails = |_: &RunContext| Err(Error::new("a planned failure"));
    expect_end(bad.run(Touchy).middleware(notes_end(&recorder)).middleware(fails), &ErrorKind::Failed);
    recorder.expect(["failed"]);
}

/// An error that panics when it is displayed.
#[derive(Debug)]
struct Mute;

impl std::fmt::Display for Mute {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("a planned panic");
    }
}

impl std::error::Error for Mute {}

// R10: logging a failure calls its `Display`, which panics here.
#[test]
fn a_run_emits_finish_even_if_logging_a_listeners_failure_panics() {
    let (tree, recorder) = tree();
    let good =
        below(&tree, "good", |(): (), _: RunContext| async { Result::<()>::Err(Error::new("a planned failure")) });
    let run = good.run(()).on_error(|_, _| Err(Mute.into()));
    let subscriber = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
    tracing::subscriber::with_default(subscriber, || expect_end(run, &ErrorKind::Failed));
    recorder.expect(["good.run.start", "good.run.error", "good.run.finish"]);
}
