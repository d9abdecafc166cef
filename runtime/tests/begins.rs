//! R1, R13: a run that is first polled while its parent ends, on any thread, either ends before its parent or never
//! starts.

mod support;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context as TaskContext, Wake, Waker};
use std::thread;

use emitree_emitter::Emitter;
use emitree_runtime::{AbortHandle, ErrorKind, Result, RunContext, Runnable, Stage};
use futures_util::FutureExt;
use support::{Any, AtDrop, Recorder, Slot, TestResult, below, endless, poll_once};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};

fn recorded() -> (Emitter, Recorder) {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.ends(&tree);
    (tree, recorder)
}

/// A waker that counts its wake-ups.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A `tracing` layer that blocks its thread when a run's span is created, while the run is still being made.
struct InTheMaking {
    inside: mpsc::Sender<()>,
    go_on: std::sync::Mutex<mpsc::Receiver<()>>,
}

impl<S: tracing::Subscriber> Layer<S> for InTheMaking {
    fn on_new_span(&self, _: &tracing::span::Attributes<'_>, _: &tracing::span::Id, _: LayerContext<'_, S>) {
        self.inside.send(()).expect("the parent waits");
        self.go_on.lock().expect("one span").recv().expect("the test says so");
    }
}

// R13: a parent waits for a run that has registered with it and is still being made.
#[test]
fn a_run_that_is_being_made_on_another_thread_ends_before_its_parent() -> TestResult {
    for has_listeners in [true, false] {
        let (tree, recorder) = (Emitter::new(), Recorder::new());
        if has_listeners {
            recorder.ends(&tree);
        }
        let (inside, is_inside) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
        let making = Slot::with(InTheMaking { inside, go_on: may_go_on.into() });
        let (polling, is_inside) = (Slot::new(), Slot::with(is_inside));
        let (polls, child) = (polling.clone(), Arc::new(endless(&tree, "child", &Recorder::new())));
        let parent = Arc::new(below(&tree, "parent", move |(), _: RunContext| {
            let (mut run, making) = (child.run_shared(()), making.take());
            polls.put(thread::spawn(move || {
                let subscriber = tracing_subscriber::registry().with(making);
                tracing::subscriber::with_default(subscriber, || assert!(poll_once(&mut run).is_pending()));
                run
            }));
            is_inside.take().recv().expect("the child is being made");
            async { Ok(()) }
        }));
        let mut run = parent.run_shared(());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        assert!(run.poll_unpin(&mut TaskContext::from_waker(&waker)).is_pending());
        go_on.send(())?;
        let child = polling.take().join().expect("it only polls");
        assert!(woken.0.load(Ordering::SeqCst) > 0 && poll_once(&mut run).is_ready());
        assert_eq!(child.now_or_never().expect("it is over").expect_err("ended").kind(), &ErrorKind::Aborted);
        let expected = [
            "parent.run.start",
            "child.run.start",
            "child.run.error",
            "child.run.finish aborted",
            "parent.run.success",
            "parent.run.finish success",
        ];
        recorder.expect(if has_listeners { &expected[..] } else { &[] }.iter().copied());
    }
    Ok(())
}

/// A `tracing` layer that panics while a run is being made.
struct FailsInTheMaking;

impl<S: tracing::Subscriber> Layer<S> for FailsInTheMaking {
    fn on_new_span(&self, _: &tracing::span::Attributes<'_>, _: &tracing::span::Id, _: LayerContext<'_, S>) {
        panic!("a planned panic");
    }
}

// R13
#[test]
fn a_parent_does_not_wait_for_a_run_that_could_not_be_made() -> TestResult {
    support::silence_planned_panics();
    let (tree, recorder) = recorded();
    let child = Arc::new(endless(&tree, "child", &Recorder::new()));
    let parent = below(&tree, "parent", move |(), _: RunContext| {
        let run = child.run_shared(());
        let subscriber = tracing_subscriber::registry().with(FailsInTheMaking);
        let made = tracing::subscriber::with_default(subscriber, || run.now_or_never());
        let error = made.expect("it is over").expect_err("it cannot be made");
        assert_eq!(error.kind(), &ErrorKind::Panicked);
        async { Ok(()) }
    });
    parent.run(()).now_or_never().expect("it waits for nobody")?;
    recorder.expect(["parent.run.start", "parent.run.success", "parent.run.finish success"]);
    Ok(())
}

// R13, R1
#[tokio::test]
async fn a_run_begun_in_success_ends_before_its_parent_and_a_run_begun_in_finish_has_no_parent() -> TestResult {
    for (stage, has_parent) in [(Stage::Success, true), (Stage::Finish, false)] {
        let (tree, recorder) = recorded();
        let (held, child) = (Slot::new(), Arc::new(endless(&tree, "child", &Recorder::new())));
        let (holds, has) = (held.clone(), Slot::new());
        let tells = has.clone();
        let parent = below(&tree, "parent", |(), _: RunContext| async { Ok(()) });
        let run = parent.run(()).on(stage, move |_: &mut Any, _| {
            let tells = tells.clone();
            let mut child = child.run_shared(()).on_start(move |_, _| {
                let current = RunContext::current().expect("a listener is inside of the run");
                tells.put(current.parent().is_some());
            });
            assert!(poll_once(&mut child).is_pending());
            holds.put(child);
        });
        run.await?;
        assert_eq!(has.take(), has_parent);
        let expected = match has_parent {
            true => [
                "parent.run.start",
                "child.run.start",
                "parent.run.success",
                "child.run.error",
                "child.run.finish aborted",
                "parent.run.finish success",
            ]
            .as_slice(),
            false => &["parent.run.start", "parent.run.success", "child.run.start", "parent.run.finish success"],
        };
        recorder.expect(expected.iter().copied());
        drop(held.take());
    }
    Ok(())
}

// R13, R1: a run ends after its tasks, so runs that the tasks begin inherit its middlewares, including guards.
#[tokio::test]
async fn a_run_begun_while_a_task_is_stopped_has_the_tasks_run_as_its_parent() -> TestResult {
    for has_listeners in [false, true] {
        let tree = Emitter::new();
        if has_listeners {
            tree.observe("*.*", |_: &Any, _| ())?;
        }
        let (held, has) = (Slot::new(), Slot::new());
        let (holds, tells) = (held.clone(), has.clone());
        let child = Arc::new(below(&tree, "child", move |(), ctx: RunContext| {
            tells.put(ctx.parent().is_some());
            pending::<Result<()>>()
        }));
        let parent = below(&tree, "parent", move |(), ctx: RunContext| {
            let (child, holds) = (Arc::clone(&child), holds.clone());
            async move {
                let mut run = Some(child.run_shared(()));
                let begins = AtDrop(move || {
                    let mut run = run.take().expect("dropped once");
                    assert!(poll_once(&mut run).is_pending());
                    holds.put(run);
                });
                drop(ctx.spawn(async move {
                    let _begins = begins;
                    pending::<()>().await;
                }));
                Ok(())
            }
        });
        parent.run(()).await?;
        assert!(has.take(), "heard: {has_listeners}");
        let error = held.take().await.expect_err("it was ended with its parent");
        assert_eq!(error.kind(), &ErrorKind::Aborted);
    }
    Ok(())
}

// R1, R13: if the run began, it would evade the middlewares that its parent has bound for the runs below.
#[tokio::test]
async fn a_run_whose_parent_has_ended_before_its_first_poll_does_not_begin() -> TestResult {
    for has_listeners in [false, true] {
        let (tree, recorder) = (Emitter::new(), Recorder::new());
        if has_listeners {
            recorder.watch(&tree);
        }
        let (held, done) = (Slot::new(), Arc::new(AtomicBool::new(false)));
        let (holds, does) = (held.clone(), Arc::clone(&done));
        let child = Arc::new(below(&tree, "child", move |(), _: RunContext| {
            does.store(true, Ordering::Relaxed);
            async { Ok(()) }
        }));
        let parent = below(&tree, "parent", move |(), _: RunContext| {
            holds.put(child.run_shared(()));
            async { Ok(()) }
        });
        parent.run(()).await?;
        let error = held.take().await.expect_err("its parent has ended");
        assert_eq!(error.kind(), &ErrorKind::Aborted);
        assert_eq!(error.to_string(), "the parent run ended before this run was first polled");
        assert!(!done.load(Ordering::Relaxed));
        let expected = ["parent.run.start", "parent.run.success", "parent.run.finish"];
        recorder.expect(expected.into_iter().filter(|_| has_listeners));
    }
    Ok(())
}

// R7, R13
#[test]
fn a_run_that_begins_while_its_parent_is_aborted_is_aborted_too_or_does_not_begin() -> TestResult {
    for _ in 0..256 {
        let (tree, recorder) = recorded();
        let (handle, begin, held) = (AbortHandle::new(), Arc::new(std::sync::Barrier::new(2)), Slot::new());
        let (holds, child) = (held.clone(), Arc::new(endless(&tree, "child", &Recorder::new())));
        let parent = Arc::new(below(&tree, "parent", move |(), _: RunContext| {
            holds.put(child.run_shared(()));
            pending::<Result<()>>()
        }));
        let mut run = parent.run_shared(()).abort_on(&handle);
        assert!(poll_once(&mut run).is_pending());
        let mut child = held.take();
        let begins = {
            let begin = Arc::clone(&begin);
            thread::spawn(move || {
                begin.wait();
                let is_over = poll_once(&mut child).is_ready();
                (child, is_over)
            })
        };
        begin.wait();
        handle.abort("enough");
        let ended = block_on(run);
        assert_eq!(ended.expect_err("it was aborted").kind(), &ErrorKind::Aborted);
        let (_child, was_over) = begins.join().expect("it only polls");
        let recorded = recorder.take();
        let at = |line: &str| recorded.iter().position(|recorded| recorded == line);
        match at("child.run.finish aborted") {
            Some(finished) => assert!(Some(finished) < at("parent.run.finish aborted"), "{recorded:#?}"),
            None => assert!(was_over && at("child.run.start").is_none(), "{recorded:#?}"),
        }
    }
    Ok(())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}
