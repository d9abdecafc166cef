//! R8: `wait_for_ends` returns after the last end. A run that is cut, at the deadline or because its runtime is
//! dropped, is cut together with all runs below it.

mod support;

use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::{Result, Run, RunContext, Runnable, Stage, wait_for_ends};
use support::ends::{begun, endless_run, notes_waiting_at, recorded};
use support::{Gate, Slot, below};
use tokio::runtime::Builder;
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
async fn wait_for_ends_returns_after_the_last_end_and_not_at_the_deadline() {
    let _alone = alone().await;
    let (tree, recorder) = recorded();
    let gate = Gate::new();
    drop_run(endless_run(&tree, "run").register(notes_waiting_at(&gate, &recorder, Stage::Finish)));
    tokio::spawn(async move {
        tokio::time::sleep(SECOND).await;
        gate.open();
    });
    let before = tokio::time::Instant::now();
    assert!(wait_for_ends(9 * SECOND).await.is_complete());
    assert!(before.elapsed() < 2 * SECOND, "{:?}", before.elapsed());
}

// R8, R13: a run is cut with all runs below it, even if they are held elsewhere.
#[tokio::test(start_paused = true)]
async fn a_held_run_below_a_run_that_is_cut_is_cut_too() {
    let _alone = alone().await;
    let (tree, recorder) = recorded();
    let (gate, held) = (Gate::new(), Slot::new());
    let (emitter, notes, holds) = (tree.clone(), recorder.clone(), held.clone());
    let top = below(&tree, "top", move |(), _: RunContext| {
        holds.put(begun(endless_run(&emitter, "run").register(notes_waiting_at(&gate, &notes, Stage::Finish))));
        std::future::pending::<Result<()>>()
    });
    drop_run(Arc::new(top).run_shared(()));
    recorder.take();
    let report = wait_for_ends(SECOND).await;
    assert_eq!(report.undelivered.len(), 1, "{report}");
    recorder.expect(["run.run.finish dropped", "top.run.error", "top.run.finish dropped"]);
    drop(held.take());
}

// R8: a run whose runtime is dropped ends immediately, even if another runtime would have ended the runs below.
#[test]
fn a_run_whose_runtime_is_dropped_ends_runs_below_that_another_runtime_awaits() {
    let _alone = ALONE.blocking_lock();
    let (tree, recorder) = recorded();
    let [goes, stays] = [(); 2].map(|()| Builder::new_current_thread().build().expect("a runtime"));
    let (gate, held) = (Gate::new(), Slot::new());
    let (emitter, notes, holds) = (tree.clone(), recorder.clone(), held.clone());
    let top = below(&tree, "top", move |(), _: RunContext| {
        holds.put(begun(endless_run(&emitter, "run").register(notes_waiting_at(&gate, &notes, Stage::Finish))));
        std::future::pending::<Result<()>>()
    });
    {
        let _inside = goes.enter();
        drop_run(Arc::new(top).run_shared(()));
    }
    {
        let _inside = stays.enter();
        drop(held.take());
    }
    recorder.take();
    drop(goes);
    recorder.expect(["run.run.finish dropped", "top.run.error", "top.run.finish dropped"]);
}

// R8: a task that does not reach an await does not delay the cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_does_not_stop_does_not_delay_a_run_that_is_cut() {
    let _alone = alone().await;
    let (tree, recorder) = recorded();
    let (began, is_there) = std::sync::mpsc::channel();
    let (goes_on, blocks) = std::sync::mpsc::channel::<()>();
    let blocks = Slot::with(blocks);
    let top = below(&tree, "top", move |(), ctx: RunContext| {
        let (began, blocks) = (began.clone(), blocks.take());
        drop(ctx.spawn(async move {
            began.send(()).ok();
            blocks.recv().ok();
        }));
        std::future::pending::<Result<()>>()
    });
    let run = begun(Arc::new(top).run_shared(()));
    is_there.recv().expect("the task begins");
    drop(run);
    assert!(!wait_for_ends(Duration::from_millis(10)).await.is_complete());
    recorder.expect(["top.run.start", "top.run.error", "top.run.finish dropped"]);
    drop(goes_on);
}
