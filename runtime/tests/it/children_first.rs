//! R13: a run ends after all runs that were started in it, including runs whose futures are held elsewhere. A run that
//! its parent has ended returns its result at its next poll.

use std::sync::Arc;

use crate::support::ends::{recorded, settle, waits_at};
use crate::support::{Any, Gate, Recorder, Slot, TestResult, below, endless, poll_once};
use emitree_emitter::{Emitter, Options, Registration};
use emitree_runtime::{Error, ErrorKind, Result, Run, RunContext, Runnable, Stage};
use tokio::task::yield_now;

#[track_caller]
fn expect_ended_from_above<T: std::fmt::Debug>(result: Result<T>) {
    let error = result.expect_err("it was ended from above");
    let expected = (&ErrorKind::Aborted, "the parent run has ended");
    assert_eq!((error.kind(), error.to_string().as_str()), expected);
}

/// Returns a runnable whose run polls a child once, moves the child into a slot, and succeeds or fails.
fn leaves<C: Runnable<Input = ()> + 'static>(
    tree: &Emitter,
    child: C,
    listening: Option<Registration>,
    held: &Slot<Run<'static, C>>,
) -> impl Runnable<Input = bool, Output = ()> + use<C> {
    let (child, held) = (Arc::new(child), held.clone());
    let listening = Slot::with(listening);
    below(tree, "parent", move |well: bool, _: RunContext| {
        let mut run = listening.take().into_iter().fold(child.run_shared(()), Run::register);
        let held = held.clone();
        async move {
            assert!(poll_once(&mut run).is_pending());
            held.put(run);
            if well { Ok(()) } else { Err(Error::new("broken")) }
        }
    })
}

// R13
#[tokio::test]
async fn a_run_whose_future_is_held_elsewhere_ends_before_its_parents_success_or_error() {
    for (well, end) in [(true, "success"), (false, "error")] {
        let (tree, recorder) = recorded();
        let held = Slot::new();
        let result = leaves(&tree, endless(&tree, "child", &recorder), None, &held).run(well).await;
        assert_eq!(result.is_ok(), well);
        let finish = if well { "parent.run.finish success" } else { "parent.run.finish failed" };
        let end = format!("parent.run.{end}");
        let child = ["child.run.start", "works", "child.run.error", "child.run.finish aborted"];
        recorder.expect(["parent.run.start"].into_iter().chain(child).chain([&*end, finish]));
        expect_ended_from_above(held.take().await);
        recorder.expect(["dropped"]);
    }
}

// R13: dropping the run instead of polling it emits no further events, but drops its work.
#[tokio::test]
async fn dropping_a_run_that_its_parent_has_ended_emits_no_further_events() -> TestResult {
    let (tree, recorder) = recorded();
    let held = Slot::new();
    leaves(&tree, endless(&tree, "child", &recorder), None, &held).run(true).await?;
    recorder.take();
    drop(held.take());
    settle().await;
    recorder.expect(["dropped"]);
    Ok(())
}

// R13
#[tokio::test]
async fn without_listeners_a_held_run_is_ended_with_its_parent() -> TestResult {
    let held = Slot::new();
    let tree = Emitter::new();
    leaves(&tree, endless(&tree, "child", &Recorder::new()), None, &held).run(true).await?;
    expect_ended_from_above(held.take().await);
    Ok(())
}

// R13
#[tokio::test]
async fn a_task_that_awaits_a_run_is_woken_when_the_parent_ends_the_run() -> TestResult {
    let (tree, recorder) = recorded();
    let (tasks, child) = (Slot::new(), Arc::new(endless(&tree, "child", &recorder)));
    let spawned = tasks.clone();
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        spawned.put(tokio::spawn(child.run_shared(())));
        async {
            yield_now().await;
            Ok(())
        }
    });
    parent.run(()).await?;
    expect_ended_from_above(tasks.take().await?);
    recorder.expect([
        "parent.run.start",
        "child.run.start",
        "works",
        "child.run.error",
        "child.run.finish aborted",
        "parent.run.success",
        "parent.run.finish success",
        "dropped",
    ]);
    Ok(())
}

// R4, R13: an emit that has begun is finished, and the parent waits for it.
#[tokio::test]
async fn a_parent_waits_for_the_listeners_of_a_held_run() -> TestResult {
    let after_start = ["child.run.start", "child.run.error", "child.run.finish aborted"];
    let after_error = ["child.run.error", "child.run.finish aborted"];
    let cases = [
        (Stage::Start, &[][..], &after_start[..]),
        (Stage::Error, &["child.run.start", "works"][..], &after_error[..]),
        (Stage::Finish, &["child.run.start", "works", "child.run.error"][..], &after_error[1..]),
    ];
    for (stage, before, after) in cases {
        let (tree, recorder) = recorded();
        let (gate, held) = (Gate::new(), Slot::new());
        let parent = leaves(&tree, endless(&tree, "child", &recorder), Some(waits_at(&gate, stage)), &held);
        let task = tokio::spawn(Arc::new(parent).run_shared(true));
        settle().await;
        recorder.expect(["parent.run.start"].into_iter().chain(before.iter().copied()));
        let mut child = held.take();
        assert!(poll_once(&mut child).is_pending(), "{stage:?}: its end is no longer its own");
        gate.open();
        task.await??;
        let parents = ["parent.run.success", "parent.run.finish success"];
        recorder.expect(after.iter().copied().chain(parents));
        expect_ended_from_above(child.await);
    }
    Ok(())
}

// R7, R13: the result of the finished work is kept.
#[tokio::test]
async fn a_held_run_whose_work_was_over_keeps_its_result() -> TestResult {
    for stage in [Stage::Success, Stage::Finish] {
        let (tree, recorder) = recorded();
        let (gate, held) = (Gate::new(), Slot::new());
        let child = below(&tree, "child", |(), _: RunContext| async { Ok(7) });
        let parent = leaves(&tree, child, Some(waits_at(&gate, stage)), &held);
        let task = tokio::spawn(Arc::new(parent).run_shared(true));
        settle().await;
        gate.open();
        task.await??;
        assert_eq!(held.take().await?, 7);
        recorder.expect([
            "parent.run.start",
            "child.run.start",
            "child.run.success",
            "child.run.finish success",
            "parent.run.success",
            "parent.run.finish success",
        ]);
    }
    Ok(())
}

// R13
#[tokio::test]
async fn grandchildren_end_before_children() -> TestResult {
    let (tree, recorder) = recorded();
    let (inner, outer) = (Slot::new(), Slot::new());
    let grandchild = Arc::new(endless(&tree, "grandchild", &Recorder::new()));
    let keeps = inner.clone();
    let child = below(&tree, "child", move |(), _: RunContext| {
        let mut run = grandchild.run_shared(());
        assert!(poll_once(&mut run).is_pending());
        keeps.put(run);
        std::future::pending::<Result<()>>()
    });
    leaves(&tree, child, None, &outer).run(true).await?;
    recorder.expect([
        "parent.run.start",
        "child.run.start",
        "grandchild.run.start",
        "grandchild.run.error",
        "grandchild.run.finish aborted",
        "child.run.error",
        "child.run.finish aborted",
        "parent.run.success",
        "parent.run.finish success",
    ]);
    expect_ended_from_above(outer.take().await);
    expect_ended_from_above(inner.take().await);
    Ok(())
}

// R8, R13: the supervisor that ends the parent then waits for the child.
#[tokio::test]
async fn a_parent_that_is_dropped_while_it_waits_for_a_child_ends_after_the_child() {
    let (tree, recorder) = recorded();
    let (gate, held) = (Gate::new(), Slot::new());
    let parent = leaves(&tree, endless(&tree, "child", &recorder), Some(waits_at(&gate, Stage::Error)), &held);
    let mut run = Arc::new(parent).run_shared(true);
    assert!(poll_once(&mut run).is_pending());
    recorder.expect(["parent.run.start", "child.run.start", "works"]);
    drop(run);
    settle().await;
    recorder.expect([]);
    gate.open();
    settle().await;
    recorder.expect(["child.run.error", "child.run.finish aborted", "parent.run.success", "parent.run.finish success"]);
    expect_ended_from_above(held.take().await);
}

// R13: no abort wakes the task, because the work of the awaited run is already over.
#[tokio::test]
async fn a_task_that_awaits_a_run_whose_work_is_done_is_woken_when_the_parent_ends_the_run() -> TestResult {
    let (tasks, gate, tree) = (Slot::new(), Gate::new(), Emitter::new());
    let (spawned, waits) = (tasks.clone(), gate.clone());
    let child = Arc::new(below(&tree, "child", |(), _: RunContext| async { Ok(7) }));
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        spawned.put(tokio::spawn(child.run_shared(()).register(waits_at(&waits, Stage::Success))));
        async {
            yield_now().await;
            Ok(())
        }
    });
    let parent = tokio::spawn(Arc::new(parent).run_shared(()));
    settle().await;
    gate.open();
    parent.await??;
    assert_eq!(tasks.take().await??, 7);
    Ok(())
}

// R13: the work of the awaited run is already over, so no abort wakes the task.
#[tokio::test]
async fn a_task_that_awaits_a_run_polled_elsewhere_before_is_woken_when_the_parent_ends_the_run() -> TestResult {
    let (gate, tasks) = (Gate::new(), Slot::new());
    let tree = Emitter::new();
    let child = Arc::new(below(&tree, "child", |(), _: RunContext| async { Ok(7) }));
    let (spawned, waits) = (tasks.clone(), gate.clone());
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        let mut run = child.run_shared(()).register(waits_at(&waits, Stage::Success));
        assert!(poll_once(&mut run).is_pending());
        spawned.put(tokio::spawn(run));
        async {
            settle().await;
            Ok(())
        }
    });
    let task = tokio::spawn(Arc::new(parent).run_shared(()));
    for _ in 0..4 {
        settle().await;
    }
    gate.open();
    task.await??;
    settle().await;
    let child = tasks.take();
    assert!(child.is_finished());
    assert_eq!(child.await??, 7);
    Ok(())
}

// R8, R13: the end of a run does not depend on a future that is not polled, not even on the future of its parent.
#[tokio::test]
async fn the_end_of_a_dropped_child_completes_even_if_its_parent_is_no_longer_polled() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let (gate, notes) = (Gate::new(), recorder.clone());
    let (child, waits) = (Arc::new(endless(&tree, "child", &Recorder::new())), gate.clone());
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        let (waits, notes) = (waits.clone(), notes.clone());
        let mut run = child.run_shared(()).register(Options::new().on_async(Stage::Finish, move |_: &mut Any, _| {
            let (waits, notes) = (waits.clone(), notes.clone());
            Box::pin(async move {
                waits.pass().await;
                notes.note("told");
                Ok(())
            })
        }));
        assert!(poll_once(&mut run).is_pending());
        drop(run);
        async {
            yield_now().await;
            Ok(())
        }
    });
    let mut run = Arc::new(parent).run_shared(());
    assert!(poll_once(&mut run).is_pending());
    settle().await;
    // The work of the parent is over, and the parent waits for the child.
    assert!(poll_once(&mut run).is_pending());
    gate.open();
    settle().await;
    recorder.expect(["told"]);
    drop(run);
}

// R13: dropping the context of an ended run does not deregister the run that took its place.
#[tokio::test]
async fn a_run_that_reuses_the_place_of_an_ended_run_is_ended_with_its_parent() -> TestResult {
    let (tree, held, kept) = (Emitter::new(), Slot::new(), Slot::new());
    let (holds, keeps) = (held.clone(), kept.clone());
    let first = Arc::new(below(&tree, "first", move |(), ctx: RunContext| {
        keeps.put(ctx);
        async { Ok(()) }
    }));
    let second = Arc::new(endless(&tree, "second", &Recorder::new()));
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        let (first, mut second) = (first.run_shared(()), second.run_shared(()));
        let (holds, kept) = (holds.clone(), kept.clone());
        async move {
            first.await?;
            assert!(poll_once(&mut second).is_pending());
            holds.put(second);
            drop(kept.take());
            Ok(())
        }
    });
    parent.run(()).await?;
    expect_ended_from_above(held.take().await);
    Ok(())
}

// R13
#[tokio::test]
async fn a_child_ends_before_its_parents_success_even_if_another_child_was_dropped() -> TestResult {
    let (tree, recorder) = recorded();
    let held = Slot::new();
    let (child, holds) = (Arc::new(endless(&tree, "child", &Recorder::new())), held.clone());
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        let [mut first, mut second] = [(); 2].map(|()| child.run_shared(()));
        assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
        drop(first);
        holds.put(second);
        async { Ok(()) }
    });
    parent.run(()).await?;
    let recorded = recorder.take();
    let ends = ["child.run.error", "child.run.finish aborted", "parent.run.success", "parent.run.finish success"];
    assert!(recorded.ends_with(&ends.map(str::to_owned)), "{recorded:#?}");
    expect_ended_from_above(held.take().await);
    Ok(())
}

// R4
#[tokio::test]
async fn without_listeners_has_ended_is_true_after_the_run() -> TestResult {
    let kept = Slot::new();
    let keeps = kept.clone();
    let run = below(&Emitter::new(), "run", move |(), ctx: RunContext| {
        keeps.put(ctx);
        async { Ok(()) }
    });
    run.run(()).await?;
    assert!(kept.take().has_ended());
    Ok(())
}
