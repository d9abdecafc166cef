//! R8: `wait_for_ends` waits for pending ends until a deadline, and counts the listeners that were skipped. If the
//! runtime is dropped first, sync listeners still receive each end once.

mod support;

use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::{Emitter, Options};
use emitree_runtime::{Run, RunContext, Runnable, Stage, wait_for_ends};
use support::ends::{begun, endless_run, notes_waiting_at, recorded, settle, waits_at};
use support::{Any, Gate, Recorder, TestResult, below, poll_once};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, MutexGuard};

const SECOND: Duration = Duration::from_secs(1);

/// Pending ends are counted for the whole process, so these tests run one at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}

/// Begins a run and drops it.
fn drop_run<R: Runnable<Input = ()> + 'static>(run: Run<'static, R>) {
    drop(begun(run));
}

// R8
#[tokio::test(start_paused = true)]
async fn wait_for_ends_returns_at_once_if_no_end_is_pending() {
    let _alone = alone().await;
    let (tree, _) = recorded();
    drop_run(endless_run(&tree, "run"));
    let shutdown = wait_for_ends(Duration::ZERO).await;
    assert!(shutdown.is_complete());
    assert_eq!((shutdown.ended, shutdown.to_string().as_str()), (0, "runs that ended in time: 0"));
}

// R8: an end is counted before its task is spawned; here no task has been polled yet.
#[tokio::test(start_paused = true)]
async fn wait_for_ends_waits_for_all_pending_ends_and_not_for_the_deadline() {
    let _alone = alone().await;
    let (tree, recorder) = recorded();
    let gate = Gate::new();
    for _ in 0..3 {
        drop_run(endless_run(&tree, "run").register(notes_waiting_at(&gate, &recorder, Stage::Finish)));
    }
    recorder.take();
    let opens = gate.clone();
    let opener = tokio::spawn(async move {
        for _ in 0..3 {
            tokio::time::sleep(SECOND).await;
            opens.open();
        }
    });
    let began = tokio::time::Instant::now();
    let shutdown = wait_for_ends(60 * SECOND).await;
    assert!(shutdown.is_complete() && opener.is_finished(), "{shutdown}");
    assert_eq!(began.elapsed().as_secs(), 3, "it does not wait for the deadline");
    assert_eq!(shutdown.ended, 3);
    recorder.expect(["goes on", "goes on", "goes on"]);
}

// R8
#[tokio::test(start_paused = true)]
async fn listeners_still_awaited_at_the_deadline_are_cut_and_reported_as_skipped() {
    let _alone = alone().await;
    let (tree, recorder) = recorded();
    let [blocked, finishes] = [(); 2].map(|()| Gate::new());
    let run = endless_run(&tree, "run").register(notes_waiting_at(&blocked, &recorder, Stage::Error));
    drop_run(run.register(notes_waiting_at(&finishes, &recorder, Stage::Finish)));
    let in_time = Gate::new();
    drop_run(endless_run(&tree, "run").register(notes_waiting_at(&in_time, &recorder, Stage::Finish)));
    recorder.take();
    in_time.open();
    let shutdown_ = wait_for_ends(SECOND).await;
    assert_eq!((shutdown_.ended, shutdown_.undelivered.len()), (1, 1), "{shutdown_}");
    let undelivered = &shutdown_.undelivered[0];
    assert_eq!((undelivered.namespace.as_str(), undelivered.skipped), ("run", 2));
    let text = format!("runs that ended in time: 1\n  run {} of `run`: 2 listeners skipped", undelivered.run_id);
    assert_eq!(shutdown_.to_string(), text);
    recorder.expect(["goes on", "run.run.finish dropped"]);
    // No end is pending any more, and no listener receives an end twice.
    blocked.open();
    finishes.open();
    assert!(wait_for_ends(SECOND).await.is_complete());
    recorder.expect([]);
}

// R8, R13: a run is cut with all runs below it.
#[tokio::test(start_paused = true)]
async fn a_run_that_waits_for_a_run_below_is_cut_with_that_run() {
    let _alone = alone().await;
    let (tree, recorder) = recorded();
    let (gate, emitter, notes) = (Gate::new(), tree.clone(), recorder.clone());
    let top = below(&tree, "top", move |(), _: RunContext| {
        endless_run(&emitter, "run").register(notes_waiting_at(&gate, &notes, Stage::Finish))
    });
    drop_run(Arc::new(top).run_shared(()));
    recorder.expect(["top.run.start", "run.run.start", "run.run.error", "run.run.finish dropped", "waits"]);
    let report = wait_for_ends(SECOND).await;
    let mut skipped: Vec<_> = report.undelivered.iter().map(|run| (run.namespace.as_str(), run.skipped)).collect();
    skipped.sort_unstable();
    assert_eq!(skipped, [("run", 1), ("top", 0)]);
    recorder.expect(["top.run.error", "top.run.finish dropped"]);
}

// R8: runs that are still under way are not affected.
#[tokio::test(start_paused = true)]
async fn wait_for_ends_does_not_affect_runs_under_way() {
    let _alone = alone().await;
    let (tree, recorder) = recorded();
    let mut run = endless_run(&tree, "run");
    assert!(poll_once(&mut run).is_pending());
    assert!(wait_for_ends(SECOND).await.is_complete());
    recorder.expect(["run.run.start"]);
}

/// Leaves runs unfinished in the tasks of a runtime: a dropped run, runs that wait at a stage or in their work, and
/// nested runs.
fn unfinished(runtime: &Runtime, tree: &Emitter, recorder: &Recorder) {
    let gate = Gate::new();
    let _inside = runtime.enter();
    drop_run(endless_run(tree, "run").register(notes_waiting_at(&gate, recorder, Stage::Error)));
    for stage in [None, Some(Stage::Start), Some(Stage::Error), Some(Stage::Finish)] {
        let waits = stage.map(|stage| notes_waiting_at(&gate, recorder, stage));
        tokio::spawn(begun(waits.into_iter().fold(endless_run(tree, "run"), Run::register)));
    }
    let emitter = tree.clone();
    let nests = below(tree, "nests", move |(), ctx: RunContext| {
        let owned = ctx.spawn(begun(endless_run(&emitter, "inner")));
        let bare = tokio::spawn(begun(endless_run(&emitter, "inner")));
        let emitter = emitter.clone();
        async move {
            let nested = endless_run(&emitter, "inner").await;
            drop((owned, bare));
            nested
        }
    });
    tokio::spawn(begun(Arc::new(nests).run_shared(())));
}

// R8
#[test]
fn sync_listeners_receive_every_end_once_if_the_runtime_is_dropped_first() {
    let _alone = ALONE.blocking_lock();
    for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        let (tree, recorder) = recorded();
        let runtime = builder.worker_threads(2).build().expect("a runtime");
        unfinished(&runtime, &tree, &recorder);
        drop(runtime);
        let recorded = recorder.take();
        for (name, runs) in [("run", 5), ("nests", 1), ("inner", 3)] {
            let count =
                |stage: &str| recorded.iter().filter(|line| line.starts_with(&format!("{name}.run.{stage}"))).count();
            assert_eq!(["start", "error", "finish"].map(count), [runs; 3], "{name}: {recorded:#?}");
        }
        let last_inner = recorded.iter().rposition(|line| line.starts_with("inner"));
        let outer = recorded.iter().position(|line| line == "nests.run.error");
        assert!(last_inner < outer, "{recorded:#?}");
        let nothing = Builder::new_current_thread().enable_time().build().expect("a runtime");
        assert!(nothing.block_on(wait_for_ends(Duration::ZERO)).is_complete());
    }
}

// R8: an async listener that waits is cut, and the later async listener is skipped.
#[test]
fn outside_a_runtime_a_dropped_run_ends_completely_during_the_drop() -> TestResult {
    let _alone = ALONE.blocking_lock();
    let (tree, recorder) = recorded();
    let gate = Gate::new();
    let run = endless_run(&tree, "run").register(notes_waiting_at(&gate, &recorder, Stage::Error));
    let run = run.register(notes_waiting_at(&gate, &recorder, Stage::Finish));
    drop_run(run);
    recorder.expect(["run.run.start", "run.run.error", "waits", "run.run.finish dropped"]);
    let runtime = Builder::new_current_thread().enable_time().build()?;
    assert!(runtime.block_on(wait_for_ends(Duration::ZERO)).is_complete());
    Ok(())
}

// R8: a `start` that is being emitted is cut too, and the run ends.
#[test]
fn outside_a_runtime_a_drop_during_start_ends_the_run() {
    let _alone = ALONE.blocking_lock();
    let (tree, recorder) = recorded();
    drop_run(endless_run(&tree, "run").register(notes_waiting_at(&Gate::new(), &recorder, Stage::Start)));
    recorder.expect(["waits", "run.run.start", "run.run.error", "run.run.finish dropped"]);
}

// R8: a run that was dropped meanwhile is reported, but does not count among the runs that were pending at the call.
#[tokio::test(start_paused = true)]
async fn a_run_dropped_during_wait_for_ends_does_not_reduce_the_number_that_ended_in_time() {
    let _alone = alone().await;
    let (tree, recorder) = recorded();
    let (gate, never) = (Gate::new(), Gate::new());
    drop_run(endless_run(&tree, "run").register(notes_waiting_at(&gate, &recorder, Stage::Finish)));
    let late = endless_run(&tree, "run").register(notes_waiting_at(&never, &recorder, Stage::Finish));
    tokio::spawn(async move {
        tokio::time::sleep(SECOND).await;
        drop_run(late);
        gate.open();
    });
    let report = wait_for_ends(2 * SECOND).await;
    assert_eq!((report.ended, report.undelivered.len()), (1, 1), "{report}");
}

// R8: a run that was cut is over, even if its task still exists.
#[test]
fn a_run_that_was_reported_once_is_not_reported_again() -> TestResult {
    let _alone = ALONE.blocking_lock();
    let (tree, recorder) = recorded();
    let [idle, busy] = [(); 2].map(|()| Builder::new_current_thread().enable_time().start_paused(true).build());
    let (idle, busy) = (idle?, busy?);
    {
        let _inside = idle.enter();
        drop_run(endless_run(&tree, "run").register(notes_waiting_at(&Gate::new(), &recorder, Stage::Finish)));
    }
    assert_eq!(busy.block_on(wait_for_ends(SECOND)).undelivered.len(), 1);
    let (again, took) = busy.block_on(async {
        let began = tokio::time::Instant::now();
        (wait_for_ends(SECOND).await, began.elapsed().as_secs())
    });
    assert!(again.is_complete() && (again.ended, took) == (0, 0), "{again}");
    Ok(())
}

// R8: observers are awaited together; each observer that has not completed is cut.
#[tokio::test(start_paused = true)]
async fn async_observers_still_awaited_at_the_deadline_are_cut_and_counted_as_skipped() {
    let _alone = alone().await;
    let (tree, recorder) = recorded();
    let observes = |answers: bool| {
        Options::new().observe_async("*.*", move |_: &Any, meta| {
            let blocks = !answers && Stage::of(meta) == Some(Stage::Error);
            Box::pin(async move {
                if blocks {
                    std::future::pending::<()>().await;
                }
                Ok(())
            })
        })
    };
    let run = [false, true, false].map(observes).into_iter().fold(endless_run(&tree, "run"), Run::register);
    drop_run(run);
    let report = wait_for_ends(SECOND).await;
    // Two observers were being awaited at `error`, and three observers were skipped at `finish`.
    assert_eq!(report.undelivered.iter().map(|run| run.skipped).collect::<Vec<_>>(), [5], "{report}");
    recorder.expect(["run.run.start", "run.run.error", "run.run.finish dropped"]);
}

/// An extension that records its drop. It is dropped together with its run.
struct Carried(Recorder);

impl Drop for Carried {
    fn drop(&mut self) {
        self.0.note("gone");
    }
}

// R8: a run is freed once it has ended.
#[tokio::test]
async fn a_dropped_run_is_freed_after_a_task_has_ended_it() {
    let _alone = alone().await;
    let (tree, recorder, gate) = (Emitter::new(), Recorder::new(), Gate::new());
    let run = endless_run(&tree, "run").register(waits_at(&gate, Stage::Finish)).extension(Carried(recorder.clone()));
    drop_run(run);
    recorder.expect([]);
    gate.open();
    settle().await;
    recorder.expect(["gone"]);
}
