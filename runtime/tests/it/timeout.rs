//! R6, R7: work that takes too long times out. The shortest timeout applies, and a run below a run that timed out is
//! aborted for that reason.

use std::time::Duration;

use crate::support::{Any, Recorder, TestResult, below, endless};
use emitree_emitter::{Emitter, Options};
use emitree_runtime::{ErrorKind, Result, RunContext, Runnable, Stage};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

fn recorded() -> (Emitter, Recorder) {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.ends(&tree);
    (tree, recorder)
}

// R6, R7
#[tokio::test(start_paused = true)]
async fn work_that_takes_longer_than_its_timeout_times_out() {
    let (tree, recorder) = recorded();
    let began = Instant::now();
    let error = endless(&tree, "run", &recorder).run(()).timeout(SECOND).await.expect_err("it takes too long");
    assert_eq!((error.kind(), error.to_string().as_str()), (&ErrorKind::TimedOut, "timed out after 1s"));
    assert!(error.kind().is_control_flow() && !error.is_fatal() && !error.is_retryable());
    assert_eq!(began.elapsed().as_secs(), 1);
    recorder.expect(["run.run.start", "works", "dropped", "run.run.error", "run.run.finish timed_out"]);
}

// R7
#[tokio::test(start_paused = true)]
async fn a_timeout_does_not_affect_work_that_is_done_in_time_or_listeners_after_the_work() -> TestResult {
    let (tree, recorder) = recorded();
    let run = below(&tree, "run", |(), _: RunContext| async {
        sleep(SECOND / 2).await;
        Ok(7)
    });
    // The timeout does not apply after the work.
    let slowly = Options::new().on_async(Stage::Success, |_: &mut Any, _| {
        Box::pin(async {
            sleep(2 * SECOND).await;
            Ok(())
        })
    });
    assert_eq!(run.run(()).timeout(SECOND).register(slowly).await?, 7);
    recorder.expect(["run.run.start", "run.run.success", "run.run.finish success"]);
    Ok(())
}

// R7
#[tokio::test(start_paused = true)]
async fn the_shortest_of_several_timeouts_applies() {
    for [first, second] in [[1, 2], [2, 1]] {
        let run = endless(&Emitter::new(), "run", &Recorder::new());
        let run = run.run(()).timeout(first * SECOND).timeout(second * SECOND);
        assert_eq!(run.await.expect_err("it takes too long").to_string(), "timed out after 1s");
    }
}

// R7: the timeout includes the listeners of `start`, and is checked after them.
#[tokio::test(start_paused = true)]
async fn a_timeout_includes_the_listeners_of_start() {
    let (tree, recorder) = recorded();
    let run = endless(&tree, "run", &recorder);
    let run = run.run(()).timeout(SECOND).on_async(Stage::Start, |_: &mut Any, _| {
        Box::pin(async {
            sleep(2 * SECOND).await;
            Ok(())
        })
    });
    assert_eq!(run.await.expect_err("it takes too long").kind(), &ErrorKind::TimedOut);
    recorder.expect(["run.run.start", "run.run.error", "run.run.finish timed_out"]);
}

// R7
#[tokio::test(start_paused = true)]
async fn a_timeout_begins_at_the_first_poll() -> TestResult {
    let run = below(&Emitter::new(), "run", |(), _: RunContext| async { Ok(7) });
    let run = run.run(()).timeout(SECOND);
    sleep(2 * SECOND).await;
    assert_eq!(run.await?, 7);
    Ok(())
}

// R7: a zero timeout stops work that waits, and the maximum timeout never elapses.
#[tokio::test(start_paused = true)]
async fn a_timeout_can_be_zero_or_the_maximum_duration() -> TestResult {
    let (tree, recorder) = recorded();
    let run = endless(&tree, "run", &Recorder::new());
    assert_eq!(run.run(()).timeout(Duration::ZERO).await.expect_err("no time").kind(), &ErrorKind::TimedOut);
    recorder.expect(["run.run.start", "run.run.error", "run.run.finish timed_out"]);
    let run = below(&tree, "run", |(), _: RunContext| async {
        sleep(3600 * SECOND).await;
        Ok(7)
    });
    assert_eq!(run.run(()).timeout(Duration::MAX).await?, 7);
    recorder.expect(["run.run.start", "run.run.success", "run.run.finish success"]);
    Ok(())
}

// R6, R7
#[tokio::test(start_paused = true)]
async fn a_run_below_a_run_that_timed_out_is_aborted_with_the_timeout_as_its_reason() {
    let (tree, recorder) = recorded();
    let (emitter, notes) = (tree.clone(), recorder.clone());
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        let (child, notes) = (endless(&emitter, "child", &notes), notes.clone());
        async move { child.run(()).on_error(move |failure, _| notes.note(failure.error().explain())).await }
    });
    let error = parent.run(()).timeout(SECOND).await.expect_err("it takes too long");
    assert_eq!(error.kind(), &ErrorKind::TimedOut);
    recorder.expect([
        "parent.run.start",
        "child.run.start",
        "works",
        "dropped",
        "aborted: the run above timed out after 1s",
        "child.run.error",
        "child.run.finish aborted",
        "parent.run.error",
        "parent.run.finish timed_out",
    ]);
}

// R7
#[tokio::test(start_paused = true)]
async fn a_child_that_times_out_returns_an_error_and_does_not_end_its_parent() -> TestResult {
    let (tree, recorder) = recorded();
    let emitter = tree.clone();
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        let child = endless(&emitter, "child", &Recorder::new());
        async move { Ok(child.run(()).timeout(SECOND).await.is_err()) }
    });
    assert!(parent.run(()).await?);
    recorder.expect([
        "parent.run.start",
        "child.run.start",
        "child.run.error",
        "child.run.finish timed_out",
        "parent.run.success",
        "parent.run.finish success",
    ]);
    Ok(())
}

/// Checks the error of a run with a timeout where tokio's clock is not available.
fn without_a_clock(block_on: impl FnOnce(&mut dyn FnMut() -> Result<()>) -> Result<()>) {
    let (tree, recorder) = recorded();
    let run = endless(&tree, "run", &recorder);
    let mut run = run.run(()).timeout(SECOND);
    let mut once = || match crate::support::poll_once(&mut run) {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => unreachable!("it cannot begin"),
    };
    let error = block_on(&mut once).expect_err("there is no clock");
    assert_eq!(error.kind(), &ErrorKind::Failed, "{error:?}");
    assert!(error.to_string().starts_with("a timeout of 1s needs tokio's clock"), "{error:?}");
    recorder.expect([]);
}

// R7: the run has not started, so it emits no event.
#[test]
fn a_timeout_without_tokios_clock_is_an_error_that_names_the_clock() {
    without_a_clock(|once| once());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    without_a_clock(|once| runtime.block_on(async { once() }));
}
