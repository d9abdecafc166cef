//! M6, M7: if a middleware requests a retry, the whole attempt starts again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::layers::{Notes, doubling};
use crate::support::{Recorder, TestResult, below};
use emitree_emitter::Emitter;
use emitree_runtime::{
    AnyRun, AttemptDiscarded, Error, Guard, Middleware, Next, Op, Outcome, Result, RetryRequest, RunContext, Runnable,
    Stack, layer_fn, map_output, runnable_fn,
};
use futures_util::FutureExt;
use serde_json::json;

/// A guard that requests another attempt until this attempt number is reached.
#[derive(Debug)]
struct Until(u32);

impl<O: Op> Guard<O> for Until {
    async fn check_output(&self, _: &O::Out, ctx: &RunContext) -> Result<()> {
        if ctx.attempt() < self.0 {
            return Err(Error::retry_with(
                format!("attempt {}", ctx.attempt()),
                json!({"left": self.0 - ctx.attempt()}),
            ));
        }
        Ok(())
    }
}

// M7
#[tokio::test]
async fn the_whole_attempt_starts_again_with_the_input_as_start_left_it() {
    let recorder = Recorder::new();
    let double = doubling(&recorder);
    let (outer, notes) = (Notes("outer", recorder.clone()), recorder.clone());
    let run = double
        .run(1)
        .on_start(|start, _| start.input = 5)
        .layers(|stack| stack.observe(outer).guard(Until(2)))
        .observe("attempt_discarded", move |discarded: &AttemptDiscarded, _| {
            notes.note(serde_json::to_string(discarded).expect("serialisable"));
        })
        .max_middleware_retries(2);
    assert_eq!(run.await.expect("the third attempt is fine"), 10);
    recorder.expect([
        "outer <- 5",
        "work 5",
        "outer -> error: attempt 0",
        r#"{"attempt":0,"reason":"attempt 0","metadata":{"left":2}}"#,
        "outer <- 5",
        "work 5",
        "outer -> error: attempt 1",
        r#"{"attempt":1,"reason":"attempt 1","metadata":{"left":1}}"#,
        "outer <- 5",
        "work 5",
        "outer -> 10",
    ]);
}

// M7
#[tokio::test]
async fn start_is_emitted_once_and_a_runnables_own_events_once_per_attempt() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let speaks = below(&tree, "speaks", |(): (), ctx: RunContext| async move {
        ctx.emitter().emit("word", &mut json!("hello")).await?;
        if ctx.attempt() == 0 { Err(Error::retry("too short")) } else { Ok(()) }
    });
    speaks.run(()).max_middleware_retries(1).await?;
    recorder.expect([
        "speaks.run.start",
        "speaks.word",
        "speaks.attempt_discarded",
        "speaks.word",
        "speaks.run.success",
        "speaks.run.finish",
    ]);
    Ok(())
}

// M7
#[tokio::test]
async fn feedback_contains_all_reasons_and_metadata_so_far() {
    let tells = runnable_fn("tells", |(): (), ctx: RunContext| async move {
        Ok((
            ctx.attempt(),
            ctx.feedback().into_iter().map(|RetryRequest { reason, metadata, .. }| (reason, metadata)).collect(),
        ))
    });
    let told: (u32, Vec<(String, serde_json::Value)>) =
        tells.run(()).layers(|stack| stack.guard(Until(2))).max_middleware_retries(9).await.expect("fine at last");
    let all = vec![("attempt 0".to_owned(), json!({"left": 2})), ("attempt 1".to_owned(), json!({"left": 1}))];
    assert_eq!(told, (2, all));
}

// M7
#[tokio::test]
async fn past_the_limit_the_caller_receives_the_retry_request_and_the_run_fails() -> TestResult {
    for (most, reason) in [(0, "attempt 0"), (2, "attempt 2")] {
        let recorder = Recorder::new();
        let (double, notes) = (doubling(&recorder), recorder.clone());
        let run = double.run(1).layers(|stack| stack.guard(Until(9))).on_finish(move |finish, _| {
            if let Outcome::Failed { error } = finish.outcome() {
                notes.note(format!("failed: {error}"));
            }
        });
        let error = run.max_middleware_retries(most).await.expect_err("too few attempts");
        assert!(error.is_retry() && !error.is_retryable() && !error.is_fatal());
        assert_eq!(error.to_string(), reason);
        assert_eq!(recorder.take().last(), Some(&format!("failed: {reason}")));
    }
    Ok(())
}

// M7
#[tokio::test]
async fn an_unmet_retry_request_does_not_make_the_run_above_retry() {
    let recorder = Recorder::new();
    let notes = recorder.clone();
    let outer = runnable_fn("outer", move |(): (), _: RunContext| {
        notes.note("outer");
        async move {
            let inner = runnable_fn("inner", |(): (), _: RunContext| async { Err::<(), _>(Error::retry("again")) });
            inner.run(()).await
        }
    });
    let error = outer.run(()).max_middleware_retries(5).await.expect_err("the inner run failed");
    assert!(error.is_retry(), "{error:?}");
    recorder.expect(["outer"]);
    // A listener does not change the result.
    let heard = outer
        .run(())
        .observe("*.*", |_: &crate::support::Any, _: &emitree_emitter::EventMeta<'_>| ())
        .max_middleware_retries(5);
    assert!(heard.await.expect_err("the inner run failed").is_retry());
    recorder.expect(["outer"]);
}

// M7, M9
#[tokio::test]
async fn denials_halts_aborts_and_interrupts_are_never_retried() {
    let errors = [
        Error::denied("desk", "no"),
        Error::halted("desk", "stop"),
        Error::aborted("gone"),
        Error::interrupted(emitree_runtime::Interrupt::new("question", 1)),
        Error::new("broken").retryable(true),
    ];
    for error in errors {
        let recorder = Recorder::new();
        let (notes, thrown) = (recorder.clone(), error.clone());
        let ends = runnable_fn("ends", move |(): (), _: RunContext| {
            notes.note("work");
            let error = thrown.clone();
            async move { Err::<(), _>(error) }
        });
        let ended = ends.run(()).max_middleware_retries(3).await.expect_err("the work ends so");
        assert_eq!(ended.kind(), error.kind());
        recorder.expect(["work"]);
    }
}

// M6
#[tokio::test]
async fn an_output_set_at_start_replaces_the_work_but_no_layer_and_answers_each_attempt() {
    let recorder = Recorder::new();
    let double = doubling(&recorder);
    let notes = recorder.clone();
    let filter = map_output(move |n: &mut u32, _: &RunContext| {
        notes.note(format!("filter {n}"));
        *n += 1;
        Ok(())
    });
    let run = double
        .run(1)
        .on_start(|start, _| start.output = Some(70))
        .layer(Notes("layer", recorder.clone()))
        .layers(|stack| stack.guard(Until(1)))
        .middleware(filter)
        .max_middleware_retries(1);
    assert_eq!(run.await.expect("fine at last"), 71);
    recorder.expect(["layer <- 1", "layer -> error: attempt 0", "layer <- 1", "layer -> 70", "filter 70"]);
}

// M7
#[tokio::test]
async fn a_listener_of_attempt_discarded_that_fails_ends_the_run() {
    let double = doubling(&Recorder::new());
    let run = double
        .run(1)
        .on("attempt_discarded", |_: &mut AttemptDiscarded, _| Err(Error::denied("desk", "once is enough").into()))
        .layers(|stack| stack.guard(Until(1)))
        .max_middleware_retries(1);
    assert!(run.await.expect_err("a listener said no").is_denied());
}

// M7
#[tokio::test]
async fn concurrent_runs_of_one_instance_count_their_attempts_separately() {
    let recorder = Recorder::new();
    let notes = recorder.clone();
    // Each attempt yields, so the attempts of the runs take turns.
    let yields = runnable_fn("yields", move |until: u32, ctx: RunContext| {
        notes.note(format!("until {until}: attempt {}", ctx.attempt()));
        tokio::task::yield_now().map(Ok)
    });
    let run = |until| yields.run(until).layers(move |stack| stack.guard(Until(until))).max_middleware_retries(until);
    let all = futures_util::future::join3(run(1), run(2), run(0)).await;
    assert!(all.0.is_ok() && all.1.is_ok() && all.2.is_ok());
    recorder.expect([
        "until 1: attempt 0",
        "until 2: attempt 0",
        "until 0: attempt 0",
        "until 1: attempt 1",
        "until 2: attempt 1",
        "until 2: attempt 2",
    ]);
}

// M6, M7: JSON represents a NaN as `null`, which would be another answer.
#[tokio::test]
async fn an_answer_that_json_cannot_represent_is_an_error_in_the_second_attempt() {
    let work = runnable_fn("work", |(): (), _: RunContext| async move { Ok(Some(1.0)) });
    let answered = |retries| {
        work.run(())
            .on_start(|start, _| start.output = Some(Some(f64::NAN)))
            .layers(|stack| stack.guard(Until(retries)))
            .max_middleware_retries(retries)
    };
    assert!(answered(0).await.expect("the first attempt has the answer itself").is_some_and(f64::is_nan));
    let error = answered(1).await.expect_err("the second has no copy of it");
    assert_eq!(
        error.to_string(),
        "the answer set at `start`, a `core::option::Option<f64>`, cannot be returned again: JSON has neither NaN nor infinity"
    );
}

/// Returns a stack for runs of any type, with a layer that counts its calls.
fn counting(calls: &Arc<AtomicU32>) -> Stack<AnyRun> {
    let calls = Arc::clone(calls);
    let count = layer_fn("count", move |input, _, next: Next<'_, AnyRun>| {
        calls.fetch_add(1, Ordering::Relaxed);
        next.run(input).boxed()
    });
    Stack::builder().layer(count).build()
}

// M6: a chain may be bound until the work begins, and the answer passes through it.
#[tokio::test]
async fn an_answer_set_at_start_passes_layers_that_are_bound_afterwards() -> TestResult {
    let work = runnable_fn("work", |(): (), _: RunContext| async move { Ok(1_u32) });
    let calls = Arc::new(AtomicU32::new(0));
    let (layer, plus) = (
        counting(&calls),
        map_output(|n: &mut u32, _: &RunContext| {
            *n += 1;
            Ok(())
        }),
    );
    let run = work.run(()).on_start(|start, _| start.output = Some(40)).on_start(move |_, _| {
        let ctx = RunContext::current().expect("in a listener of the run");
        layer.bind(&ctx)?;
        plus.bind(&ctx)?;
        Ok(())
    });
    assert_eq!((run.await?, calls.load(Ordering::Relaxed)), (41, 1));
    Ok(())
}

// M6: without a chain, the work is over as soon as the answer is taken.
#[tokio::test]
async fn a_layer_that_is_bound_after_an_answer_was_taken_is_refused() -> TestResult {
    let work = runnable_fn("work", |(): (), _: RunContext| async move { Ok(1) });
    let calls = Arc::new(AtomicU32::new(0));
    let layer = counting(&calls);
    let run = work.run(()).on_start(|start, _| start.output = Some(40)).on_success(move |_, _| {
        let ctx = RunContext::current().expect("in a listener of the run");
        let refused = layer.bind(&ctx).expect_err("the work is over");
        assert_eq!(refused.to_string(), "the run's work has begun: bind layers and middlewares earlier");
    });
    assert_eq!((run.await?, calls.load(Ordering::Relaxed)), (40, 0));
    Ok(())
}
