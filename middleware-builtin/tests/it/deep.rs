//! Middlewares refuse JSON that is nested so deeply that inspecting it would overflow the stack, and the error states
//! the reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{TestResult, instance};
use emitree_emitter::{Emitter, EventMeta};
use emitree_middleware::approval::{Approval, Decision};
use emitree_middleware::{Cache, ContentFilter, ExfilGuard, Redact};
use emitree_runtime::{Error, Middleware, Result, RunContext, Runnable};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const LEVELS: usize = 3_000;

/// Builds a deep value in code, because a parser would reject it. Most levels are arrays, because dropping an array
/// needs less stack than dropping an object.
fn deep() -> Value {
    (0..LEVELS).fold(json!("maria@mailbox.org"), |inner, level| match level % 100 {
        0 => Value::Object([("a".to_owned(), inner)].into_iter().collect()),
        _ => Value::Array(vec![inner]),
    })
}

/// A user's type that contains JSON.
#[derive(Clone, Serialize, Deserialize)]
struct Args {
    args: Value,
}

fn guards() -> Vec<(&'static str, Box<dyn Middleware>)> {
    vec![
        ("redact", Box::new(Redact::new())),
        ("exfil_guard", Box::new(ExfilGuard::new())),
        ("approval", Box::new(Approval::by(|_| async { Ok(Decision::Approve) }))),
        ("content_filter", Box::new(ContentFilter::new().words("rude", ["darn"]).expect("a word"))),
    ]
}

/// Runs a test on a thread with a small stack.
fn on_a_thread(test: impl Future<Output = TestResult> + Send + 'static) -> TestResult {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let thread = std::thread::Builder::new().stack_size(3 << 20).spawn(move || runtime.block_on(test))?;
    thread.join().expect("no overflow, and no panic")
}

fn is_said(error: &Error) -> bool {
    error.explain().contains("nested deeper than 127 levels")
}

#[test]
fn inputs_and_outputs_that_are_nested_too_deep_are_refused() -> TestResult {
    on_a_thread(async {
        for (name, guard) in guards() {
            let guard: Arc<dyn Middleware> = guard.into();
            let echo =
                instance(&Emitter::new(), "Tool", "echo", |value: Value, _: RunContext| async move { Ok(value) });
            let error = echo.run(deep()).middleware(Arc::clone(&guard)).await.expect_err(name);
            assert!(is_said(&error), "{name}: {}", error.explain());
            let give = instance(&Emitter::new(), "Tool", "give", |(): (), _: RunContext| async move { Ok(deep()) });
            let result = give.run(()).middleware(Arc::clone(&guard)).await;
            if name != "approval" {
                assert!(is_said(&result.expect_err(name)), "{name}, in the output");
            }
            let typed = instance(&Emitter::new(), "Tool", "typed", |_: Args, _: RunContext| async move { Ok(()) });
            let error = typed.run(Args { args: deep() }).middleware(guard).await.expect_err(name);
            assert!(is_said(&error), "{name}: {}", error.explain());
        }
        Ok(())
    })
}

#[test]
fn edits_and_events_nested_too_deep_are_refused_and_context_values_redacted() -> TestResult {
    on_a_thread(async {
        let echo = instance(&Emitter::new(), "Tool", "echo", |value: Value, _: RunContext| async move { Ok(value) });
        let edits = Approval::by(|_| async { Ok(Decision::Edit(deep())) });
        let error = echo.run(json!(1)).middleware(edits).await.expect_err("it is too deep");
        assert!(is_said(&error), "{}", error.explain());
        let emits = instance(&Emitter::new(), "Tool", "emits", |(): (), ctx: RunContext| async move {
            ctx.set("deep", deep())?;
            assert_eq!(ctx.get("deep"), Some(json!("[REDACTED: the value is nested deeper than 127 levels]")));
            let error = ctx.emitter().emit("said", &mut deep()).await.expect_err("it is too deep");
            assert!(
                error.to_string().contains("127 levels") || format!("{error:?}").contains("127 levels"),
                "{error:?}"
            );
            Ok(())
        });
        emits.run(()).middleware(Redact::new()).await?;
        Ok(())
    })
}

#[test]
fn a_value_that_is_nested_too_deep_is_passed_to_the_work_and_not_cached() -> TestResult {
    on_a_thread(async {
        let calls = Arc::new(AtomicU32::new(0));
        let counts = Arc::clone(&calls);
        let echo = instance(&Emitter::new(), "Tool", "echo", move |value: Value, _: RunContext| {
            counts.fetch_add(1, Ordering::Relaxed);
            async move { Ok(if value == json!("give") { deep() } else { json!(value.is_array()) }) }
        });
        let echo = echo.middleware(Cache::json().build()?);
        for _ in 0..2 {
            echo.run(deep()).await?;
            echo.run(json!("give")).await?;
        }
        assert_eq!(calls.load(Ordering::Relaxed), 4);
        Ok(())
    })
}

async fn twice(cache: impl Middleware, input: f64, output: f64) -> Result<(u32, f64)> {
    let calls = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&calls);
    let work = instance(&Emitter::new(), "Tool", "work", move |_: Option<f64>, _: RunContext| {
        counts.fetch_add(1, Ordering::Relaxed);
        async move { Ok(output) }
    });
    let work = work.middleware(cache);
    work.run(Some(input)).await?;
    let second = work.run(Some(input)).await?;
    work.run(None).await?;
    Ok((calls.load(Ordering::Relaxed), second))
}

/// In JSON, a NaN becomes `null`, which would equal a missing value and could not be read back as a number.
#[tokio::test]
async fn a_nan_or_infinite_value_is_no_cache_key_and_no_entry_of_a_json_cache() -> TestResult {
    for (input, output, expected) in [(1.0, 2.0, 2), (f64::NAN, 2.0, 3), (f64::INFINITY, 2.0, 3), (1.0, f64::NAN, 3)] {
        let (calls, second) = twice(Cache::json().build()?, input, output).await?;
        assert_eq!((calls, second.is_nan()), (expected, output.is_nan()), "{input} and {output}, as JSON");
    }
    for (input, output, expected) in [(1.0, 2.0, 2), (f64::NAN, 2.0, 3), (1.0, f64::NAN, 2)] {
        let (calls, second) = twice(Cache::typed::<f64>().build()?.stack::<WorkOp>(), input, output).await?;
        assert_eq!((calls, second.is_nan()), (expected, output.is_nan()), "{input} and {output}, as they are");
    }
    Ok(())
}

/// The work of a run from an `Option<f64>` to an `f64`.
struct WorkOp;

impl emitree_runtime::Op for WorkOp {
    type In = Option<f64>;
    type Out = f64;
}

#[test]
fn a_start_listener_of_a_refused_run_never_receives_the_value() -> TestResult {
    on_a_thread(async {
        let heard = Arc::new(AtomicU32::new(0));
        let counts = Arc::clone(&heard);
        let echo = instance(&Emitter::new(), "Tool", "echo", |value: Value, _: RunContext| async move { Ok(value) });
        let run = echo.run(deep()).middleware(Redact::new()).on_start(move |_, _: &EventMeta<'_>| {
            counts.fetch_add(1, Ordering::Relaxed);
        });
        run.await.expect_err("it is refused at its start");
        assert_eq!(heard.load(Ordering::Relaxed), 0);
        Ok(())
    })
}
