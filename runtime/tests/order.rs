//! R4: the order of a run, and exactly one end of every run that has started, whatever happens.

mod support;

use emitree_emitter::{Emitter, Options};
use emitree_runtime::{Error, ErrorKind, LifecycleRef, Result, RunContext, Runnable, Stage, Status};
use support::{Any, Manner, Recorder, TestResult, Verb, below, emitter_of, silence_planned_panics};

/// What the work does with its input.
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

/// Notes the stages of each run, and how it ended.
fn note_stages(recorder: &Recorder, tree: &Emitter) {
    let notes = recorder.clone();
    let note = move |event: &Any, meta: &emitree_emitter::EventMeta<'_>| match LifecycleRef::of(event, meta) {
        Some(LifecycleRef::Finish(finish)) => notes.note(format!("finish {}", finish.status().as_str())),
        _ => notes.note(meta.name()),
    };
    tree.observe("*.*", note).expect("a valid matcher");
}

/// Notes when the task that it is in ends.
struct Ends(Recorder);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.note("5 the task ends");
    }
}

// R4, R13, and the trace in the docs of `Run`
#[tokio::test]
async fn context_then_listeners_and_middlewares_then_start_then_work_then_success_then_finish() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let binds = |label: &'static str| {
        let notes = recorder.clone();
        move |ctx: &RunContext| {
            // 1 has happened: context and emitter are there; and of 2, the run's listeners.
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
            std::future::pending::<()>().await;
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
        "2 bind the instance's first, context Some(Number(7)), 3 listeners",
        "2 bind the instance's second, context Some(Number(7)), 3 listeners",
        "2 bind the run's first, context Some(Number(7)), 3 listeners",
        "2 bind the run's second, context Some(Number(7)), 3 listeners",
        "3 start",
        "4 work on 2",
        "5 the task ends",
        "6 success",
        "7 finish Success",
        "7 returned 5",
    ]);
    Ok(())
}

// R4
#[tokio::test]
async fn success_ends_with_success_and_finish() -> TestResult {
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
async fn a_panic_before_the_works_first_await_or_after_it_is_an_error_too() {
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

/// The events of a run whose listener misbehaves at a stage, and how the caller sees it end.
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
async fn a_failing_or_panicking_listener_of_any_of_the_four_leaves_one_end() {
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
async fn a_start_that_failed_does_not_begin_the_work() {
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
async fn observers_of_a_run_may_misbehave_as_they_like() {
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
async fn where_binding_fails_or_panics_there_is_no_start() {
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
