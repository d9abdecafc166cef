//! R7: an abort from another thread sets its reason on every run below before any task can drop one of these runs,
//! whether the abort wakes the task or the task notices the abort by itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::support::{Any, TestResult, below};
use emitree_emitter::{BoxError, Emitter};
use emitree_runtime::{AbortHandle, AbortSignal, LifecycleRef, Result, RunContext, Runnable};
use futures_util::future::join_all;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const ROUNDS: usize = 40;
const CHILDREN: usize = 300;

type Tally = Arc<Mutex<BTreeMap<String, usize>>>;

/// Counts failed runs by path and reason.
fn tally(tree: &Emitter) -> std::result::Result<Tally, BoxError> {
    let tally = Tally::default();
    let counting = Arc::clone(&tally);
    tree.observe("**.run.error", move |event: &Any, meta| {
        if let Some(LifecycleRef::Error(failure)) = LifecycleRef::of(event, meta) {
            let end = format!("{} {}", meta.path(), failure.error().explain());
            *counting.lock().expect("nobody panics here").entry(end).or_default() += 1;
        }
    })?;
    Ok(tally)
}

/// Runs `outer`, which awaits `inner`, which awaits many children. Each child reports on `waits`, and then waits
/// forever.
async fn wide(tree: Emitter, signal: AbortSignal, waits: mpsc::UnboundedSender<()>) -> Result<()> {
    let child = Arc::new(below(&tree, "child", move |(), _: RunContext| {
        let told = waits.send(());
        async move {
            told?;
            std::future::pending::<Result<()>>().await
        }
    }));
    let inner = Arc::new(below(&tree, "inner", move |(), _: RunContext| {
        let child = Arc::clone(&child);
        async move {
            join_all((0..CHILDREN).map(|_| child.run(()))).await;
            Ok(())
        }
    }));
    let outer = below(&tree, "outer", move |(), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(()).await }
    });
    outer.run(()).abort_on(signal).await
}

/// Repeatedly aborts the runs of [`wide`] from this thread while another thread polls them.
async fn expect_all_end_as<S>(reason: &str, source: impl Fn() -> S, abort: impl Fn(S)) -> TestResult
where
    AbortSignal: for<'s> From<&'s S>,
{
    let tree = Emitter::new();
    let tally = tally(&tree)?;
    for _ in 0..ROUNDS {
        let source = source();
        let (waits, mut waiting) = mpsc::unbounded_channel();
        let run = tokio::spawn(wide(tree.clone(), AbortSignal::from(&source), waits));
        for _ in 0..CHILDREN {
            waiting.recv().await;
        }
        abort(source);
        assert!(run.await?.is_err());
    }
    let expected = [("child", CHILDREN), ("inner", 1), ("outer", 1)];
    let expected: BTreeMap<_, _> =
        expected.map(|(name, runs)| (format!("{name}.run.error {reason}"), runs * ROUNDS)).into_iter().collect();
    assert_eq!(*tally.lock().expect("nobody panics here"), expected);
    Ok(())
}

// R7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_from_another_thread_reaches_every_run_below_with_its_reason() -> TestResult {
    let abort = |handle: AbortHandle| _ = handle.abort("enough");
    expect_all_end_as("aborted: enough", AbortHandle::new, abort).await
}

// R7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_canceled_token_aborts_every_run_below_with_its_reason() -> TestResult {
    let cancel = |token: CancellationToken| token.cancel();
    expect_all_end_as("aborted: the cancellation token was canceled", CancellationToken::new, cancel).await
}

/// Starts a run that spawns many children in tasks. Each child reports on `waits`, and then waits forever.
async fn in_tasks(tree: Emitter, signal: AbortSignal, waits: mpsc::UnboundedSender<()>) -> Result<()> {
    let child = Arc::new(below(&tree, "child", move |(), _: RunContext| {
        let told = waits.send(());
        async move {
            told?;
            std::future::pending::<Result<()>>().await
        }
    }));
    let outer = below(&tree, "outer", move |(), _: RunContext| {
        (0..CHILDREN).for_each(|_| drop(tokio::spawn(child.run_shared(()))));
        std::future::pending::<Result<()>>()
    });
    outer.run(()).abort_on(signal).await
}

// R7: the task of the outer run may see the abort and end the runs below while another thread begins one more child.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_reaches_runs_that_begin_concurrently_with_its_reason() -> TestResult {
    let tree = Emitter::new();
    let tally = tally(&tree)?;
    for round in 0..4 * ROUNDS {
        let handle = AbortHandle::new();
        let (waits, mut waiting) = mpsc::unbounded_channel();
        let run = tokio::spawn(in_tasks(tree.clone(), AbortSignal::from(&handle), waits));
        for _ in 0..=round * 7 % CHILDREN {
            waiting.recv().await;
        }
        handle.abort("enough");
        assert!(run.await?.is_err());
    }
    let tally = tally.lock().expect("nobody panics here");
    let reasons: Vec<_> = tally.keys().map(String::as_str).collect();
    assert_eq!(reasons, ["child.run.error aborted: enough", "outer.run.error aborted: enough"], "{tally:?}");
    Ok(())
}
