//! Tasks that a run spawns belong to the run, and are over before it ends (R9, R13).

use std::future::pending;
use std::sync::{Arc, Mutex};

use crate::support::{Recorder, TestResult, below, silence_planned_panics};
use emitree_emitter::Emitter;
use emitree_runtime::{Error, ErrorKind, Result, RunContext, Runnable, Task};

/// A value that records its drop.
struct Noted(Recorder, &'static str);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.note(self.1);
    }
}

/// A future that never completes, and records its beginning and its drop.
async fn endless(recorder: Recorder) {
    recorder.note("the task begins");
    let _noted = Noted(recorder, "the task is dropped");
    pending::<()>().await;
}

fn spawner(tree: &Emitter, recorder: &Recorder) -> impl Runnable<Input = String, Output = ()> + 'static {
    recorder.watch(tree);
    let recorder = recorder.clone();
    below(tree, "run", move |how: String, ctx: RunContext| {
        let task = ctx.spawn(endless(recorder.clone()));
        async move {
            drop(task);
            tokio::task::yield_now().await;
            match &*how {
                "succeed" => Ok(()),
                "fail" => Err(Error::new("broken")),
                _ => panic!("a planned panic"),
            }
        }
    })
}

// R13
#[tokio::test]
async fn tasks_still_running_when_the_work_ends_are_aborted_and_awaited_before_the_runs_end() {
    silence_planned_panics();
    for (how, event) in [("succeed", "run.run.success"), ("fail", "run.run.error"), ("panic", "run.run.error")] {
        let (tree, recorder) = (Emitter::new(), Recorder::new());
        let result = spawner(&tree, &recorder).run(how.into()).await;
        assert_eq!(result.is_ok(), how == "succeed");
        recorder.expect(["run.run.start", "the task begins", "the task is dropped", event, "run.run.finish"]);
    }
}

// R13
#[tokio::test]
async fn a_task_that_never_began_is_dropped_before_the_runs_end() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let notes = recorder.clone();
    let run = below(&tree, "run", move |(), ctx: RunContext| {
        let noted = Noted(notes.clone(), "the task is dropped");
        drop(ctx.spawn(async move {
            let _noted = noted;
            pending::<()>().await;
        }));
        async { Ok(()) }
    });
    run.run(()).await?;
    recorder.expect(["run.run.start", "the task is dropped", "run.run.success", "run.run.finish"]);
    Ok(())
}

// R13
#[tokio::test]
async fn awaiting_a_task_returns_its_output_and_dropping_its_handle_does_not_stop_it() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let notes = recorder.clone();
    let run = below(&tree, "run", move |(), ctx: RunContext| {
        let notes = notes.clone();
        async move {
            let (sender, receiver) = tokio::sync::oneshot::channel::<u32>();
            drop(ctx.spawn(async move {
                tokio::task::yield_now().await;
                notes.note("goes on");
                sender.send(20).expect("it is awaited");
            }));
            let one = ctx.spawn(async { 1 });
            Ok(one.await? + receiver.await?)
        }
    });
    assert_eq!(run.run(()).await?, 21);
    recorder.expect(["goes on"]);
    Ok(())
}

// R6
#[tokio::test]
async fn awaiting_a_task_that_panicked_returns_the_panic_as_an_error() {
    silence_planned_panics();
    let run = below(&Emitter::new(), "run", |(), ctx: RunContext| async move {
        ctx.spawn(async { crate::support::Manner::Panics.act().map_err(|error| error.to_string()) }).await
    });
    let error = run.run(()).await.expect_err("the task panics");
    assert_eq!((error.kind(), error.to_string().as_str()), (&ErrorKind::Panicked, "a planned panic"));
}

// R13
#[tokio::test]
async fn a_run_that_has_ended_accepts_no_tasks() -> TestResult {
    let recorder = Recorder::new();
    let kept: Arc<Mutex<Option<RunContext>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let run = below(&Emitter::new(), "run", move |(), ctx: RunContext| {
        *keep.lock().expect("nobody panics here") = Some(ctx);
        async { Ok(()) }
    });
    run.run(()).await?;
    let ctx = kept.lock().expect("nobody panics here").take().expect("the work has kept it");
    let task: Task<()> = ctx.spawn(endless(recorder.clone()));
    assert_eq!(task.await.expect_err("too late").kind(), &ErrorKind::Aborted);
    recorder.expect([]);
    Ok(())
}

// R13
#[tokio::test]
async fn a_task_spawned_in_bind_is_dropped_if_a_later_middleware_fails_to_bind() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let notes = recorder.clone();
    let run = below(&tree, "run", |(), _: RunContext| async { Ok(()) });
    let noted = Arc::new(Mutex::new(Some(Noted(notes, "the task is dropped"))));
    let result: Result<()> = run
        .run(())
        .middleware(move |ctx: &RunContext| {
            let noted = noted.lock().expect("nobody panics here").take();
            drop(ctx.spawn(async move {
                let _noted = noted;
                pending::<()>().await;
            }));
            Ok(())
        })
        .middleware(|_: &RunContext| Err(Error::new("cannot be bound")))
        .await;
    assert!(result.is_err());
    recorder.expect(["the task is dropped"]);
}

// R4, R13
#[tokio::test]
async fn awaited_runs_in_tasks_finish_before_their_parent() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let child = Arc::new(below(&tree, "child", |(), _: RunContext| async { Ok(()) }));
    let parent = below(&tree, "parent", move |(), ctx: RunContext| {
        let child = Arc::clone(&child);
        async move { ctx.spawn(async move { child.run(()).await }).await? }
    });
    parent.run(()).await?;
    recorder.expect([
        "parent.run.start",
        "child.run.start",
        "child.run.success",
        "child.run.finish",
        "parent.run.success",
        "parent.run.finish",
    ]);
    Ok(())
}

// R8, R13
#[tokio::test]
async fn the_tasks_of_a_run_that_is_dropped_are_aborted() -> TestResult {
    let tree = Emitter::new();
    let alive = Arc::new(());
    let held = Arc::downgrade(&alive);
    let (started, has_started) = tokio::sync::oneshot::channel();
    let started = Mutex::new(Some(started));
    let spawns = below(&tree, "spawns", move |(), ctx: RunContext| {
        let (alive, started) = (Arc::clone(&alive), started.lock().expect("nobody panics here").take());
        async move {
            drop(ctx.spawn(async move {
                let _alive = alive;
                pending::<()>().await;
            }));
            started.expect("one run").send(()).expect("somebody waits");
            pending::<Result<()>>().await
        }
    });
    let mut run = Box::pin(spawns.run(()));
    tokio::select! {
        _ = &mut run => unreachable!("it waits for ever"),
        started = has_started => started?,
    }
    drop(run);
    drop(spawns);
    while held.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
    Ok(())
}
