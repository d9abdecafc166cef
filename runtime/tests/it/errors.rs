//! R10: an error keeps its kind and its causes, and `explain` lists all causes.

use std::fmt;
use std::sync::Arc;

use crate::support::{Any, Manner, Recorder, TestResult, below, emitter_of, silence_planned_panics};
use emitree_emitter::{BoxError, EmitError, EmitErrorKind, Emitter};
use emitree_runtime::{
    AnyRunnable, Error, ErrorKind, ErrorReport, Interrupt, Lifecycle, Outcome, Result, RunContext, Runnable, Stage,
    lifecycle_of,
};
use serde_json::Value;

/// A user's error type, with an optional cause.
#[derive(Debug)]
struct Broken(Option<BoxError>);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("broken")
    }
}

impl std::error::Error for Broken {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.as_deref().map(|cause| cause as _)
    }
}

fn missing() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::NotFound, "no such file")
}

// R10
#[tokio::test]
async fn the_question_mark_operator_converts_any_std_error() {
    fn parse() -> Result<u32> {
        Ok("many".parse::<u32>()?)
    }
    fn read() -> Result<()> {
        Err(missing())?
    }
    fn json() -> Result<Vec<u32>> {
        Ok(serde_json::from_str("[")?)
    }
    async fn listen() -> Result<()> {
        let tree = Emitter::new();
        tree.on("", |_: &mut Any, _| ())?;
        Ok(tree.emit("no-name", &mut ()).await?)
    }
    let messages = [
        parse().expect_err("no number").to_string(),
        read().expect_err("no file").to_string(),
        json().expect_err("no list").to_string(),
        listen().await.expect_err("no matcher").to_string(),
    ];
    assert_eq!(
        messages,
        [
            "invalid digit found in string",
            "no such file",
            "EOF while parsing a list at line 1 column 1",
            "an empty matcher matches nothing; use \"*\" for every own event or \"*.*\" for every event",
        ]
    );
}

// R10
#[test]
fn an_error_is_unchanged_after_it_has_been_boxed() {
    let before = Error::denied("desk", "closed").detail("user", 7).retryable(true);
    let boxed: BoxError = before.clone().into();
    assert_eq!(boxed.to_string(), "closed");
    let after = Error::from_boxed(boxed);
    assert_eq!(after.kind(), &ErrorKind::Denied { by: "desk".into() });
    assert_eq!(after.report(), before.report());

    fn through_question_mark(error: Error) -> std::result::Result<(), BoxError> {
        Err(error)?
    }
    let boxed = through_question_mark(before.clone()).expect_err("it was one");
    assert_eq!(Error::from_boxed(boxed).report(), before.report());
}

// R10
#[test]
fn find_returns_every_error_that_an_error_was_made_from() {
    let error = Error::from(missing()).message("the list is missing").detail("path", "list.txt");
    assert_eq!(error.find::<std::io::Error>().map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound));
    assert!(error.find::<Broken>().is_none());
    assert_eq!(error.details()["path"], "list.txt");

    let deep = Error::from(Broken(Some(error.into()))).message("no answer");
    assert!(deep.find::<Broken>().is_some());
    assert!(deep.find::<std::io::Error>().is_some(), "through an error of ours inside one of the user's");
    let bare = Error::from(Broken(Some(Error::from(missing()).into())));
    assert!(bare.find::<std::io::Error>().is_some(), "where that has no message of its own");
}

// R10
#[test]
fn explain_prints_every_cause_once_and_all_details() {
    let rows = [
        (Error::new("broken"), "broken"),
        (Error::from(missing()), "no such file"),
        (
            Error::from(missing()).message("no list").detail("path", "list.txt").detail("try", 2),
            "no list\n  caused by: no such file\n  path: \"list.txt\"\n  try: 2",
        ),
        (
            Error::from(missing()).message("no list").message("no answer"),
            "no answer\n  caused by: no list\n  caused by: no such file",
        ),
        (Error::new("a").message("b").message("c"), "c\n  caused by: b\n  caused by: a"),
        (
            Error::from(Broken(Some(Error::from(missing()).message("no list").into()))),
            "broken\n  caused by: no list\n  caused by: no such file",
        ),
        (
            Error::from(Broken(Some(Error::from(missing()).into()))).message("no answer"),
            "no answer\n  caused by: broken\n  caused by: no such file",
        ),
        (Error::denied("desk", "closed"), "denied by desk: closed"),
        (Error::halted("budget", "spent"), "halted by budget: spent"),
    ];
    for (error, explained) in rows {
        assert_eq!(error.explain(), explained);
        assert_eq!(format!("{error:?}"), explained, "what `main` prints");
        assert_eq!(error.report().explain(), explained);
        let report = serde_json::to_string(&error).expect("serialisable");
        let read: ErrorReport = serde_json::from_str(&report).expect("it was written by us");
        assert_eq!(read.explain(), explained, "from a recording");
    }
}

// R10
#[test]
fn an_error_restored_from_a_stored_report_has_the_same_kind_and_details() {
    let rows = [
        Error::from(missing()).message("no list").message("no answer").detail("path", "list.txt"),
        Error::new("later").retryable(true),
        Error::new("never").fatal(true),
        Error::denied("desk", "closed"),
        Error::halted("budget", "spent"),
        Error::aborted("enough"),
        Error::timed_out("late"),
        Error::timed_out("late").retryable(true),
        Error::interrupted(Interrupt::new("approval", "really?")),
        Error::retry_with("again", 3).detail("by", "judge"),
    ];
    for error in rows {
        let kept = serde_json::to_string(&error).expect("serialisable");
        let back = Error::from(serde_json::from_str::<ErrorReport>(&kept).expect("it was written by us"));
        assert_eq!(back.report(), error.report());
        assert_eq!((back.interrupt(), back.retry_request()), (error.interrupt(), error.retry_request()));
    }
}

// M7
#[tokio::test]
async fn a_retry_request_restored_from_a_report_does_not_cause_a_retry() {
    let kept = Error::retry("again").report();
    let tree = Emitter::new();
    let asks = below(&tree, "asks", move |(): (), ctx| {
        let error = Error::from(kept.clone());
        async move { Err::<(), _>(error.detail("attempt", ctx.attempt())) }
    });
    let error = asks.run(()).max_middleware_retries(3).await.expect_err("it is not met");
    assert_eq!(error.details()["attempt"], 0);
}

// R10
#[test]
fn a_change_to_a_clone_of_an_error_does_not_affect_the_original() {
    let one = Error::from(missing());
    let two = one.clone().detail("try", 2).retryable(true);
    assert!(one.details().is_empty() && !one.is_retryable());
    assert!(two.is_retryable() && two.find::<std::io::Error>().is_some());
}

fn echo(tree: &Emitter) -> impl Runnable<Input = u32, Output = u32> + 'static {
    below(tree, "echo", |n: u32, _: RunContext| async move { Ok(n) })
}

// R10
#[tokio::test]
async fn an_error_returned_by_a_listener_keeps_its_kind_details_and_causes() -> TestResult {
    let tree = Emitter::new();
    let echo = echo(&tree);
    let before = Error::from(missing()).message("no list").detail("path", "list.txt").retryable(true);
    let thrown = before.clone();
    echo.on_start(move |_, _| Err(thrown.clone().into()))?;
    let line = line!() - 1;

    let after = echo.run(1).await.expect_err("a listener failed");
    assert_eq!((after.to_string(), after.kind(), after.is_retryable()), ("no list".into(), before.kind(), true));
    assert!(after.find::<std::io::Error>().is_some());
    assert_eq!(
        after.explain(),
        format!(
            "no list\n  caused by: no such file\n  event: \"echo.run.start\"\n  \
             listener: \"runtime/tests/it/errors.rs:{line}:10\"\n  path: \"list.txt\""
        )
    );
    Ok(())
}

// R10
#[tokio::test]
async fn a_foreign_error_of_a_listener_names_the_event_and_the_listeners_place_of_registration() -> TestResult {
    let tree = Emitter::new();
    let echo = echo(&tree);
    echo.on_start(|_, _| Err(missing().into()))?;
    let line = line!() - 1;
    let error = echo.run(1).await.expect_err("a listener failed");
    assert_eq!(
        error.explain(),
        format!(
            "a listener of `echo.run.start` failed (registered at runtime/tests/it/errors.rs:{line}:10)\n  \
             caused by: no such file"
        )
    );
    assert!(matches!(error.find::<EmitError>().map(EmitError::kind), Some(EmitErrorKind::Listener { .. })));
    assert!(error.find::<std::io::Error>().is_some());
    Ok(())
}

/// Returns a runnable whose run nests `levels` further runs. In each run but the innermost, a listener of `start`
/// awaits the next run and returns its error. In the innermost run, the listener fails with the error that `error`
/// returns.
fn nest(tree: &Emitter, levels: u32, error: fn() -> BoxError) -> Arc<dyn AnyRunnable> {
    let level = below(tree, &format!("level{levels}"), |(), _: RunContext| async { Ok(()) });
    let Some(lower) = levels.checked_sub(1) else {
        level.on_start(move |_, _| Err(error())).expect("a valid matcher");
        return Arc::new(level);
    };
    let next = nest(tree, lower, error);
    let start = lifecycle_of(&level).only([Stage::Start]);
    let listening = emitter_of(&level).on_async(start, move |_: &mut Any, _| {
        let next = Arc::clone(&next);
        Box::pin(async move { Ok(next.run_json(Value::Null).await.map(drop)?) })
    });
    listening.expect("a valid matcher");
    Arc::new(level)
}

// R10
#[tokio::test]
async fn the_error_of_a_deeply_nested_listener_is_wrapped_once() {
    let deep = |error| async move { nest(&Emitter::new(), 4, error).run_json(Value::Null).await };

    let foreign = deep(|| missing().into()).await.expect_err("the innermost listener failed");
    let causes = foreign.report().causes;
    assert_eq!(
        (foreign.to_string().starts_with("a listener of `level0.run.start` failed"), &*causes),
        (true, &["no such file".to_owned()][..])
    );

    let ours = deep(|| Error::denied("desk", "closed").detail("event", "of mine").into()).await;
    let ours = ours.expect_err("the innermost listener failed");
    assert_eq!((ours.to_string().as_str(), ours.kind()), ("closed", &ErrorKind::Denied { by: "desk".into() }));
    assert_eq!(ours.details()["event"], "of mine", "facts of the user's are not overwritten");
    assert!(ours.report().causes.is_empty());

    let told = deep(|| Error::new("broken").into()).await.expect_err("the innermost listener failed");
    assert_eq!(told.details()["event"], "level0.run.start", "the first one tells");
}

// R10
#[tokio::test]
async fn the_error_of_a_nested_run_is_not_wrapped_by_the_runs_above() {
    let tree = Emitter::new();
    let inner = Arc::new(below(&tree, "inner", |(), _: RunContext| async { Err::<(), _>(missing().into()) }));
    let middle = Arc::new(below(&tree, "middle", move |(), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(()).await }
    }));
    let outer = below(&tree, "outer", move |(), _: RunContext| {
        let middle = Arc::clone(&middle);
        async move { middle.run(()).await }
    });
    assert_eq!(outer.run(()).await.expect_err("the work fails").explain(), "no such file");
}

// R10
#[tokio::test]
async fn a_failed_emit_in_the_work_returns_an_error_of_the_listeners_kind() {
    let tree = Emitter::new();
    let talk =
        below(&tree, "talk", |(), ctx: RunContext| async move { Ok(ctx.emitter().emit("word", &mut ()).await?) });
    let run = talk.run(()).on("word", |_: &mut (), _| Err(Error::denied("desk", "hush").into()));
    assert_eq!(run.await.expect_err("denied").kind(), &ErrorKind::Denied { by: "desk".into() });

    silence_planned_panics();
    let run = talk.run(()).on("word", |_: &mut (), _| Manner::Panics.act());
    let error = run.await.expect_err("panicked");
    assert_eq!(error.kind(), &ErrorKind::Panicked);
    assert!(error.explain().contains("talk.word") && error.explain().contains("a planned panic"), "{error:?}");
}

// R10
#[tokio::test]
async fn a_failing_success_listener_makes_the_run_fail_without_an_error_event() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let echo = echo(&tree);
    let notes = recorder.clone();
    echo.on_finish(move |finish, _| notes.note(format!("finish {:?}", finish.outcome().status())))?;
    recorder.watch(&tree);
    echo.on_success(|_, _| Err("too late".into()))?;
    assert!(echo.run(1).await.expect_err("a listener failed").explain().contains("too late"));
    recorder.expect(["echo.run.start", "echo.run.success", "finish Failed", "echo.run.finish"]);
    Ok(())
}

// R10
#[tokio::test]
async fn a_failing_finish_or_error_listener_never_hides_the_runs_own_outcome() -> TestResult {
    silence_planned_panics();
    let tree = Emitter::new();
    let work = below(&tree, "work", |fails: bool, _: RunContext| async move {
        if fails { Err(Error::denied("desk", "closed")) } else { Ok(7) }
    });
    for manner in [Manner::Fails, Manner::Panics] {
        work.on_error(move |_, _| manner.act())?;
        work.on_finish(move |_, _| manner.act())?;
        assert_eq!(work.run(false).await?, 7);
        let error = work.run(true).await.expect_err("denied");
        assert_eq!(
            (error.explain().as_str(), error.kind()),
            ("denied by desk: closed", &ErrorKind::Denied { by: "desk".into() })
        );
        emitter_of(&work).reset();
    }
    Ok(())
}

// R10
#[tokio::test]
async fn error_and_finish_contain_the_error_that_the_caller_receives() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let work = below(&tree, "work", |(), _: RunContext| async { Err::<(), _>(Error::new("broken").detail("n", 1)) });
    let [errors, finishes] = [(); 2].map(|()| recorder.clone());
    work.on_error(move |failure, _| errors.note(failure.error().explain()))?;
    work.on_finish(move |finish, _| match finish.outcome() {
        Outcome::Failed { error } => finishes.note(error.explain()),
        other => panic!("{other:?}"),
    })?;
    let error = work.run(()).await.expect_err("broken");
    recorder.expect([&*error.explain(), &error.explain()]);
    Ok(())
}
