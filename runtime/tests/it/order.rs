//! R4: the order of the steps of a run, and exactly one end of every run that has started.

use std::future::pending;
use std::sync::Arc;

use crate::support::{
    Any, Manner, Noted, Recorder, Slot, TestResult, Verb, below, emitter_of, endless, poll_once, silence_planned_panics,
};
use emitree_emitter::{Emitter, EventMeta, Options};
use emitree_runtime::{AbortHandle, Error, ErrorKind, LifecycleRef, Result, Run, RunContext, Runnable, Stage, Status};
use futures_core::future::BoxFuture;

/// The work: depending on its input, it fails, panics or returns the input.
async fn work(what: &str) -> Result<String> {
    match what {
        "fail" => Err(Error::new("the work failed")),
        "panic" => panic!("a planned panic"),
        what => Ok(what.to_owned()),
    }
}

fn worker(tree: &Emitter) -> impl Runnable<Input = String, Output = String> + 'static {
    below(tree, "work", |what: String, _: RunContext| async move { work(&what).await })
}

/// Records the stages of each run, how it ended, and whether it is nested.
fn note_stages(recorder: &Recorder, tree: &Emitter) {
    let notes = recorder.clone();
    let note = move |event: &Any, meta: &EventMeta<'_>| {
        let whose = meta.trace().and_then(|trace| trace.parent_run_id).map_or("", |_| "child ");
        notes.note(match LifecycleRef::of(event, meta) {
            Some(LifecycleRef::Finish(finish)) => format!("{whose}finish {}", finish.status().as_str()),
            _ => format!("{whose}{}", meta.name()),
        });
    };
    tree.observe("*.*", note).expect("a valid matcher");
}

/// A value that records the end of the task that holds it.
struct Ends(Recorder);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.note("5 the task ends");
    }
}

// R4, R13, and the trace in the docs of `Run`
#[tokio::test]
async fn context_bindings_start_work_tasks_success_and_finish_come_in_this_order() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let binds = |label: &'static str| {
        let notes = recorder.clone();
        move |ctx: &RunContext| {
            // Step 1 in the docs of `Run` is complete, so the context and the emitter exist. The earlier bindings of
            // step 2 are complete too.
            assert_eq!(RunContext::current().map(|run| run.run_id()), Some(ctx.run_id()));
            let (user, listeners) = (ctx.get("user_id"), ctx.emitter().listener_count());
            notes.note(format!("2 bind {label}, context {user:?}, {listeners} listeners"));
            Ok(())
        }
    };
    let notes = recorder.clone();
    let trace = below(&tree, "trace", move |n: u32, ctx: RunContext| {
        notes.note(format!("4 work on {n}"));
        let ends = Ends(notes.clone());
        drop(ctx.spawn(async move {
            pending::<()>().await;
            drop(ends);
        }));
        async move { Ok(n * 2) }
    })
    .middleware(binds("the instance's first"))
    .middleware(binds("the instance's second"));

    let [start, success, finish] = [(); 3].map(|()| recorder.clone());
    let run = trace
        .run(1)
        .middleware(binds("the run's first"))
        .on_start(move |event, _| {
            event.input += 1;
            start.note("3 start");
        })
        .middleware(binds("the run's second"))
        .on_success(move |event, _| {
            event.output += 1;
            success.note("6 success");
        })
        .on_finish(move |event, _| finish.note(format!("7 finish {:?}", event.outcome().status())))
        .context(serde_json::json!({"user_id": 7}));
    let output = run.await?;
    recorder.note(format!("7 returned {output}"));
    recorder.expect([
        "2 bind the instance's first, context Some(Number(7)), 0 listeners",
        "2 bind the instance's second, context Some(Number(7)), 0 listeners",
        "2 bind the run's first, context Some(Number(7)), 0 listeners",
        "2 bind the run's second, context Some(Number(7)), 1 listeners",
        "3 start",
        "4 work on 2",
        "5 the task ends",
        "6 success",
        "7 finish Success",
        "7 returned 5",
    ]);
    Ok(())
}

/// The behavior of the work after it has recorded its beginning.
#[derive(Clone, Copy)]
enum Work {
    Returns,
    Fails,
    Waits,
}

/// Returns a run, and the recorder of its events.
fn run_of(work: Work) -> (Run<'static, impl Runnable<Input = (), Output = ()>>, Recorder) {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    note_stages(&recorder, &tree);
    let notes = recorder.clone();
    let runnable = below(&tree, "run", move |(), _: RunContext| {
        let notes = notes.clone();
        async move {
            notes.note("works");
            match work {
                Work::Returns => Ok(()),
                Work::Fails => Err(Error::new("the work failed")),
                Work::Waits => {
                    let _dropped = Noted(notes, "work dropped");
                    pending().await
                }
            }
        }
    });
    (Arc::new(runnable).run_shared(()), recorder)
}

/// Returns a run that begins a child, and awaits the child or leaves it in the slot.
fn run_with_child(
    left: Option<Slot<BoxFuture<'static, Result<()>>>>,
) -> (Run<'static, impl Runnable<Input = ()>>, Recorder) {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    note_stages(&recorder, &tree);
    let child = Arc::new(endless(&tree, "child", &Recorder::new()));
    let runnable = below(&tree, "run", move |(), _: RunContext| {
        let (mut child, left): (BoxFuture<'static, Result<()>>, _) =
            (Box::pin(Arc::clone(&child).run_shared(())), left.clone());
        async move {
            let Some(left) = left else { return child.await };
            assert!(poll_once(&mut child).is_pending());
            left.put(child);
            Ok(())
        }
    });
    (Arc::new(runnable).run_shared(()), recorder)
}

/// Compares the recorded events with a trace, and the trace with its line in the docs of `Run`.
#[track_caller]
fn expect_as_documented(recorder: &Recorder, what_happens: &str, trace: &str) {
    let numbered: Vec<_> = (1..).zip(recorder.take()).map(|(number, line)| format!("{number} {line}")).collect();
    assert_eq!(numbered.join("  "), trace, "{what_happens}");
    let line = format!("\n/// {what_happens:31}{trace}\n");
    assert!(include_str!("../../src/run/mod.rs").contains(&line), "not in the docs of `Run`:{line}");
}

// R4, and the traces in the docs of `Run`
#[tokio::test]
async fn a_run_that_succeeds_or_fails_emits_the_events_in_the_docs_of_run() {
    let (run, notes) = run_of(Work::Returns);
    assert!(run.await.is_ok());
    expect_as_documented(&notes, "the work returns", "1 start  2 works  3 success  4 finish success");

    let (run, notes) = run_of(Work::Returns);
    assert!(run.on_start(|start, _| start.output = Some(())).await.is_ok());
    expect_as_documented(&notes, "a listener of `start` answers", "1 start  2 success  3 finish success");

    let (run, notes) = run_of(Work::Fails);
    assert!(run.await.is_err());
    expect_as_documented(&notes, "the work fails", "1 start  2 works  3 error  4 finish failed");

    let (run, notes) = run_of(Work::Returns);
    assert!(run.on_start(|_, _| Manner::Fails.act()).await.is_err());
    expect_as_documented(&notes, "a listener of `start` fails", "1 start  2 error  3 finish failed");

    let (run, notes) = run_of(Work::Returns);
    assert!(run.on_success(|_, _| Manner::Fails.act()).await.is_err());
    expect_as_documented(&notes, "a listener of `success` fails", "1 start  2 works  3 success  4 finish failed");
}

// R7, R8, and the traces in the docs of `Run`
#[tokio::test]
async fn a_run_that_is_aborted_or_dropped_emits_the_events_in_the_docs_of_run() {
    let (run, notes) = run_of(Work::Waits);
    let handle = AbortHandle::new();
    handle.abort("too late");
    assert!(run.abort_on(&handle).await.is_err());
    expect_as_documented(&notes, "it is aborted before its work", "1 start  2 error  3 finish aborted");

    let (run, notes) = run_of(Work::Waits);
    let handle = AbortHandle::new();
    let mut run = run.abort_on(&handle);
    assert!(poll_once(&mut run).is_pending() && handle.abort("enough"));
    assert!(run.await.is_err());
    let trace = "1 start  2 works  3 work dropped  4 error  5 finish aborted";
    expect_as_documented(&notes, "it is aborted during its work", trace);

    let (mut run, notes) = run_of(Work::Waits);
    assert!(poll_once(&mut run).is_pending());
    drop(run);
    let trace = "1 start  2 works  3 work dropped  4 error  5 finish dropped";
    expect_as_documented(&notes, "its future is dropped", trace);
}

// R13, and the traces in the docs of `Run`
#[tokio::test]
async fn a_child_that_is_ended_by_its_parent_emits_the_events_in_the_docs_of_run() {
    let left = Slot::new();
    let (run, notes) = run_with_child(Some(left.clone()));
    assert!(run.await.is_ok() && left.take().await.is_err());
    let trace = "1 start  2 child start  3 child error  4 child finish aborted  5 success  6 finish success";
    expect_as_documented(&notes, "it leaves a child", trace);

    let (run, notes) = run_with_child(None);
    let handle = AbortHandle::new();
    let mut run = run.abort_on(&handle);
    assert!(poll_once(&mut run).is_pending() && handle.abort("enough"));
    assert!(run.await.is_err());
    let trace = "1 start  2 child start  3 child error  4 child finish aborted  5 error  6 finish aborted";
    expect_as_documented(&notes, "it is aborted, with a child", trace);
}

// R4
#[tokio::test]
async fn a_run_whose_work_succeeds_emits_success_and_finish() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    note_stages(&recorder, &tree);
    assert_eq!(worker(&tree).run("well".into()).await?, "well");
    recorder.expect(["start", "success", "finish success"]);
    Ok(())
}

// R4
#[tokio::test]
async fn an_early_output_ends_with_success_and_finish_without_the_work() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    note_stages(&recorder, &tree);
    let work = worker(&tree);
    let run = work.run("panic".into()).on_start(|start, _| start.output = Some("canned".into()));
    assert_eq!(run.await?, "canned");
    recorder.expect(["start", "success", "finish success"]);
    Ok(())
}

// R4
#[tokio::test]
async fn an_error_of_the_work_ends_with_error_and_finish() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    note_stages(&recorder, &tree);
    let error = worker(&tree).run("fail".into()).await.expect_err("the work fails");
    assert_eq!((error.to_string().as_str(), error.kind()), ("the work failed", &ErrorKind::Failed));
    recorder.expect(["start", "error", "finish failed"]);
}

// R4
#[tokio::test]
async fn a_panic_of_the_work_ends_with_error_and_finish_and_is_an_error() {
    silence_planned_panics();
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    note_stages(&recorder, &tree);
    let error = worker(&tree).run("panic".into()).await.expect_err("the work panics");
    assert_eq!((error.to_string().as_str(), error.kind()), ("a planned panic", &ErrorKind::Panicked));
    recorder.expect(["start", "error", "finish panicked"]);
}

// R4
#[tokio::test]
async fn a_panic_before_the_works_future_exists_or_after_an_await_is_an_error() {
    struct Eager(Emitter, bool);
    impl Runnable for Eager {
        type Input = ();
        type Output = ();
        fn emitter(&self) -> &Emitter {
            &self.0
        }
        fn execute(&self, (): &(), _: &RunContext) -> impl Future<Output = Result<()>> + Send {
            assert!(!self.1, "a planned panic before the future");
            async {
                tokio::task::yield_now().await;
                panic!("a planned panic after an await")
            }
        }
    }
    silence_planned_panics();
    for (eager, message) in [(true, "a planned panic before the future"), (false, "a planned panic after an await")] {
        let (tree, recorder) = (Emitter::new(), Recorder::new());
        note_stages(&recorder, &tree);
        let error = Eager(tree.child("eager").expect("a valid name"), eager).run(()).await.expect_err("it panics");
        assert_eq!(error.to_string(), message);
        recorder.expect(["start", "error", "finish panicked"]);
    }
}

/// Returns the events of a run whose listener misbehaves at a stage, and the status that the caller receives.
async fn misbehaving(what: &str, stage: Stage, verb: Verb, manner: Manner) -> (Vec<String>, Status) {
    silence_planned_panics();
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    note_stages(&recorder, &tree);
    let work = worker(&tree);
    let run = work.run(what.to_owned()).register(verb.registration(Options::new(), stage, manner));
    let status = match run.await {
        Ok(_) => Status::Success,
        Err(error) => emitree_runtime::Outcome::<()>::of_error(&error).status(),
    };
    (recorder.take(), status)
}

// R4, R10
#[tokio::test]
async fn a_run_emits_exactly_one_end_if_a_lifecycle_listener_fails_or_panics() {
    use Manner::{Fails, Panics};
    use Stage::{Error, Finish, Start, Success};
    type Row = (&'static str, Stage, Manner, &'static [&'static str], Status);
    let rows: &[Row] = &[
        ("well", Start, Fails, &["start", "error", "finish failed"], Status::Failed),
        ("well", Start, Panics, &["start", "error", "finish panicked"], Status::Panicked),
        ("well", Success, Fails, &["start", "success", "finish failed"], Status::Failed),
        ("well", Success, Panics, &["start", "success", "finish panicked"], Status::Panicked),
        ("well", Finish, Fails, &["start", "success", "finish success"], Status::Success),
        ("well", Finish, Panics, &["start", "success", "finish success"], Status::Success),
        ("fail", Error, Fails, &["start", "error", "finish failed"], Status::Failed),
        ("fail", Error, Panics, &["start", "error", "finish failed"], Status::Failed),
        ("fail", Finish, Panics, &["start", "error", "finish failed"], Status::Failed),
        ("panic", Error, Fails, &["start", "error", "finish panicked"], Status::Panicked),
        ("panic", Finish, Fails, &["start", "error", "finish panicked"], Status::Panicked),
    ];
    for &(what, stage, manner, events, status) in rows {
        for verb in [Verb::On, Verb::OnAsync] {
            let (recorded, seen) = misbehaving(what, stage, verb, manner).await;
            let case = format!("{what}, {stage:?} {verb:?} {manner:?}");
            assert!(recorded == events && seen == status, "{case}: {recorded:?}, {seen:?}");
        }
    }
}

// R4
#[tokio::test]
async fn the_work_does_not_begin_after_a_start_listener_has_failed() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let notes = recorder.clone();
    let work = below(&tree, "work", move |(), _: RunContext| {
        notes.note("worked");
        async { Ok(()) }
    });
    let run = work.run(()).on_start(|start, _| {
        start.output = Some(());
        Err("a planned failure".into())
    });
    assert!(run.await.is_err());
    recorder.expect([]);
}

// R4
#[tokio::test]
async fn failures_and_panics_of_observers_do_not_affect_the_run() {
    for verb in [Verb::Observe, Verb::ObserveAsync] {
        for stage in [Stage::Start, Stage::Success, Stage::Finish] {
            for manner in [Manner::Fails, Manner::Panics] {
                let (recorded, status) = misbehaving("well", stage, verb, manner).await;
                assert_eq!((recorded.join(" "), status), ("start success finish success".into(), Status::Success));
            }
        }
    }
}

// R4
#[tokio::test]
async fn a_run_whose_binding_fails_or_panics_emits_no_start() {
    silence_planned_panics();
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let notes = recorder.clone();
    let bind = move |manner: Manner| {
        let notes = notes.clone();
        move |_: &RunContext| {
            notes.note(format!("bound {manner:?}"));
            manner.act().map_err(Error::from_boxed)
        }
    };
    let cases = [
        (Manner::Fails, "a planned failure", ErrorKind::Failed),
        (Manner::Panics, "a planned panic", ErrorKind::Panicked),
    ];
    for (manner, message, kind) in cases {
        let run = worker(&tree);
        let run = run.run("well".into()).middleware(bind(manner)).middleware(bind(Manner::Fine));
        let error = run.await.expect_err("it cannot be bound");
        assert_eq!((error.to_string().as_str(), error.kind()), (message, &kind));
        recorder.expect([&*format!("bound {manner:?}")]);
    }
}

// R4
#[tokio::test]
async fn an_emitter_stays_usable_after_every_failure() -> TestResult {
    silence_planned_panics();
    let tree = Emitter::new();
    let work = worker(&tree);
    emitter_of(&work).with(Options::new().once()).on(Stage::Start, |_: &mut Any, _| Manner::Panics.act())?;
    assert!(work.run("well".into()).await.is_err());
    assert!(work.run("panic".into()).await.is_err());
    assert_eq!(work.run("well".into()).await?, "well");
    Ok(())
}
