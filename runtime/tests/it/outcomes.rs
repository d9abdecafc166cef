//! R6: `finish` and callers receive the outcomes of runs, and some outcomes are control flow.

use crate::support::{Any, Recorder, TestResult, below, silence_planned_panics};
use emitree_emitter::Emitter;
use emitree_runtime::{
    Error, ErrorKind, Interrupt, Lifecycle, LifecycleRef, Outcome, Result, RunContext, Runnable, Stage, Status,
};
use serde_json::json;

async fn end(how: &str) -> Result<u32> {
    match how {
        "success" => Ok(1),
        "failed" => Err(Error::new("broken")),
        "invalid" => Ok(serde_json::from_str("many")?),
        "denied" => Err(Error::denied("desk", "not today")),
        "halted" => Err(Error::halted("budget", "spent")),
        how => panic!("planned: {how}"),
    }
}

fn ending(tree: &Emitter) -> impl Runnable<Input = String, Output = u32> + 'static {
    below(tree, "ending", |how: String, _: RunContext| async move { end(&how).await })
}

// R6
#[tokio::test]
async fn finish_and_the_caller_receive_the_outcome_of_each_end_of_the_work() {
    silence_planned_panics();
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let notes = recorder.clone();
    let note = move |event: &Any, meta: &emitree_emitter::EventMeta<'_>| {
        if let Some(LifecycleRef::Finish(finish)) = LifecycleRef::of(event, meta) {
            notes.note(format!("{} {}", finish.status().as_str(), finish.outcome_json()));
        }
    };
    tree.observe(Stage::Finish, note).expect("a valid matcher");
    let ending = ending(&tree);
    let error = |message: &str| json!({"kind": "failed", "message": message, "is_retryable": false, "is_fatal": false});
    let rows = [
        ("success", json!({"status": "success", "output": 1}), None),
        ("failed", json!({"status": "failed", "error": error("broken")}), Some(ErrorKind::Failed)),
        (
            "invalid",
            json!({"status": "failed", "error": error("expected value at line 1 column 1")}),
            Some(ErrorKind::Failed),
        ),
        (
            "denied",
            json!({"status": "denied", "by": "desk", "reason": "not today"}),
            Some(ErrorKind::Denied { by: "desk".into() }),
        ),
        (
            "halted",
            json!({"status": "halted", "by": "budget", "reason": "spent"}),
            Some(ErrorKind::Halted { by: "budget".into() }),
        ),
        ("boom", json!({"status": "panicked", "message": "planned: boom"}), Some(ErrorKind::Panicked)),
    ];
    for (how, outcome, kind) in rows {
        let result = ending.run(how.into()).await;
        assert_eq!(result.err().map(|error| error.kind().clone()), kind, "{how}");
        let status = outcome["status"].as_str().expect("a string");
        recorder.expect([&*format!("{status} {outcome}")]);
    }
}

// R6
#[tokio::test]
async fn a_typed_outcome_can_be_matched_on() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let ending = ending(&tree);
    let notes = recorder.clone();
    ending.on_finish(move |finish, _| match finish.outcome() {
        Outcome::Success { output } => notes.note(format!("success {output}")),
        Outcome::Denied { by, reason } => notes.note(format!("denied by {by}: {reason}")),
        other => notes.note(other.status().as_str()),
    })?;
    ending.run("success".into()).await?;
    assert!(ending.run("denied".into()).await.is_err());
    assert!(ending.run("failed".into()).await.is_err());
    recorder.expect(["success 1", "denied by desk: not today", "failed"]);
    Ok(())
}

// R6
#[tokio::test]
async fn listeners_can_deny_or_halt_a_run_by_returning_an_error() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let ending = ending(&tree);
    let notes = recorder.clone();
    ending.on_finish(move |finish, _| notes.note(finish.outcome().status().as_str())).expect("a valid matcher");
    let rows = [
        (Error::denied("desk", "closed"), ErrorKind::Denied { by: "desk".into() }),
        (Error::halted("budget", "spent"), ErrorKind::Halted { by: "budget".into() }),
    ];
    for (error, kind) in rows {
        let at_start = error.clone();
        let started = ending.run("success".into()).on_start(move |_, _| Err(at_start.clone().into())).await;
        let ended = ending.run("success".into()).on_success(move |_, _| Err(error.clone().into())).await;
        for result in [started, ended] {
            assert_eq!(result.expect_err("a listener said no").kind(), &kind);
        }
    }
    recorder.expect(["denied", "denied", "halted", "halted"]);
}

// R6, M9
#[test]
fn control_flow_is_never_fatal_and_only_a_timeout_can_be_marked_as_retryable() {
    let rows = [
        (Error::new("broken"), (true, true)),
        (Error::timed_out("late"), (true, false)),
        (Error::denied("desk", "no"), (false, false)),
        (Error::halted("desk", "stop"), (false, false)),
        (Error::aborted("gone"), (false, false)),
        (Error::interrupted(Interrupt::new("question", 1)), (false, false)),
        (Error::retry("again"), (false, false)),
    ];
    for (error, expected) in rows {
        assert_eq!((error.is_retryable(), error.is_fatal()), (false, false), "unless it is said: {error}");
        let said = error.retryable(true).fatal(true);
        assert_eq!((said.is_retryable(), said.is_fatal()), expected, "{said}");
        let report = said.report();
        assert_eq!((report.is_retryable, report.is_fatal), expected, "{said}");
    }
    let kinds = [
        (ErrorKind::Failed, false),
        (ErrorKind::Panicked, false),
        (ErrorKind::Invalid, false),
        (ErrorKind::Denied { by: String::new() }, true),
        (ErrorKind::Halted { by: String::new() }, true),
        (ErrorKind::Aborted, true),
        (ErrorKind::TimedOut, true),
        (ErrorKind::Interrupted, true),
    ];
    for (kind, is_control_flow) in kinds {
        assert_eq!(kind.is_control_flow(), is_control_flow, "{kind:?}");
    }
}

// R6
#[test]
fn a_status_has_the_same_name_in_json_and_as_str() {
    let all = [
        Status::Success,
        Status::Failed,
        Status::Denied,
        Status::Halted,
        Status::Aborted,
        Status::TimedOut,
        Status::Interrupted,
        Status::Panicked,
        Status::Dropped,
    ];
    for status in all {
        assert_eq!(json!(status), json!(status.as_str()));
    }
}

// R6
#[tokio::test]
async fn an_outcome_passes_through_the_runs_above() {
    silence_planned_panics();
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let notes = recorder.clone();
    let note = move |event: &Any, meta: &emitree_emitter::EventMeta<'_>| {
        if let Some(LifecycleRef::Finish(finish)) = LifecycleRef::of(event, meta) {
            notes.note(format!("{} {}", meta.path(), finish.status().as_str()));
        }
    };
    tree.observe(Stage::Finish, note).expect("a valid matcher");
    let inner = std::sync::Arc::new(ending(&tree));
    let outer = below(&tree, "outer", move |how: String, _: RunContext| {
        let inner = std::sync::Arc::clone(&inner);
        async move { inner.run(how).await }
    });
    for how in ["success", "failed", "denied", "halted", "panicked"] {
        let passed = outer.run(how.into()).await;
        assert_eq!(passed.is_ok(), how == "success");
        recorder.expect([&*format!("ending.run.finish {how}"), &format!("outer.run.finish {how}")]);
    }
}
