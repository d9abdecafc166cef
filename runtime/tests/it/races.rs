//! R13: a run's own future, the drop of that future, and the run's parent may race on any threads to end the run. The
//! run ends exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context as TaskContext, Wake, Waker};
use std::thread;

use crate::support::ends::{recorded, settle, waits_at};
use crate::support::{Any, Gate, Recorder, Slot, TestResult, below, endless, poll_once};
use emitree_emitter::{Emitter, Options, Registration};
use emitree_runtime::{
    AnyRun, Middleware, Next, Result, Run, RunContext, Runnable, Stack, Stage, layer_fn, runnable_fn,
};
use futures_util::FutureExt;

/// A waker that counts its wake-ups.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A race between a parent and a thread that polls its child. The first poll of `parent` spawns the thread and puts the
/// thread's handle into `polling`. `go_on` lets the thread continue.
struct Race<P, C> {
    parent: P,
    polling: Slot<thread::JoinHandle<(C, bool)>>,
    go_on: mpsc::Sender<()>,
}

fn race(tree: &Emitter, listening: Option<Registration>) -> Race<impl Future<Output = Result<()>> + Unpin, impl Send> {
    let (inside, is_inside) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let (is_inside, may_go_on) = (Slot::with(is_inside), Slot::with(may_go_on));
    let child = Arc::new(below(tree, "child", move |(), _: RunContext| {
        inside.send(()).expect("the parent waits");
        may_go_on.take().recv().expect("the test says so");
        std::future::pending::<Result<()>>()
    }));
    let (polling, listening) = (Slot::new(), Slot::with(listening));
    let polls = polling.clone();
    let parent = Arc::new(below(tree, "parent", move |(), _: RunContext| {
        let mut run = listening.take().into_iter().fold(child.run_shared(()), Run::register);
        polls.put(thread::spawn(move || {
            let is_over = poll_once(&mut run).is_ready();
            (run, is_over)
        }));
        is_inside.take().recv().expect("the child begins");
        async { Ok(()) }
    }));
    Race { parent: parent.run_shared(()), polling, go_on }
}

const RACED: [&str; 6] = [
    "parent.run.start",
    "child.run.start",
    "child.run.error",
    "child.run.finish aborted",
    "parent.run.success",
    "parent.run.finish success",
];

// R13: the child's own future and its parent race.
#[test]
fn a_parent_waits_for_a_child_polled_by_another_thread_and_is_woken_at_the_childs_end() -> TestResult {
    let (tree, recorder) = recorded();
    let Race { mut parent, polling, go_on } = race(&tree, None);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(parent.poll_unpin(&mut TaskContext::from_waker(&waker)).is_pending());
    let before = woken.0.load(Ordering::SeqCst);
    go_on.send(())?;
    let (_child, is_over) = polling.take().join().expect("it only polls");
    assert!(is_over && woken.0.load(Ordering::SeqCst) > before);
    assert!(poll_once(&mut parent).is_ready());
    recorder.expect(RACED);
    Ok(())
}

// R13: if one poll of the child's own future cannot end the child, the parent takes over.
#[test]
fn a_parent_takes_over_a_child_that_another_thread_leaves_pending() -> TestResult {
    let (tree, recorder) = recorded();
    let gate = Gate::new();
    let Race { mut parent, polling, go_on } = race(&tree, Some(waits_at(&gate, Stage::Error)));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(parent.poll_unpin(&mut TaskContext::from_waker(&waker)).is_pending());
    let before = woken.0.load(Ordering::SeqCst);
    go_on.send(())?;
    let (_child, is_over) = polling.take().join().expect("it only polls");
    let after = woken.0.load(Ordering::SeqCst);
    assert!(!is_over && after > before, "the seat is free");
    assert!(parent.poll_unpin(&mut TaskContext::from_waker(&waker)).is_pending());
    gate.open();
    assert!(woken.0.load(Ordering::SeqCst) > after, "it is the parent that waits for the listener now");
    assert!(poll_once(&mut parent).is_ready());
    recorder.expect(RACED);
    Ok(())
}

// R8, R13: the parent is no longer polled; the thread that polls its child ends the parent.
#[test]
fn a_parent_dropped_outside_a_runtime_ends_after_a_child_that_another_thread_polls() -> TestResult {
    let (tree, recorder) = recorded();
    let Race { mut parent, polling, go_on } = race(&tree, None);
    assert!(poll_once(&mut parent).is_pending());
    drop(parent);
    recorder.expect(["parent.run.start", "child.run.start"]);
    go_on.send(())?;
    let (_child, _) = polling.take().join().expect("it only polls");
    recorder.expect(RACED[2..].iter().copied());
    Ok(())
}

// R13: once the parent drives the run, the run's own future only waits for the end.
#[test]
fn the_future_of_a_run_that_its_parent_ends_is_woken_only_when_the_run_has_ended() -> TestResult {
    let (tree, _) = recorded();
    let (gate, held) = (Gate::new(), Slot::new());
    let (child, waits, holds) = (Arc::new(endless(&tree, "child", &Recorder::new())), gate.clone(), held.clone());
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        let mut run = child.run_shared(()).register(waits_at(&waits, Stage::Error));
        assert!(poll_once(&mut run).is_pending());
        holds.put(run);
        async { Ok(()) }
    });
    let mut parent = parent.run(());
    assert!(poll_once(&mut parent).is_pending());
    let (mut child, woken) = (held.take(), Arc::new(Woken::default()));
    let waker = Waker::from(Arc::clone(&woken));
    for _ in 0..3 {
        assert!(child.poll_unpin(&mut TaskContext::from_waker(&waker)).is_pending());
        assert!(poll_once(&mut parent).is_pending());
    }
    assert_eq!(woken.0.load(Ordering::SeqCst), 0);
    gate.open();
    assert!(poll_once(&mut parent).is_ready());
    assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    assert!(poll_once(&mut child).is_ready());
    Ok(())
}

// R13: the work of the parent drops the child and then returns; the parent ends after the child.
#[tokio::test]
async fn a_parent_waits_for_the_pending_end_of_a_child_that_was_dropped() -> TestResult {
    let (tree, recorder) = recorded();
    let gate = Gate::new();
    let (child, waits) = (Arc::new(endless(&tree, "child", &Recorder::new())), gate.clone());
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        let mut run = child.run_shared(()).register(waits_at(&waits, Stage::Finish));
        assert!(poll_once(&mut run).is_pending());
        drop(run);
        async { Ok(()) }
    });
    let task = tokio::spawn(Arc::new(parent).run_shared(()));
    settle().await;
    // The child's sync listeners have received all of its events.
    recorder.expect(["parent.run.start", "child.run.start", "child.run.error", "child.run.finish dropped"]);
    gate.open();
    task.await??;
    recorder.expect(["parent.run.success", "parent.run.finish success"]);
    Ok(())
}

// R8, R13: a parent that waits for the end of a dropped child does not take over that end.
#[tokio::test]
async fn the_end_of_a_dropped_child_completes_without_a_poll_of_its_waiting_parent() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let [finish, end] = [(); 2].map(|()| Gate::new());
    let (child, waits, ends) = (Arc::new(endless(&tree, "child", &Recorder::new())), finish.clone(), end.clone());
    let notes = recorder.clone();
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        let (waits, notes, ends) = (waits.clone(), notes.clone(), ends.clone());
        let mut run = child.run_shared(()).on_async(Stage::Finish, move |_: &mut Any, _| {
            let (waits, notes) = (waits.clone(), notes.clone());
            Box::pin(async move {
                waits.pass().await;
                notes.note("heard");
                Ok(())
            })
        });
        assert!(poll_once(&mut run).is_pending());
        drop(run);
        async move {
            ends.pass().await;
            Ok(())
        }
    });
    let mut parent = parent.run(());
    assert!(poll_once(&mut parent).is_pending());
    settle().await;
    end.open();
    assert!(poll_once(&mut parent).is_pending());
    finish.open();
    settle().await;
    recorder.expect(["heard"]);
    assert!(poll_once(&mut parent).is_ready());
}

/// A value that records the current run when the value is dropped.
struct DroppedIn(Recorder);

impl Drop for DroppedIn {
    fn drop(&mut self) {
        let run = RunContext::current();
        self.0.note(run.map_or("no run".into(), |run| run.emitter().namespace().to_owned()));
    }
}

// R9, R13
#[tokio::test]
async fn the_work_of_a_run_ended_by_its_parent_is_dropped_in_the_run_at_the_next_poll() -> TestResult {
    let (tree, recorder, held) = (Emitter::new(), Recorder::new(), Slot::new());
    let dropped_in = recorder.clone();
    let child = Arc::new(below(&tree, "child", move |(), _: RunContext| {
        let dropped_in = DroppedIn(dropped_in.clone());
        async move {
            let _dropped_in = dropped_in;
            std::future::pending::<Result<()>>().await
        }
    }));
    let holds = held.clone();
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        let (mut run, holds) = (child.run_shared(()), holds.clone());
        assert!(poll_once(&mut run).is_pending());
        holds.put(run);
        async { Ok(()) }
    });
    parent.run(()).await?;
    recorder.expect([]);
    let mut run = held.take();
    assert!(poll_once(&mut run).is_ready());
    recorder.expect(["child"]);
    Ok(())
}

/// Returns a listener that blocks in its first poll until the test continues, and then waits at a gate.
fn stays_in(stage: Stage, gate: &Gate) -> (Registration, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (inside, is_inside) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let (gate, once) = (gate.clone(), Slot::with((inside, may_go_on)));
    let listener = Options::new().on_async(stage, move |_: &mut Any, _| {
        let (gate, (inside, may_go_on)) = (gate.clone(), once.take());
        Box::pin(async move {
            inside.send(())?;
            may_go_on.recv()?;
            gate.pass().await;
            Ok(())
        })
    });
    (listener, is_inside, go_on)
}

// R13: the driver of a run continues, even if the run's future is dropped meanwhile.
#[test]
fn a_parent_continues_to_end_a_child_that_is_dropped_while_the_parent_ends_it() -> TestResult {
    let (tree, recorder) = recorded();
    let (gate, held) = (Gate::new(), Slot::new());
    let (listener, is_inside, go_on) = stays_in(Stage::Error, &gate);
    let (child, holds, listener) =
        (Arc::new(endless(&tree, "child", &Recorder::new())), held.clone(), Slot::with(listener));
    let parent = Arc::new(below(&tree, "parent", move |(), _: RunContext| {
        let mut run = child.run_shared(()).register(listener.take());
        assert!(poll_once(&mut run).is_pending());
        holds.put(run);
        async { Ok(()) }
    }));
    let mut parent = parent.run_shared(());
    let at_it = thread::spawn(move || {
        assert!(poll_once(&mut parent).is_pending());
        parent
    });
    is_inside.recv()?;
    drop(held.take());
    go_on.send(())?;
    let mut parent = at_it.join().expect("it only polls");
    gate.open();
    assert!(poll_once(&mut parent).is_ready());
    recorder.expect(RACED);
    Ok(())
}

// R8, R13: two threads poll one child each; the thread whose child ends last ends the parent.
#[test]
fn a_parent_dropped_outside_a_runtime_ends_after_both_children_that_other_threads_poll() -> TestResult {
    let (tree, recorder) = recorded();
    let polling = Slot::new();
    let (inside, is_inside) = mpsc::channel();
    let (is_inside, leaves, below_it) = (Slot::with(is_inside), polling.clone(), tree.clone());
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        let polls = [(); 2].map(|()| {
            let (go_on, may_go_on) = mpsc::channel::<()>();
            let (inside, may_go_on) = (inside.clone(), Slot::with(may_go_on));
            let child = Arc::new(below(&below_it, "child", move |(), _: RunContext| {
                inside.send(()).expect("the parent waits");
                may_go_on.take().recv().expect("the test says so");
                std::future::pending::<Result<()>>()
            }));
            let mut run = child.run_shared(());
            (go_on, thread::spawn(move || (poll_once(&mut run).is_ready(), run)))
        });
        leaves.put(polls);
        let is_inside = is_inside.take();
        is_inside.iter().take(2).for_each(drop);
        async { Ok(()) }
    });
    let mut parent = Box::pin(parent.run(()));
    assert!(poll_once(&mut parent).is_pending());
    drop(parent);
    // Keep both children until both are polled, because the order in which they end is unspecified.
    let mut children = Vec::new();
    for (go_on, thread) in polling.take() {
        go_on.send(())?;
        let (_, child) = thread.join().expect("it only polls");
        children.push(child);
    }
    let told = recorder.take();
    let end = ["child.run.error", "child.run.finish aborted"];
    assert_eq!(told[..3], ["parent.run.start", "child.run.start", "child.run.start"]);
    assert_eq!(told[3..7], [end, end].concat());
    assert_eq!(told[7..], ["parent.run.success", "parent.run.finish success"].map(String::from));
    Ok(())
}

// M1: whether the binding or the work comes first, a layer is called if and only if it was accepted.
#[test]
fn a_layer_that_another_thread_binds_as_the_work_begins_is_called_or_refused() {
    let (ctx, contexts) = mpsc::channel::<RunContext>();
    let (results, taken) = mpsc::channel();
    let calls = Arc::new(AtomicUsize::new(0));
    let binder = {
        let calls = Arc::clone(&calls);
        thread::spawn(move || {
            for ctx in contexts {
                let calls = Arc::clone(&calls);
                let count = layer_fn("count", move |input, _, next: Next<'_, AnyRun>| {
                    calls.fetch_add(1, Ordering::SeqCst);
                    next.run(input).boxed()
                });
                let stack = Stack::<AnyRun>::builder().layer(count).build();
                results.send(stack.bind(&ctx).is_ok()).expect("the test waits");
            }
        })
    };
    let work = runnable_fn("work", |(): (), _: RunContext| async move { Ok(()) });
    for _ in 0..2_000 {
        let ctx = ctx.clone();
        let run = work.run(()).on_start(move |_, _| {
            ctx.send(RunContext::current().expect("in a listener of the run")).expect("the binder waits");
        });
        run.now_or_never().expect("nothing has to be awaited").expect("it does not fail");
        let was_taken = taken.recv().expect("it was bound or refused");
        assert_eq!(calls.swap(0, Ordering::SeqCst) == 1, was_taken);
    }
    drop(ctx);
    binder.join().expect("it does not panic");
}
