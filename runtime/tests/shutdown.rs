//! R8: a shutdown accepts no new runs, aborts the living runs, waits for their ends until the deadline, and reports
//! each run that has not ended.

mod support;

use std::future::{pending, poll_fn};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::task::Poll;
use std::time::Duration;

use emitree_emitter::{Emitter, Options};
use emitree_runtime::{Error, Result, RunContext, Runnable, Stage, accept_runs, shutdown, wait_for_ends};
use support::ends::{begun, endless_run, expect_aborted, notes_waiting_at, recorded, settle, waits_at};
use support::{Any, Gate, TestResult, below, endless, poll_once};
use tokio::runtime::Builder;
use tokio::sync::{Mutex, MutexGuard};

const SECOND: Duration = Duration::from_secs(1);
const REASON: &str = "the process is shutting down";

/// A shutdown affects the whole process, so these tests run one at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Accepts new runs again when it is dropped, at the end of the test.
struct Alone(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Drop for Alone {
    fn drop(&mut self) {
        accept_runs();
    }
}

async fn alone() -> Alone {
    Alone(ALONE.lock().await)
}

// R8
#[tokio::test(start_paused = true)]
async fn a_shutdown_aborts_every_run_alive_and_waits_for_its_end() {
    let _alone = alone().await;
    let (tree, recorder) = recorded();
    let gate = Gate::new();
    let inner = Arc::new(endless(&tree, "inner", &recorder));
    let outer = Arc::new(below(&tree, "outer", move |(): (), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(()).await }
    }));
    let outer = tokio::spawn(outer.run_shared(()).register(notes_waiting_at(&gate, &recorder, Stage::Finish)));
    let alone = tokio::spawn(endless_run(&tree, "alone"));
    settle().await;
    recorder.take();
    tokio::spawn(async move {
        tokio::time::sleep(SECOND).await;
        gate.open();
    });
    let began = tokio::time::Instant::now();
    let report = shutdown(60 * SECOND).await;
    assert!(report.is_complete(), "{report}");
    assert_eq!((report.ended, began.elapsed().as_secs()), (2, 1), "it does not wait for the deadline");
    for run in [outer, alone] {
        expect_aborted(run.await.expect("no panic"), REASON);
    }
    let all = recorder.take();
    let of = |name: &str| all.iter().filter(|line| line.starts_with(name)).cloned().collect::<Vec<_>>();
    assert_eq!(of("alone"), ["alone.run.error", "alone.run.finish aborted"]);
    assert_eq!(of("inner"), ["inner.run.error", "inner.run.finish aborted"]);
    assert_eq!(of("outer"), ["outer.run.error", "outer.run.finish aborted"]);
    let position = |line: &str| all.iter().position(|other| other == line);
    assert!(position("inner.run.finish aborted") < position("outer.run.error"), "{all:#?}");
}

// R8: runs that are made in living runs do not begin either.
#[tokio::test(start_paused = true)]
async fn during_and_after_a_shutdown_no_run_begins() {
    let _alone = alone().await;
    let (tree, recorder) = recorded();
    let late = Arc::new(below(&tree, "late", |(): (), _: RunContext| async { Ok(()) }));
    let (cleans_up, notes) = (Arc::clone(&late), recorder.clone());
    let clean_up = Options::new().on_async(Stage::Error, move |_: &mut Any, _| {
        let (late, notes) = (Arc::clone(&cleans_up), notes.clone());
        Box::pin(async move {
            notes.note(format!("cleans up: {:?}", late.run(()).await.map_err(|error| error.to_string())));
            Ok(())
        })
    });
    let made_before = late.run_shared(());
    let run = tokio::spawn(endless_run(&tree, "run").register(clean_up));
    settle().await;
    assert!(shutdown(SECOND).await.is_complete());
    expect_aborted(run.await.expect("no panic"), REASON);
    expect_aborted(made_before.await, REASON);
    expect_aborted(late.run(()).await, REASON);
    let refused = format!("cleans up: Err({REASON:?})");
    recorder.expect(["run.run.start", &*refused, "run.run.error", "run.run.finish aborted"]);
    accept_runs();
    late.run(()).await.expect("runs begin again");
}

// R8, R13
#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_a_run_that_is_not_polled_and_async_listeners_receive_the_end() {
    let _alone = alone().await;
    let (tree, recorder) = recorded();
    let gate = Gate::new();
    gate.open();
    let mut run = begun(endless_run(&tree, "run").register(notes_waiting_at(&gate, &recorder, Stage::Finish)));
    recorder.take();
    let report = shutdown(2 * SECOND).await;
    assert!(report.is_complete() && report.ended == 1, "{report}");
    recorder.expect(["run.run.error", "run.run.finish aborted", "waits", "goes on"]);
    let Poll::Ready(result) = poll_once(&mut run) else { panic!("it has ended") };
    expect_aborted(result, REASON);
}

// R8
#[tokio::test(start_paused = true)]
async fn a_run_that_has_not_ended_at_the_deadline_is_cut_and_reported() {
    let _alone = alone().await;
    let (tree, recorder) = recorded();
    let run = tokio::spawn(endless_run(&tree, "slow").register(waits_at(&Gate::new(), Stage::Finish)));
    let in_time = tokio::spawn(endless_run(&tree, "fast"));
    settle().await;
    let report = shutdown(SECOND).await;
    let left: Vec<_> = report.undelivered.iter().map(|run| (&*run.namespace, run.skipped, run.has_ended)).collect();
    assert_eq!((report.ended, left), (1, vec![("slow", 1, true)]), "{report}");
    for run in [run, in_time] {
        expect_aborted(run.await.expect("no panic"), REASON);
    }
    assert_eq!(recorder.take().iter().filter(|line| line.ends_with("finish aborted")).count(), 2);
    let again = shutdown(SECOND).await;
    assert_eq!((again.ended, again.is_complete()), (0, true), "{again}");
}

// R8, R14: the run's own task is woken first, and fetches the result. The task of the shutdown is still notified of the
// end.
#[tokio::test(start_paused = true)]
async fn a_run_that_was_cut_is_released_when_its_future_is_over() {
    let _alone = alone().await;
    let tasks = tokio::runtime::Handle::current();
    let value = Arc::new(());
    let held = Arc::downgrade(&value);
    let run = endless_run(&Emitter::new(), "run").register(waits_at(&Gate::new(), Stage::Finish));
    let run = tokio::spawn(run.middleware(move |ctx: &RunContext| {
        ctx.set_extension(Arc::clone(&value));
        Ok(())
    }));
    settle().await;
    let report = shutdown(SECOND).await;
    assert_eq!((report.ended, report.undelivered.len()), (0, 1), "{report}");
    expect_aborted(run.await.expect("no panic"), REASON);
    settle().await;
    assert!(held.upgrade().is_none(), "the run is still held");
    assert_eq!(tasks.metrics().num_alive_tasks(), 0);
}

/// Returns a runnable whose work never ends, and blocks its thread in the second poll: it meets `blocks`, and then waits for
/// `until`.
fn blocks_in_its_second_poll(
    tree: &Emitter,
    blocks: &Arc<Barrier>,
    until: &Arc<Barrier>,
) -> impl Runnable<Input = (), Output = ()> + use<> {
    let barriers = (Arc::clone(blocks), Arc::clone(until));
    below(tree, "blocking", move |(): (), _: RunContext| {
        let (blocks, until) = barriers.clone();
        let mut polls = 0;
        poll_fn(move |_| {
            polls += 1;
            if polls == 2 {
                blocks.wait();
                until.wait();
            }
            Poll::<Result<()>>::Pending
        })
    })
}

// R8: work that blocks its thread cannot be cut.
#[test]
fn a_run_whose_work_blocks_its_thread_is_reported_as_not_ended() -> TestResult {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let _alone = runtime.block_on(alone());
    let (tree, recorder) = recorded();
    let (blocks, until) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let blocking = blocks_in_its_second_poll(&tree, &blocks, &until);
    let mut run = begun(Arc::new(blocking).run_shared(()));
    let thread = std::thread::spawn(move || [poll_once(&mut run).is_pending(), poll_once(&mut run).is_pending()]);
    blocks.wait();
    let report = runtime.block_on(shutdown(SECOND));
    let left: Vec<_> = report.undelivered.iter().map(|run| (&*run.namespace, run.has_ended)).collect();
    assert_eq!(left, [("blocking", false)], "{report}");
    assert!(report.to_string().ends_with("has not ended"), "{report}");
    until.wait();
    thread.join().expect("no panic");
    assert_eq!(recorder.take(), ["blocking.run.start", "blocking.run.error", "blocking.run.finish aborted"]);
    Ok(())
}

// R8: the shutdown drives the run after the poll, because the run's own future no longer may.
#[test]
fn a_run_that_is_being_polled_when_the_shutdown_takes_over_ends_in_time() -> TestResult {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let _alone = runtime.block_on(alone());
    let (tree, _recorder) = recorded();
    let (blocks, until, gate) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)), Gate::new());
    let blocking = blocks_in_its_second_poll(&tree, &blocks, &until);
    let mut run = begun(Arc::new(blocking).run_shared(()).register(waits_at(&gate, Stage::Error)));
    let thread = std::thread::spawn(move || (poll_once(&mut run).is_pending(), poll_once(&mut run).is_pending(), run));
    blocks.wait();
    let report = runtime.block_on(async {
        tokio::spawn(async move {
            // The shutdown takes over after half of its time.
            tokio::time::sleep(SECOND * 3 / 4).await;
            until.wait();
            let polled = thread.join().expect("no panic");
            assert!(polled.0 && polled.1, "the run waits for the listener of `error`");
            gate.open();
            // Keep the future, which would end the run if it was dropped.
            tokio::time::sleep(SECOND).await;
            drop(polled);
        });
        shutdown(SECOND).await
    });
    assert!(report.is_complete() && report.ended == 1, "{report}");
    Ok(())
}

// R8: the drop and the shutdown each start a task that ends the run.
#[tokio::test(start_paused = true)]
async fn a_dropped_run_that_a_shutdown_waits_for_is_reported_once() {
    let _alone = alone().await;
    let (tree, _recorder) = recorded();
    drop(begun(endless_run(&tree, "run").register(waits_at(&Gate::new(), Stage::Finish))));
    let shuts_down = tokio::spawn(shutdown(4 * SECOND));
    // The shutdown takes over after two seconds.
    tokio::time::sleep(3 * SECOND).await;
    let ends = wait_for_ends(Duration::ZERO).await;
    assert_eq!(ends.undelivered.len(), 1, "{ends}");
    shuts_down.await.expect("no panic");
}

// R8: a run without a parent is added to the list of living runs only when it first has to wait.
#[test]
fn a_run_in_its_first_poll_during_a_shutdown_is_aborted_when_it_first_waits() -> TestResult {
    let runtime = Builder::new_current_thread().enable_time().build()?;
    let _alone = runtime.block_on(alone());
    let (tree, recorder) = recorded();
    let (begins, began) = channel();
    let until = Arc::new(Barrier::new(2));
    let waits = Arc::clone(&until);
    let first = below(&tree, "first", move |(): (), _: RunContext| {
        begins.send(()).expect("it is received");
        waits.wait();
        pending::<Result<()>>()
    });
    let mut run = Arc::new(first).run_shared(());
    let thread = std::thread::spawn(move || {
        assert!(poll_once(&mut run).is_pending());
        poll_once(&mut run)
    });
    began.recv()?;
    assert!(runtime.block_on(shutdown(Duration::ZERO)).is_complete());
    until.wait();
    let Poll::Ready(result) = thread.join().expect("no panic") else { panic!("it was aborted") };
    expect_aborted(result, REASON);
    recorder.expect(["first.run.start", "first.run.error", "first.run.finish aborted"]);
    Ok(())
}

// R8
#[tokio::test(start_paused = true)]
async fn a_shutdown_that_is_dropped_still_refuses_and_aborts_runs_and_the_next_shutdown_waits() {
    let _alone = alone().await;
    let (tree, _) = recorded();
    let gate = Gate::new();
    let run = tokio::spawn(endless_run(&tree, "run").register(waits_at(&gate, Stage::Finish)));
    settle().await;
    assert!(tokio::time::timeout(SECOND, shutdown(60 * SECOND)).await.is_err());
    expect_aborted(endless_run(&tree, "run").await, REASON);
    gate.open();
    let report = shutdown(60 * SECOND).await;
    assert!(report.is_complete(), "{report}");
    expect_aborted(run.await.expect("no panic"), REASON);
}

// R8: the shutdown waits for runs that were dropped earlier, and does not report runs that are over.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_the_ends_of_dropped_runs_and_does_not_count_runs_that_are_over() {
    let _alone = alone().await;
    let (tree, recorder) = recorded();
    let gate = Gate::new();
    drop(begun(endless_run(&tree, "dropped").register(notes_waiting_at(&gate, &recorder, Stage::Finish))));
    drop(begun(endless_run(&tree, "over")));
    let done = below(&tree, "done", |(): (), _: RunContext| async {
        tokio::task::yield_now().await;
        Result::<()>::Err(Error::new("broken"))
    });
    done.run(()).await.expect_err("it is broken");
    tokio::spawn(async move {
        tokio::time::sleep(SECOND).await;
        gate.open();
    });
    let report = shutdown(60 * SECOND).await;
    assert_eq!((report.ended, report.is_complete()), (1, true), "{report}");
}

// R8
#[tokio::test(start_paused = true)]
async fn wait_for_ends_neither_aborts_runs_nor_refuses_new_runs() {
    let _alone = alone().await;
    let (tree, _) = recorded();
    let mut run = begun(endless_run(&tree, "run"));
    assert!(wait_for_ends(SECOND).await.is_complete());
    assert!(poll_once(&mut run).is_pending());
    assert!(poll_once(&mut endless_run(&tree, "another")).is_pending());
}
