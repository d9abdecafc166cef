//! Helpers for tests of the ends of runs.
#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::fmt::Debug;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::{Emitter, Options, Registration};
use emitree_runtime::{Error, ErrorKind, Interrupt, Result, Run, RunContext, Runnable, Stage, Status};
use tokio::task::yield_now;

use super::{Any, Gate, Recorder, below, endless, poll_once};

/// Returns a tree, and a recorder of the events of its runs.
pub(crate) fn recorded() -> (Emitter, Recorder) {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.ends(&tree);
    (tree, recorder)
}

/// Returns a listener that is called at a stage, and waits at a gate.
pub(crate) fn waits_at(gate: &Gate, stage: Stage) -> Registration {
    let gate = gate.clone();
    Options::new().on_async(stage, move |_: &mut Any, _| {
        let gate = gate.clone();
        Box::pin(async move {
            gate.pass().await;
            Ok(())
        })
    })
}

/// Returns a listener that is called at a stage, waits at a gate, and records when it begins and stops waiting.
pub(crate) fn notes_waiting_at(gate: &Gate, recorder: &Recorder, stage: Stage) -> Registration {
    let (gate, recorder) = (gate.clone(), recorder.clone());
    Options::new().on_async(stage, move |_: &mut Any, _| {
        let (gate, recorder) = (gate.clone(), recorder.clone());
        Box::pin(async move {
            recorder.note("waits");
            gate.pass().await;
            recorder.note("goes on");
            Ok(())
        })
    })
}

/// Yields often enough for the tasks of a test to become idle.
pub(crate) async fn settle() {
    for _ in 0..16 {
        yield_now().await;
    }
}

/// Returns a run that waits forever and owns its runnable.
pub(crate) fn endless_run(
    tree: &Emitter,
    name: &'static str,
) -> Run<'static, impl Runnable<Input = (), Output = ()> + use<>> {
    Arc::new(endless(tree, name, &Recorder::new())).run_shared(())
}

/// Polls a run once, checks that the run waits, and returns the run.
pub(crate) fn begun<R: Runnable<Input = ()> + 'static>(mut run: Run<'static, R>) -> Run<'static, R> {
    assert!(poll_once(&mut run).is_pending());
    run
}

#[track_caller]
pub(crate) fn expect_aborted<T: Debug>(result: Result<T>, reason: &str) {
    let error = result.expect_err("it was aborted");
    assert_eq!((error.kind(), error.to_string().as_str()), (&ErrorKind::Aborted, reason));
}

/// The nine outcomes of runs (R6), with their names.
pub(crate) const OUTCOMES: [(Status, &str); 9] = [
    (Status::Success, "success"),
    (Status::Failed, "failed"),
    (Status::Denied, "denied"),
    (Status::Halted, "halted"),
    (Status::Aborted, "aborted"),
    (Status::TimedOut, "timed_out"),
    (Status::Interrupted, "interrupted"),
    (Status::Panicked, "panicked"),
    (Status::Dropped, "dropped"),
];

/// Starts a run with a middleware, and makes the run end with an outcome.
pub(crate) async fn run_to<F>(outcome: Status, tree: &Emitter, middleware: F)
where
    F: Fn(&RunContext) -> Result<()> + Send + Sync + 'static,
{
    end_as(outcome, work_to(outcome, tree).run_shared(()).middleware(middleware)).await;
}

/// Returns a runnable whose runs end with an outcome if they are passed to [`end_as`].
pub(crate) fn work_to(outcome: Status, tree: &Emitter) -> Arc<impl Runnable<Input = (), Output = ()> + use<>> {
    Arc::new(below(tree, "run", move |(), ctx: RunContext| async move {
        match outcome {
            Status::Success => Ok(()),
            Status::Failed => Err(Error::new("broken")),
            Status::Denied => Err(Error::denied("desk", "closed")),
            Status::Halted => Err(Error::halted("budget", "spent")),
            Status::Interrupted => Err(Error::interrupted(Interrupt::new("approval", "may I?"))),
            Status::Panicked => panic!("a planned panic"),
            Status::Aborted => {
                ctx.abort("enough");
                pending().await
            }
            Status::TimedOut | Status::Dropped => pending().await,
            _ => unreachable!("it is not one of the nine"),
        }
    }))
}

/// Runs the work of [`work_to`].
pub(crate) async fn end_as<R: Runnable<Input = (), Output = ()> + 'static>(outcome: Status, run: Run<'static, R>) {
    match outcome {
        Status::TimedOut => drop(run.timeout(Duration::ZERO).await),
        Status::Dropped => drop(begun(run)),
        _ => drop(run.await),
    }
}
