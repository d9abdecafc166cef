//! R10, M9: errors keep their kind and details when they are converted to `anyhow` errors and back.
#![cfg(feature = "anyhow")]

mod support;

use anyhow::{Context, anyhow};
use emitree_emitter::{Emitter, EventMeta};
use emitree_runtime::{Error, ErrorKind, RunContext, Runnable};
use futures_util::FutureExt;
use support::below;

fn back(error: anyhow::Error) -> Error {
    Error::from_anyhow(error)
}

// R10
#[test]
fn an_error_is_unchanged_by_a_conversion_to_anyhow_and_back() {
    let error = Error::new("no answer").retryable(true).fatal(true).detail("port", 80);
    let again = back(error.clone().into());
    assert_eq!(again.explain(), error.explain());
    assert!(again.is_retryable() && again.is_fatal());
    assert_eq!(again.details(), error.details());
}

// M9
#[test]
fn control_flow_keeps_its_kind_through_anyhow_with_any_added_context() {
    let denied = || Error::denied("policy", "not on Sundays");
    let contexts = [
        anyhow::Error::from(denied()),
        anyhow::Error::from(denied()).context("inner"),
        anyhow::Error::from(denied()).context("inner").context("outer"),
        anyhow!(denied()),
    ];
    let words = ["not on Sundays", "inner", "outer", "not on Sundays"];
    for (error, words) in contexts.into_iter().zip(words) {
        let error = back(error);
        assert_eq!(error.kind(), &ErrorKind::Denied { by: "policy".into() });
        assert_eq!(error.to_string(), words);
    }
}

// R10
#[test]
fn an_anyhow_error_becomes_a_failure_that_explains_all_its_causes() {
    let parsed = "http".parse::<u16>().context("no port").context("no address");
    let error = back(parsed.expect_err("it is no number"));
    assert_eq!(error.kind(), &ErrorKind::Failed);
    assert_eq!(error.explain(), "no address\n  caused by: no port\n  caused by: invalid digit found in string");
}

// R10
#[test]
fn a_source_error_is_found_by_its_type_after_a_conversion_from_anyhow() {
    let parsed = || "http".parse::<u16>().expect_err("it is no number");
    for error in [Error::from(parsed()), back(parsed().into()), back(anyhow::Error::from(parsed()).context("no port"))]
    {
        assert_eq!(error.find(), Some(&parsed()));
    }
}

// R10
#[test]
fn a_listeners_error_is_unchanged_by_a_conversion_to_anyhow_and_back() {
    let emitter = Emitter::new();
    let fails = |_: &mut u32, _: &EventMeta<'_>| Err(Error::new("no answer").retryable(true).into());
    emitter.on("asked", fails).expect("a valid name");
    let emit =
        || emitter.emit("asked", &mut 1_u32).now_or_never().expect("nobody waits").expect_err("a listener fails");
    let error = back(emit().into());
    assert_eq!(error.explain(), Error::from(emit()).explain());
    assert!(error.is_retryable());
}

// R10: `Error::from_anyhow` converts the error of the helper, and `?` converts the error of the run.
#[tokio::test]
async fn work_can_call_functions_that_return_anyhow_errors_and_be_called_from_them() {
    fn helper() -> anyhow::Result<u32> {
        Err(anyhow::Error::from(Error::aborted("enough")).context("helping"))
    }
    async fn program() -> anyhow::Result<u32> {
        let run = below(&Emitter::new(), "run", |(): (), _: RunContext| async { helper().map_err(Error::from_anyhow) });
        Ok(run.run(()).await?)
    }
    let error = back(program().await.expect_err("the helper fails"));
    assert_eq!((error.is_aborted(), error.to_string().as_str()), (true, "helping"));
}

// R10
#[test]
fn an_error_returned_from_main_prints_its_explanation() {
    fn program() -> Result<(), Box<dyn std::error::Error>> {
        Err(Error::denied("policy", "not on Sundays"))?
    }
    let error = program().expect_err("it is denied");
    assert_eq!(format!("{error:?}"), "denied by policy: not on Sundays");
}
