//! R7: a cancellation token of tokio-util can abort a run, and can report an abort.

use crate::support::ends::{endless_run, expect_aborted, recorded};
use crate::support::{Slot, TestResult, below, endless, poll_once};
use emitree_emitter::Emitter;
use emitree_runtime::{AbortHandle, AbortSignal, Result, RunContext, Runnable};
use tokio::task::yield_now;
use tokio_util::sync::CancellationToken;

// R7
#[tokio::test]
async fn a_cancellation_token_aborts_a_run_before_its_work_and_while_the_work_waits() -> TestResult {
    let (tree, recorder) = recorded();
    let token = CancellationToken::new();
    let task = tokio::spawn(endless_run(&tree, "run").abort_on(token.child_token()));
    yield_now().await;
    recorder.expect(["run.run.start"]);
    token.cancel();
    expect_aborted(task.await?, "the cancellation token was canceled");
    recorder.expect(["run.run.error", "run.run.finish aborted"]);

    expect_aborted(
        endless(&tree, "run", &recorder).run(()).abort_on(&token).await,
        "the cancellation token was canceled",
    );
    recorder.expect(["run.run.start", "run.run.error", "run.run.finish aborted"]);
    Ok(())
}

// R7: canceling the token of a signal does not abort the run.
#[tokio::test]
async fn the_token_of_a_signal_is_canceled_by_an_abort_and_canceling_it_aborts_nothing() {
    let (tree, kept) = (Emitter::new(), Slot::new());
    let keeps = kept.clone();
    let run = below(&tree, "run", move |(), ctx: RunContext| {
        keeps.put(ctx);
        std::future::pending::<Result<()>>()
    });
    let mut run = run.run(());
    assert!(poll_once(&mut run).is_pending());
    let ctx: RunContext = kept.take();
    let (cancelled, before) = (ctx.abort_signal().to_token(), ctx.abort_signal().to_token());
    cancelled.cancel();
    assert!(poll_once(&mut run).is_pending() && !ctx.is_aborted() && !before.is_cancelled());
    ctx.abort("enough");
    before.cancelled().await;
    assert!(ctx.abort_signal().to_token().is_cancelled(), "a token made after the abort");
    expect_aborted(run.await, "enough");

    let source = CancellationToken::new();
    let token = AbortSignal::from(&source).to_token();
    token.cancel();
    assert!(!source.is_cancelled());
    source.cancel();
    assert!(AbortSignal::from(source).to_token().is_cancelled());
}

// R7
#[test]
fn the_token_of_a_signal_that_was_aborted_before_is_canceled() {
    let handle = AbortHandle::new();
    handle.abort("enough");
    assert!(handle.signal().to_token().is_cancelled());
}
