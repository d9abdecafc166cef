//! Runs that take too long are stopped, and the error names the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::{Failing, TestResult, instance};
use emitree_emitter::Emitter;
use emitree_middleware::approval::Decision;
use emitree_middleware::timeout::{TimeLimit, TimedOut};
use emitree_middleware::{Approval, Concurrency, RateLimit, Retry, Timeout};
use emitree_runtime::{Error, Middleware, RunContext, Runnable, for_tree};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn wait(root: &Emitter) -> impl Runnable<Input = u64, Output = u64> + 'static {
    instance(root, "Tool", "wait", |n: u64, _: RunContext| async move {
        sleep(ms(n)).await;
        Ok(n)
    })
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_in_time_is_not_affected_by_a_timeout() -> TestResult {
    let timeout = Timeout::per_attempt(ms(100)).with_overall(ms(100));
    assert_eq!(wait(&Emitter::new()).run(99).middleware(timeout).await?, 99);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_error_names_the_exceeded_time_limit() {
    let rows = [
        (Timeout::per_attempt(ms(10)), "an attempt took longer than 10ms", "attempt", 10),
        (Timeout::overall(ms(20)), "all attempts together took longer than 20ms", "overall", 20),
        (
            Timeout::per_attempt(ms(30)).with_overall(ms(20)),
            "all attempts together took longer than 20ms",
            "overall",
            20,
        ),
    ];
    for (timeout, message, limit, after) in rows {
        let begun = Instant::now();
        let error = wait(&Emitter::new()).run(1_000).middleware(timeout).await.expect_err("it takes too long");
        assert!(error.is_timed_out());
        assert_eq!((error.to_string(), &error.details()["timeout"]), (message.to_owned(), &limit.into()));
        assert_eq!(error.is_retryable(), limit == "attempt");
        assert_eq!(begun.elapsed(), ms(after));
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_has_its_own_time_limit_and_all_attempts_share_the_overall_limit() {
    let (tries, root) = (Arc::new(AtomicU32::new(0)), Emitter::new());
    let counted = Arc::clone(&tries);
    let again = instance(&root, "Tool", "again", move |(): (), _: RunContext| {
        counted.fetch_add(1, Ordering::Relaxed);
        async {
            sleep(ms(40)).await;
            Err::<(), _>(Error::retry("not yet"))
        }
    });
    let begun = Instant::now();
    let limits = Timeout::per_attempt(ms(50)).with_overall(ms(100));
    let error = again.run(()).middleware(limits).max_middleware_retries(9).await.expect_err("it never succeeds");
    assert_eq!(error.details()["timeout"], "overall");
    assert_eq!((begun.elapsed(), tries.load(Ordering::Relaxed)), (ms(100), 3));
}

#[tokio::test(start_paused = true)]
async fn events_of_a_timeout_reach_its_emitter_and_the_run_with_the_run_s_ids() -> TestResult {
    let timeout = Timeout::per_attempt(ms(10));
    let heard = Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = |who: &'static str| {
        let heard = Arc::clone(&heard);
        move |event: &mut TimedOut, meta: &emitree_emitter::EventMeta<'_>| {
            let run_id = meta.trace().map(|trace| trace.run_id);
            heard.lock().expect("nobody panics").push((who, run_id, meta.path().to_owned(), event.clone()));
        }
    };
    timeout.emitter().on("timed_out", note("own"))?;
    let run_id = Arc::new(std::sync::Mutex::new(None));
    let keep = Arc::clone(&run_id);
    let wait = wait(&Emitter::new());
    let run = wait.run(20).middleware(timeout.clone()).on("middleware.timeout.timed_out", note("run"));
    run.middleware(move |ctx: &RunContext| {
        *keep.lock().expect("nobody panics") = Some(ctx.run_id());
        Ok(())
    })
    .await
    .expect_err("it takes too long");
    let heard = heard.lock().expect("nobody panics");
    let run_id = *run_id.lock().expect("nobody panics");
    assert_eq!(heard.len(), 2, "{heard:?}");
    for (who, (heard_by, id, path, event)) in ["own", "run"].iter().zip(&*heard) {
        assert_eq!((who, id, path.as_str()), (heard_by, &run_id, "middleware.timeout.timed_out"));
        assert_eq!((event.limit, event.after_ms), (TimeLimit::Attempt, 10));
    }
    Ok(())
}

/// Middlewares that let a run wait before its work begins: of three runs at once, the last waits for 200 ms or more.
fn waits() -> Vec<(&'static str, Arc<dyn Middleware>)> {
    let rate = RateLimit::builder(1, ms(100)).wait(Duration::MAX).build().expect("fine");
    let one = Concurrency::builder(1).wait(Duration::MAX).build().expect("fine");
    let asked = Approval::by(|_| async {
        sleep(ms(200)).await;
        Ok(Decision::Approve)
    });
    vec![("rate limit", Arc::new(rate)), ("concurrency", Arc::new(one)), ("approval", Arc::new(asked))]
}

#[tokio::test(start_paused = true)]
async fn the_waits_of_a_run_s_own_middlewares_do_not_count_towards_an_attempt_in_any_order_of_binding() {
    for timeout_first in [true, false] {
        for (name, waits) in waits() {
            let wait = wait(&Emitter::new());
            let begun = Instant::now();
            let runs = (0..3).map(|_| {
                let timeout = Timeout::per_attempt(ms(110));
                let run = wait.run(100);
                if timeout_first {
                    run.middleware(timeout).middleware(Arc::clone(&waits))
                } else {
                    run.middleware(Arc::clone(&waits)).middleware(timeout)
                }
            });
            let results = join_all(runs).await;
            assert!(results.iter().all(Result::is_ok), "{name}, timeout first: {timeout_first}: {results:?}");
            assert!(begun.elapsed() >= ms(300), "{name}: the runs waited");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_waits_of_a_run_s_own_middlewares_count_towards_the_overall_limit() {
    for (name, waits) in waits() {
        let wait = wait(&Emitter::new());
        let runs = (0..3).map(|_| wait.run(100).middleware(Arc::clone(&waits)).middleware(Timeout::overall(ms(110))));
        let results = join_all(runs).await;
        let error = results[2].as_ref().expect_err("it waits too long");
        assert_eq!(error.details()["timeout"], "overall", "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_waits_of_runs_below_count_towards_an_attempt() {
    for (name, waits) in waits() {
        let root = Emitter::new();
        let inner = Arc::new(wait(&root));
        let outer = instance(&root, "Assistant", "Desk", move |(): (), _: RunContext| {
            let (inner, waits) = (Arc::clone(&inner), Arc::clone(&waits));
            async move {
                let runs = (0..3).map(|_| inner.run(100).middleware(Arc::clone(&waits)));
                join_all(runs).await.into_iter().try_for_each(|result| result.map(drop))
            }
        });
        let error = outer.run(()).middleware(Timeout::per_attempt(ms(110))).await.expect_err("it takes too long");
        assert_eq!(error.details()["timeout"], "attempt", "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_of_a_retry_has_its_own_time_limit_behind_a_rate_limit() {
    let limit = RateLimit::builder(1, ms(300)).wait(Duration::MAX).build().expect("fine");
    let retry = Retry::builder().max_retries(1).base_delay(ms(0)).without_jitter().build().expect("fine");
    let begun = Instant::now();
    let wait = wait(&Emitter::new());
    let run = wait.run(1_000).middleware(Timeout::per_attempt(ms(100))).middleware(retry).middleware(limit);
    assert!(run.await.expect_err("each attempt takes too long").is_timed_out());
    // The first attempt ends after 100 ms, and the second begins after 300 ms.
    assert_eq!(begun.elapsed(), ms(400));
}

// M5: observers fail open.
#[tokio::test(start_paused = true)]
async fn a_failing_listener_does_not_affect_a_timeout() {
    let (wait, failing) = (wait(&Emitter::new()), Failing::default());
    let run = wait.run(20).middleware(Timeout::per_attempt(ms(10)));
    let run = run.on("middleware.timeout.timed_out", failing.listener::<TimedOut>());
    assert!(run.await.expect_err("it takes too long").is_timed_out());
    assert_eq!(failing.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn for_tree_limits_the_bound_run_and_the_run_below_it() {
    let root = Emitter::new();
    let inner = Arc::new(wait(&root));
    let outer = instance(&root, "Assistant", "Desk", move |before: u64, _: RunContext| {
        let inner = Arc::clone(&inner);
        async move {
            sleep(ms(before)).await;
            Ok(inner.run(1_000).await.map_err(|error| error.is_timed_out()))
        }
    });
    let run = |before| outer.run(before).middleware(for_tree(Timeout::per_attempt(ms(10))));
    // The bound run began earlier, so its limit is reached first.
    assert!(run(5).await.expect_err("it waits for the run below").is_timed_out());
    // Both limits are reached at the same time. The outer timeout polls the work first, so the run below times out.
    assert_eq!(run(0).await.expect("it handles the time-out of the run below"), Err(true));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_shared_by_100_concurrent_runs() {
    let (timeout, wait) = (Timeout::overall(ms(100)), wait(&Emitter::new()));
    let runs = (0..100).map(|n| wait.run(n * 2 + 1).middleware(timeout.clone()));
    let results = join_all(runs).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 50);
}

#[test]
fn explain_lists_a_timeout_with_its_limits() {
    let wait = wait(&Emitter::new());
    let run = wait.run(1).middleware(Timeout::per_attempt(ms(10)).with_overall(ms(20)));
    let lines = [
        "wait",
        "  bound:",
        "    timeout: 10ms per attempt, 20ms overall",
        "  passes:",
        "    observe   timeout overall: 20ms",
        "    innermost_guard timeout per attempt: 10ms",
    ];
    assert_eq!(run.explain().to_string(), lines.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_too_long_for_the_clock_does_not_limit_a_run() -> TestResult {
    assert_eq!(wait(&Emitter::new()).run(5).middleware(Timeout::overall(Duration::MAX)).await?, 5);
    Ok(())
}
