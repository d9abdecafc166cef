//! R7: an abort reaches every run below, however that run was started. It reaches neither runs above nor siblings. A
//! run can follow signals of handles and of other runs, and has its own signal.

use std::sync::Arc;

use crate::support::ends::{endless_run, expect_aborted, recorded};
use crate::support::{Gate, Recorder, Slot, TestResult, below, endless, poll_once};
use emitree_emitter::Emitter;
use emitree_runtime::{AbortHandle, AbortSignal, ErrorKind, Result, RunContext, Runnable};
use futures_util::future::join;
use tokio::task::yield_now;
use tokio_util::sync::CancellationToken;

// R7: the abort reaches awaited runs, spawned runs, and the runs below them.
#[tokio::test]
async fn an_abort_reaches_every_run_below_whether_awaited_or_spawned() -> TestResult {
    let (tree, recorder) = recorded();
    let child = tree.clone();
    let middle = Arc::new(below(&tree, "middle", move |(), _: RunContext| {
        let child = child.clone();
        async move { endless_run(&child, "inner").await }
    }));
    let (notes, emitter) = (recorder.clone(), tree.clone());
    let top = below(&tree, "top", move |(), ctx: RunContext| {
        let (notes, emitter, middle) = (notes.clone(), emitter.clone(), Arc::clone(&middle));
        async move {
            let bare = tokio::spawn(endless_run(&emitter, "bare"));
            let owned = ctx.spawn(endless_run(&emitter, "owned"));
            tokio::spawn(async move {
                expect_aborted(bare.await.expect("it does not panic"), "enough");
                notes.note("the bare one is told");
            });
            drop(owned);
            middle.run(()).await
        }
    });
    let handle = AbortHandle::new();
    let task = tokio::spawn(Arc::new(top).run_shared(()).abort_on(&handle));
    yield_now().await;
    yield_now().await;
    recorder.expect(["top.run.start", "middle.run.start", "inner.run.start", "bare.run.start", "owned.run.start"]);
    assert!(handle.abort("enough"));
    expect_aborted(task.await?, "enough");
    let recorded = recorder.take();
    for name in ["middle", "inner", "bare", "owned", "top"] {
        let own: Vec<_> = recorded.iter().filter(|line| line.starts_with(name)).collect();
        let expected = [format!("{name}.run.error"), format!("{name}.run.finish aborted")];
        assert_eq!(own, expected.iter().collect::<Vec<_>>(), "{recorded:#?}");
    }
    let at = |line: &str| recorded.iter().position(|recorded| recorded == line);
    assert!(at("inner.run.finish aborted") < at("middle.run.error"), "{recorded:#?}");
    let last = recorded.iter().rev().find(|line| line.ends_with("aborted"));
    assert_eq!(last.map(String::as_str), Some("top.run.finish aborted"), "{recorded:#?}");
    Ok(())
}

// R7
#[tokio::test]
async fn an_abort_reaches_neither_the_run_above_nor_siblings() -> TestResult {
    let (tree, recorder) = recorded();
    let emitter = tree.clone();
    let top = below(&tree, "top", move |(), ctx: RunContext| {
        let emitter = emitter.clone();
        async move {
            let handle = AbortHandle::new();
            let (aborted, sibling) = (
                endless_run(&emitter, "aborted").abort_on(&handle),
                below(&emitter, "sibling", |(), _| async {
                    yield_now().await;
                    Ok(7)
                }),
            );
            let aborting = async {
                let (aborted, sibling) = join(aborted, sibling.run(())).await;
                expect_aborted(aborted, "only you");
                sibling
            };
            let (output, ()) = join(aborting, async { assert!(handle.abort("only you")) }).await;
            assert!(!ctx.is_aborted());
            output
        }
    });
    assert_eq!(top.run(()).await?, 7);
    recorder.expect([
        "top.run.start",
        "aborted.run.start",
        "sibling.run.start",
        "aborted.run.error",
        "aborted.run.finish aborted",
        "sibling.run.success",
        "sibling.run.finish success",
        "top.run.success",
        "top.run.finish success",
    ]);
    Ok(())
}

// R7: the abort reaches every run below, including runs that begin later.
#[tokio::test]
async fn a_run_that_begins_in_an_aborted_run_is_aborted_before_its_work() {
    let (tree, recorder) = recorded();
    let (emitter, notes) = (tree.clone(), recorder.clone());
    let top = below(&tree, "top", move |(), ctx: RunContext| {
        let child = endless(&emitter, "child", &notes);
        async move {
            ctx.abort("enough");
            expect_aborted(child.run(()).await, "enough");
            Ok(())
        }
    });
    expect_aborted(top.run(()).await, "enough");
    recorder.expect([
        "top.run.start",
        "child.run.start",
        "child.run.error",
        "child.run.finish aborted",
        "top.run.error",
        "top.run.finish aborted",
    ]);
}

// R7
#[tokio::test]
async fn a_handle_aborts_all_runs_with_its_signal_and_runs_that_begin_later() {
    let tree = Emitter::new();
    let handle = AbortHandle::new();
    let mut runs: Vec<_> = (0..20).map(|_| endless_run(&tree, "run").abort_on(handle.signal())).collect();
    assert!(runs.iter_mut().all(|run| poll_once(run).is_pending()));
    drop(runs.split_off(15));
    assert!(handle.abort("all of you") && !handle.abort("again"));
    for run in runs {
        expect_aborted(run.await, "all of you");
    }
    expect_aborted(endless_run(&tree, "run").abort_on(handle.clone().signal()).await, "all of you");
}

// R7: of several signals, the first that reports an abort sets the reason, regardless of the order of registration.
#[tokio::test]
async fn a_run_with_several_signals_is_aborted_by_any_of_them() {
    for aborted in 0..4 {
        let handles: Vec<_> = (0..3).map(|_| AbortHandle::new()).collect();
        let token = CancellationToken::new();
        let run = handles.iter().fold(endless_run(&Emitter::new(), "run"), |run, handle| run.abort_on(handle));
        let mut run = run.abort_on(CancellationToken::new()).abort_on(&token);
        assert!(poll_once(&mut run).is_pending());
        match handles.get(aborted) {
            Some(handle) => {
                handle.abort("one of them");
                expect_aborted(run.await, "one of them");
            }
            None => {
                token.cancel();
                expect_aborted(run.await, "the cancellation token was canceled");
            }
        }
    }
}

// R7
#[tokio::test]
async fn awaiting_a_signal_returns_the_reason_for_the_abort() -> TestResult {
    let (handle, token) = (AbortHandle::new(), CancellationToken::new());
    let signals = [handle.signal(), handle.signal(), AbortSignal::from(&token)];
    assert!(signals.iter().all(|signal| !signal.is_aborted() && signal.reason().is_none()));
    let waiting = signals.clone().map(|signal| tokio::spawn(async move { signal.aborted().await.to_string() }));
    yield_now().await;
    handle.abort("enough");
    token.cancel();
    for (task, reason) in waiting.into_iter().zip(["enough", "enough", "the cancellation token was canceled"]) {
        assert_eq!(task.await?, reason);
    }
    for signal in signals {
        assert_eq!(Some(signal.aborted().await), signal.reason());
    }
    Ok(())
}

// R7: a run's own signal can abort another run.
#[tokio::test]
async fn a_run_that_follows_the_signal_of_another_run_is_aborted_with_that_run() {
    let (tree, kept) = (Emitter::new(), Slot::new());
    let keeps = kept.clone();
    let run = below(&tree, "run", move |(), ctx: RunContext| {
        keeps.put(ctx);
        std::future::pending::<Result<()>>()
    });
    let mut run = run.run(());
    assert!(poll_once(&mut run).is_pending());
    let ctx = kept.take();
    let mut other = endless_run(&tree, "other").abort_on(ctx.abort_signal());
    assert!(poll_once(&mut other).is_pending());
    ctx.abort("both of you");
    expect_aborted(other.await, "both of you");
    expect_aborted(run.await, "both of you");
}

// R7, R13: a run that follows the signal of another run is not that run's child, and does not end with that run.
#[tokio::test]
async fn the_end_of_a_run_does_not_affect_runs_that_follow_its_signal() -> TestResult {
    for has_listeners in [false, true] {
        let (tree, recorder) = (Emitter::new(), Recorder::new());
        if has_listeners {
            recorder.ends(&tree);
        }
        let (kept, gate) = (Slot::new(), Gate::new());
        let (keeps, passes) = (kept.clone(), gate.clone());
        let run = below(&tree, "run", move |(), ctx: RunContext| {
            keeps.put(ctx.abort_signal());
            let passes = passes.clone();
            async move {
                passes.pass().await;
                Ok(())
            }
        });
        let mut run = run.run(());
        assert!(poll_once(&mut run).is_pending());
        let other = below(&tree, "other", |(), _: RunContext| async {
            yield_now().await;
            Ok(7)
        });
        let mut other = other.run(()).abort_on(kept.take());
        assert!(poll_once(&mut other).is_pending());
        gate.open();
        run.await?;
        assert_eq!(other.await?, 7);
        let expected = [
            "run.run.start",
            "other.run.start",
            "run.run.success",
            "run.run.finish success",
            "other.run.success",
            "other.run.finish success",
        ];
        recorder.expect(if has_listeners { &expected[..] } else { &[] }.iter().copied());
    }
    Ok(())
}

// R7: a run that begins with the signal of a run that timed out is aborted, not timed out.
#[tokio::test(start_paused = true)]
async fn a_run_that_begins_with_the_signal_of_a_timed_out_run_is_aborted() {
    let (kept, tree) = (Slot::new(), Emitter::new());
    let keeps = kept.clone();
    let late = below(&tree, "late", move |(), ctx: RunContext| {
        keeps.put(ctx);
        std::future::pending::<Result<()>>()
    });
    late.run(()).timeout(std::time::Duration::from_secs(1)).await.expect_err("it is late");
    let signal = kept.take().abort_signal();
    let follows = below(&tree, "follows", |(), _: RunContext| std::future::pending::<Result<()>>());
    let error = follows.run(()).abort_on(signal).await.expect_err("it is aborted");
    assert_eq!((error.kind(), error.to_string().as_str()), (&ErrorKind::Aborted, "the run above timed out after 1s"));
}
