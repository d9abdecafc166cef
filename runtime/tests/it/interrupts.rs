//! M8, M9, R6, R10: interrupts as data, ends that are not failures, and control flow that is found among the causes
//! of an error.

use std::fmt;

use crate::support::{Any, Recorder, TestResult, below};
use emitree_emitter::{BoxError, Emitter};
use emitree_runtime::{
    Error, ErrorKind, ErrorReport, Interrupt, LifecycleRef, Outcome, RunContext, Runnable, Stage, runnable_fn,
};
use serde_json::json;

// M8
#[tokio::test]
async fn an_interrupt_is_data_that_can_be_stored_and_restored() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let interrupt = Interrupt::new("approval", json!({"tool": "delete"})).with_id("call-7");
    let asked = interrupt.clone();
    let asks = below(&tree, "asks", move |(): (), _: RunContext| {
        let interrupt = asked.clone();
        async move { Err::<(), _>(Error::interrupted(interrupt)) }
    });
    let notes = recorder.clone();
    tree.observe(Stage::Finish, move |event: &Any, meta| {
        if let Some(LifecycleRef::Finish(finish)) = LifecycleRef::of(event, meta) {
            notes.note(finish.outcome_json().to_string());
        }
    })?;
    let error = asks.run(()).await.expect_err("it is interrupted");
    assert!(error.is_interrupted() && !error.is_retryable() && !error.is_fatal());
    assert_eq!(error.interrupt(), Some(&interrupt));
    let stored =
        json!({"status": "interrupted", "interrupt": {"id": "call-7", "kind": "approval", "data": {"tool": "delete"}}});
    recorder.expect([&*stored.to_string()]);
    assert_eq!(serde_json::from_value::<Interrupt>(stored["interrupt"].clone())?, interrupt);
    let report: ErrorReport = serde_json::from_value(json!(error))?;
    assert_eq!(report.interrupt, Some(interrupt));
    Ok(())
}

// M8
#[test]
fn each_interrupt_has_its_own_id() {
    assert_ne!(Interrupt::new("approval", ()).id, Interrupt::new("approval", ()).id);
}

// R6
#[test]
fn each_predicate_of_an_error_is_true_only_for_its_own_kind() {
    type Ask = fn(&Error) -> bool;
    let asks: [(&str, Ask); 6] = [
        ("denied", Error::is_denied),
        ("halted", Error::is_halted),
        ("aborted", Error::is_aborted),
        ("timed_out", Error::is_timed_out),
        ("interrupted", Error::is_interrupted),
        ("retry", Error::is_retry),
    ];
    let errors = [
        Error::denied("desk", "no"),
        Error::halted("desk", "stop"),
        Error::aborted("gone"),
        Error::timed_out("slow"),
        Error::interrupted(Interrupt::new("question", 1)),
        Error::retry("again"),
        Error::new("broken"),
    ];
    for (i, error) in errors.into_iter().enumerate() {
        let said = error.retryable(true).fatal(true);
        let is: Vec<_> = asks.iter().filter(|(_, ask)| ask(&said)).map(|(name, _)| *name).collect();
        let expected: Vec<_> = asks.get(i).map(|(name, _)| *name).into_iter().collect();
        assert_eq!(is, expected, "{said}");
        let is_failure = i == asks.len();
        assert_eq!((said.is_control_flow(), said.is_fatal()), (!is_failure, is_failure));
    }
}

// R6
#[test]
fn an_unmet_retry_request_has_the_outcome_failed() {
    assert!(matches!(Outcome::<()>::of_error(&Error::retry("again")), Outcome::Failed { .. }));
}

/// A user's error type that wraps any other error.
#[derive(Debug)]
struct Wrapped(BoxError);

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tool failed")
    }
}

impl std::error::Error for Wrapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

// M9
#[test]
fn control_flow_inside_a_users_error_keeps_its_kind_and_the_outer_message() {
    let interrupt = Interrupt::new("question", 1);
    let rows = [
        (Error::denied("desk", "no"), ErrorKind::Denied { by: "desk".into() }),
        (Error::interrupted(interrupt.clone()), ErrorKind::Interrupted),
        (Error::retry("again"), ErrorKind::Retry),
        (Error::timed_out("late").retryable(true), ErrorKind::TimedOut),
        (Error::timed_out("late"), ErrorKind::TimedOut),
        (Error::new("broken"), ErrorKind::Failed),
    ];
    for (inner, kind) in rows {
        let error = Error::from(Wrapped(Wrapped(inner.clone().into()).into()));
        assert_eq!((error.kind(), error.to_string().as_str()), (&kind, "the tool failed"));
        assert_eq!((error.interrupt(), error.is_retryable()), (inner.interrupt(), inner.is_retryable()));
        assert!(error.explain().ends_with(&format!("caused by: {inner}")), "{error:?}");
    }
}

// M9
#[tokio::test]
async fn control_flow_inside_a_users_error_of_a_listener_keeps_its_kind() {
    let echo = runnable_fn("echo", |n: u32, _: RunContext| async move { Ok(n) });
    let run = echo.run(1).on_start(|_, _| Err(Wrapped(Error::halted("budget", "spent").into()).into()));
    assert!(run.await.expect_err("a listener said stop").is_halted());
}

// R10
#[test]
fn explain_puts_every_cause_on_an_indented_line_of_its_own() {
    let error = Error::new("first\nsecond").message("third").message("fourth");
    assert_eq!(error.explain(), "fourth\n  caused by: third\n  caused by: first\n    second");
}
