//! `RunSubscriber::attempted` receives the result of each attempt, after the layers and before `map_output`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{TestResult, below, silence_planned_panics};
use emitree_emitter::Emitter;
use emitree_emitter::json::MAX_DEPTH;
use emitree_runtime::{
    AnyRun, AnyRunnable, Attempted, Error, Middleware, Next, Result, RunContext, RunEvent, RunSubscriber, Runnable,
    Stack, layer_fn, map_output, runnable_fn,
};
use serde_json::{Value, json};

/// A subscriber that records the result of each attempt.
#[derive(Clone, Debug, Default)]
struct Attempts(Arc<Mutex<Vec<std::result::Result<Value, String>>>>);

impl RunSubscriber for Attempts {
    fn event(&self, _: &RunEvent<'_>) {}

    fn attempted(&self, attempt: &Attempted<'_>) {
        let json = attempt.output_json();
        assert_eq!(attempt.output::<u32>().map(|n| json!(n)), json.as_ref().ok().cloned());
        self.0.lock().expect("nobody panics").push(json.map_err(|error| error.to_string()));
    }
}

impl Middleware for Attempts {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        ctx.subscribe(self.clone());
        Ok(())
    }
}

impl Attempts {
    #[track_caller]
    fn expect<const N: usize>(&self, expected: [std::result::Result<u32, &str>; N]) {
        let expected = expected.map(|attempt| attempt.map(|n| json!(n)).map_err(str::to_owned));
        assert_eq!(std::mem::take(&mut *self.0.lock().expect("nobody panics")), expected);
    }
}

// M6, M7: the result is recorded before `map_output` and `success`.
#[tokio::test(start_paused = true)]
async fn a_subscriber_receives_the_result_of_each_attempt_with_and_without_layers() -> TestResult {
    silence_planned_panics();
    let (tree, attempts) = (Emitter::new(), Attempts::default());
    let run = below(&tree, "run", |end: String, ctx: RunContext| async move {
        match &*end {
            "fails" => Err(Error::new("a planned failure")),
            "panics" => panic!("a planned panic"),
            "pends" => std::future::pending().await,
            "retries" => Ok(ctx.attempt()),
            _ => Ok(1),
        }
    });
    let passes = || {
        let pass = layer_fn("pass", |input, _, next: Next<'_, AnyRun>| Box::pin(next.run(input)));
        Stack::<AnyRun>::builder().layer(pass).build()
    };
    for chained in [false, true] {
        let built = |end: &str| {
            let run = run.run(end.to_owned()).middleware(attempts.clone());
            if chained { run.middleware(passes()) } else { run }
        };
        assert_eq!(built("succeeds").on_success(|success, _| success.output = 9).await?, 9);
        attempts.expect([Ok(1)]);
        assert_eq!(built("succeeds").on_start(|start, _| start.output = Some(5)).await?, 5);
        attempts.expect([Ok(5)]);
        built("fails").await.expect_err("a planned failure");
        attempts.expect([Err("a planned failure")]);
        built("panics").await.expect_err("a planned panic");
        attempts.expect([Err("a planned panic")]);
        built("pends").timeout(Duration::from_millis(5)).await.expect_err("a timeout");
        attempts.expect([]);
    }
    let twice = map_output(|n: &mut u32, ctx: &RunContext| {
        if ctx.attempt() == 0 {
            return Err(Error::retry("once more"));
        }
        *n += 10;
        Ok(())
    });
    let run = run.run("retries".to_owned()).middleware(attempts.clone()).middleware(twice).max_middleware_retries(1);
    assert_eq!(run.await?, 11);
    attempts.expect([Ok(0), Ok(1)]);
    Ok(())
}

/// Returns lists that are nested this many levels deep.
fn nested(levels: usize) -> Value {
    (1..levels).fold(json!([]), |value, _| json!([value]))
}

// A value that was built in code may be nested so deeply that serializing it overflows the stack.
#[tokio::test]
async fn an_output_that_is_nested_too_deeply_is_an_error_when_it_is_read_as_json() -> TestResult {
    let work = runnable_fn("work", |levels: usize, _: RunContext| async move { Ok(nested(levels)) });
    let seen = Arc::new(Mutex::new(Vec::new()));
    let shows = Shows(Arc::clone(&seen));
    let run = |levels| work.run(levels).middleware(shows.clone());
    for levels in [MAX_DEPTH, MAX_DEPTH + 1] {
        run(levels).await?;
    }
    let too_deep = "the value is nested deeper than 127 levels";
    let seen = std::mem::take(&mut *seen.lock().expect("nobody panics"));
    let [Ok(()), Err(error)] = &seen[..] else { panic!("{seen:?}") };
    assert!(error.starts_with("the output, a `serde_json::value::Value`, cannot be converted to JSON"), "{error}");
    assert!(error.ends_with(too_deep), "{error}");

    let any: &dyn AnyRunnable = &work;
    assert_eq!(any.run_json(json!(MAX_DEPTH)).await?, nested(MAX_DEPTH));
    let error = any.run_json(json!(MAX_DEPTH + 1)).await.expect_err("one level too many");
    assert_eq!(error.to_string(), too_deep);
    Ok(())
}

/// A subscriber that reads the output of each attempt as JSON.
#[derive(Clone, Debug)]
struct Shows(Arc<Mutex<Vec<std::result::Result<(), String>>>>);

impl RunSubscriber for Shows {
    fn event(&self, _: &RunEvent<'_>) {}

    fn attempted(&self, attempt: &Attempted<'_>) {
        let shown = attempt.output_json().map(drop).map_err(|error| error.explain());
        self.0.lock().expect("nobody panics").push(shown);
    }
}

impl Middleware for Shows {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        ctx.subscribe(self.clone());
        Ok(())
    }
}
