//! The number of runs per key that begin in a period is limited. Excess runs wait in the order of their arrival, or are
//! denied. The denial of an excess run contains the time until a retry may pass.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Failing, TestResult, instance};
use emitree_emitter::{Emitter, EventMeta};
use emitree_middleware::RateLimit;
use emitree_middleware::key::{Key, Missing};
use emitree_middleware::rate_limit::{Delayed, Denied};
use emitree_runtime::{AbortHandle, Error, Middleware, RunContext, Runnable, Summary, for_tree, map_input};
use futures_util::FutureExt;
use serde_json::json;
use tokio::time::{Instant, advance};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn echo(root: &Emitter) -> impl Runnable<Input = u64, Output = u64> + 'static {
    instance(root, "Tool", "echo", |n: u64, _: RunContext| async move { Ok(n) })
}

fn user(id: impl Into<serde_json::Value>) -> emitree_emitter::Context {
    emitree_emitter::Context::new().with("user_id", id)
}

#[tokio::test(start_paused = true)]
async fn a_burst_begins_at_once_and_the_next_run_is_denied_with_the_time_to_retry_after() -> TestResult {
    let (echo, limit) = (echo(&Emitter::new()), RateLimit::builder(2, ms(1_000)).build()?);
    let run = || echo.run(1).middleware(limit.clone());
    for _ in 0..2 {
        run().await?;
    }
    let error = run().await.expect_err("there is no more");
    assert_eq!(
        error.explain(),
        "denied by rate_limit: at most 2 runs in 1s are allowed: retry after 500ms\n  retry_after_ms: 500"
    );
    advance(ms(499)).await;
    assert!(run().await.expect_err("too early").is_denied());
    advance(ms(1)).await;
    run().await?;
    assert!(run().await.expect_err("one at a time is regained").is_denied());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_key_is_computed_from_the_input_as_the_functions_that_change_it_left_it() -> TestResult {
    let root = Emitter::new();
    let fetch = instance(&root, "Tool", "fetch", |url: String, _: RunContext| async move { Ok(url) });
    let trim = map_input(|url: &mut String, _: &RunContext| {
        *url = url.trim().to_owned();
        Ok(())
    });
    let host = || Key::input(|url: &String| url.split('/').next().map(str::to_owned));
    let limit = RateLimit::builder(1, ms(1_000)).by(host()).build()?;
    // Another limit of the same run has its own key.
    let path = Key::input(|url: &String| url.clone()).when_missing(Missing::Deny);
    let of_path = RateLimit::builder(1, ms(1_000)).by(path).build()?;
    let run = |url: &str| {
        fetch.run(url.to_owned()).middleware(limit.clone()).middleware(of_path.clone()).middleware(trim.clone())
    };
    run("a/1").await?;
    let denied = run(" a/2").await.expect_err("the second of this host");
    assert!(denied.to_string().contains("at most 1 runs in 1s"), "{denied}");
    run("b/1").await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_with_another_input_has_no_key_of_the_input_and_a_panic_of_the_function_denies_the_run() -> TestResult {
    let echo = echo(&Emitter::new());
    let of_text = || Key::input(|text: &String| text.clone());
    let together = RateLimit::builder(1, ms(1_000)).by(of_text()).build()?;
    echo.run(1).middleware(together.clone()).await?;
    assert!(echo.run(2).middleware(together).await.is_err(), "runs without a key are counted together");
    let deny = RateLimit::builder(9, ms(1_000)).by(of_text().when_missing(Missing::Deny)).build()?;
    assert!(echo.run(1).middleware(deny).await.expect_err("no key").is_denied());
    let panics = Key::input(|_: &u64| -> String { panic!("oh no") });
    let error = echo.run(1).middleware(RateLimit::builder(9, ms(1_000)).by(panics).build()?).await;
    let error = error.expect_err("it panics");
    assert!(error.is_denied());
    assert_eq!(error.to_string(), "the key function panicked: oh no");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_burst_may_be_smaller_or_larger_than_the_runs_per_period() -> TestResult {
    let echo = echo(&Emitter::new());
    for burst in [1, 2, 5, 50] {
        let limit = RateLimit::builder(5, ms(1_000)).burst(burst).build()?;
        let mut passed = 0;
        while echo.run(1).middleware(limit.clone()).await.is_ok() {
            passed += 1;
        }
        assert_eq!(passed, burst);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn runs_with_equal_keys_are_counted_together() -> TestResult {
    let limit = RateLimit::builder(1, ms(1_000)).by(Key::context("user_id")).build()?;
    let echo = echo(&Emitter::new());
    let rows = [
        (user("ann"), true),
        (user("bob"), true),
        (user("ann"), false),
        (user(7), true),
        (user("7"), true),
        (user(7), false),
        (user(json!({"a": 1, "b": 2})), true),
        (user(json!({"b": 2, "a": 1})), false),
    ];
    for (context, passes) in rows {
        let result = echo.run(1).context(context.clone()).middleware(limit.clone()).await;
        assert_eq!(result.is_ok(), passes, "{context:?}");
    }
    assert_eq!(limit.known_keys(), 5);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_key_is_the_kind_instance_group_or_the_result_of_a_function() -> TestResult {
    let root = Emitter::new();
    let [a, b] = [echo(&root), echo(&root)];
    let other = instance(&root, "Model", "echo", |n: u64, _: RunContext| async move { Ok(n) });
    let by = |key: Key| RateLimit::builder(1, ms(1_000)).by(key).build();

    let kind = by(Key::kind())?;
    assert!(a.run(1).middleware(kind.clone()).await.is_ok());
    assert!(b.run(1).middleware(kind.clone()).await.is_err());
    assert!(other.run(1).middleware(kind).await.is_ok());

    let instance = by(Key::instance())?;
    assert!(a.run(1).middleware(instance.clone()).await.is_ok());
    assert!(b.run(1).middleware(instance.clone()).await.is_ok());
    assert!(a.run(1).middleware(instance).await.is_err());

    let group = by(Key::group())?;
    assert!(a.run(1).group_id("one").middleware(group.clone()).await.is_ok());
    assert!(a.run(1).group_id("two").middleware(group.clone()).await.is_ok());
    assert!(b.run(1).group_id("one").middleware(group).await.is_err());

    let function = by(Key::of(|ctx| Ok(Some(ctx.emitter().namespace().to_owned()))))?;
    assert!(a.run(1).middleware(function.clone()).await.is_ok());
    assert!(other.run(1).middleware(function.clone()).await.is_ok());
    assert!(b.run(1).middleware(function).await.is_err());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn runs_without_the_key_are_counted_together_pass_or_are_denied_as_configured() -> TestResult {
    let echo = echo(&Emitter::new());
    let rows = [
        (Key::context("user_id"), [true, false]),
        (Key::context("user_id").when_missing(Missing::Pass), [true, true]),
        (Key::context("user_id").when_missing(Missing::Deny), [false, false]),
        (Key::of(|_| Ok(None)).when_missing(Missing::Deny), [false, false]),
        (Key::group().when_missing(Missing::Deny), [false, false]),
    ];
    for (key, expected) in rows {
        let limit = RateLimit::builder(1, ms(1_000)).by(key.clone()).build()?;
        for passes in expected {
            let result = echo.run(1).context(user(json!(null))).middleware(limit.clone()).await;
            assert_eq!(result.is_ok(), passes, "{key:?}");
        }
    }
    let denies = RateLimit::builder(1, ms(1)).by(Key::context("user_id").when_missing(Missing::Deny)).build()?;
    let error = echo.run(1).middleware(denies).await.expect_err("it has none");
    assert_eq!(error.to_string(), "runs are counted by `user_id` of the context, but this run has no key");
    Ok(())
}

// M5: guards fail closed.
#[tokio::test(start_paused = true)]
async fn a_key_function_that_fails_or_panics_denies_the_run_with_the_reason() -> TestResult {
    let echo = echo(&Emitter::new());
    let rows = [
        (Key::of(|_| Err(Error::new("no such user"))), "the key function failed: no such user"),
        (Key::of(|_| panic!("oh no")), "the key function panicked: oh no"),
    ];
    for (key, message) in rows {
        let limit = RateLimit::builder(1, ms(1)).by(key.when_missing(Missing::Pass)).build()?;
        let error = echo.run(1).middleware(limit).await.expect_err("it fails closed");
        assert!(error.is_denied());
        assert_eq!(error.to_string(), message);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn waiting_runs_begin_in_the_order_of_their_arrival() -> TestResult {
    let (root, order) = (Emitter::new(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&order);
    let begun = Instant::now();
    let note = instance(&root, "Tool", "note", move |n: u64, _: RunContext| {
        seen.lock().expect("nobody panics").push((n, begun.elapsed()));
        async { Ok(()) }
    });
    let limit = RateLimit::builder(1, ms(100)).wait(Duration::MAX).build()?;
    let runs = (0..5).map(|n| note.run(n).middleware(limit.clone()));
    futures_util::future::try_join_all(runs).await?;
    let expected: Vec<_> = (0..5).map(|n| (n, ms(100 * n))).collect();
    assert_eq!(*order.lock().expect("nobody panics"), expected);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_later_run_does_not_overtake_waiting_runs() -> TestResult {
    let (echo, limit) = (echo(&Emitter::new()), RateLimit::builder(1, ms(100)).wait(Duration::MAX).build()?);
    let run = |n| Box::pin(echo.run(n).middleware(limit.clone()));
    run(1).await?;
    let (mut second, mut third) = (run(2), run(3));
    assert!((&mut second).now_or_never().is_none());
    // Now a run could pass, but the waiting run has not been polled yet.
    advance(ms(100)).await;
    assert!((&mut third).now_or_never().is_none());
    let begun = Instant::now();
    second.await?;
    third.await?;
    assert_eq!(begun.elapsed(), ms(100));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_that_leaves_the_queue_uses_no_quota_and_the_next_run_moves_up() -> TestResult {
    let (echo, limit) = (echo(&Emitter::new()), RateLimit::builder(1, ms(100)).wait(Duration::MAX).build()?);
    let run = |n| echo.run(n).middleware(limit.clone());
    run(0).await?;
    let begun = Instant::now();
    let abort = AbortHandle::new();
    let (mut dropped, aborted, last) = (Box::pin(run(1)), run(2).abort_on(&abort), run(3));
    assert!((&mut dropped).now_or_never().is_none());
    let (aborted, last) = tokio::join!(aborted, async {
        tokio::time::sleep(ms(10)).await;
        drop(dropped);
        abort.abort("enough");
        last.await.map(|_| begun.elapsed())
    });
    assert!(aborted.expect_err("it was aborted").is_aborted());
    assert_eq!(last?, ms(100));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn after_the_queue_has_emptied_the_next_run_passes_without_a_delayed_event() -> TestResult {
    let (echo, limit) = (echo(&Emitter::new()), RateLimit::builder(1, ms(100)).wait(Duration::MAX).build()?);
    let delayed = Arc::new(Mutex::new(0));
    let counts = Arc::clone(&delayed);
    limit.emitter().on("delayed", move |_: &mut Delayed, _| *counts.lock().expect("nobody panics") += 1)?;
    let run = |n| echo.run(n).middleware(limit.clone());
    let (first, second) = tokio::join!(run(1), run(2));
    first.and(second)?;
    let mut left = Box::pin(run(3));
    assert!((&mut left).now_or_never().is_none());
    drop(left);
    advance(ms(100)).await;
    run(4).await?;
    assert_eq!(*delayed.lock().expect("nobody panics"), 1, "the second has waited");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_that_would_wait_too_long_is_denied_when_it_is_first_in_the_queue() -> TestResult {
    let (echo, limit) = (echo(&Emitter::new()), RateLimit::builder(1, ms(100)).wait(ms(150)).build()?);
    let begun = Instant::now();
    let run = || async { (echo.run(1).middleware(limit.clone()).await, begun.elapsed()) };
    let (first, second, third, fourth) = tokio::join!(run(), run(), run(), run());
    assert!(first.0.is_ok() && second.0.is_ok());
    assert_eq!((first.1, second.1), (ms(0), ms(100)));
    // When the second run has left the queue, the third run is first, but could begin only 200 ms after the start.
    assert_eq!((third.0.expect_err("too long").details()["retry_after_ms"].clone(), third.1), (json!(100), ms(100)));
    assert_eq!((fourth.0.expect_err("too long").is_denied(), fourth.1), (true, ms(100)));
    Ok(())
}

/// A future that is not polled keeps its place in the queue.
#[tokio::test(start_paused = true)]
async fn a_run_that_waited_too_long_is_denied_with_the_time_until_the_runs_ahead_may_pass() -> TestResult {
    for ahead in [1, 3] {
        let (echo, limit) = (echo(&Emitter::new()), RateLimit::builder(1, ms(100)).wait(ms(1_000)).build()?);
        let run = || Box::pin(async { echo.run(1).middleware(limit.clone()).await });
        run().await?;
        let mut stuck: Vec<_> = (0..ahead).map(|_| run()).collect();
        assert!(stuck.iter_mut().all(|stuck| stuck.now_or_never().is_none()));
        let begun = Instant::now();
        let error = run().await.expect_err("too long");
        assert_eq!((error.details()["retry_after_ms"].clone(), begun.elapsed()), (json!(100 * ahead), ms(1_000)));
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn each_attempt_is_counted_by_the_rate_limit() -> TestResult {
    let again = instance(&Emitter::new(), "Tool", "again", |(): (), _: RunContext| async {
        Err::<(), _>(Error::retry("not yet"))
    });
    let limit = RateLimit::builder(3, ms(1_000)).build()?;
    let error = again.run(()).middleware(limit).max_middleware_retries(9).await.expect_err("it never succeeds");
    assert!(error.is_denied(), "{error:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_applies_only_to_the_selected_kinds() -> TestResult {
    let root = Emitter::new();
    let model = instance(&root, "Model", "m", |n: u64, _: RunContext| async move { Ok(n) });
    let limit = RateLimit::builder(1, ms(1_000)).of_kind("Model").of_kind("Embedding").build()?;
    for _ in 0..3 {
        // `for_tree`: a limit that is bound only to a run that it does not limit is refused.
        echo(&root).run(1).middleware(for_tree(limit.clone())).await?;
    }
    assert!(model.run(1).middleware(limit.clone()).await.is_ok());
    assert!(model.run(1).middleware(limit).await.is_err());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn for_tree_counts_the_run_and_all_runs_below_together() -> TestResult {
    let root = Emitter::new();
    let inner = Arc::new(echo(&root));
    let outer = instance(&root, "Assistant", "Desk", move |n: u64, _: RunContext| {
        let inner = Arc::clone(&inner);
        async move {
            let mut passed = 0;
            for i in 0..n {
                passed += u64::from(inner.run(i).await.is_ok());
            }
            Ok(passed)
        }
    });
    let limit = RateLimit::builder(4, ms(1_000)).build()?;
    assert_eq!(outer.run(9).middleware(for_tree(limit)).await?, 3);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_is_shared_by_100_concurrent_runs() -> TestResult {
    let (echo, limit) = (echo(&Emitter::new()), RateLimit::builder(30, ms(1_000)).build()?);
    let runs = (0..100).map(|n| echo.run(n).middleware(limit.clone()));
    let results = futures_util::future::join_all(runs).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 30);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn keys_with_a_replenished_quota_are_forgotten() -> TestResult {
    let limit = RateLimit::builder(2, ms(100)).by(Key::context("user_id")).build()?;
    let echo = echo(&Emitter::new());
    for n in 0..10_000 {
        echo.run(1).context(user(n)).middleware(limit.clone()).await?;
        advance(ms(1)).await;
    }
    assert!(limit.known_keys() <= 200, "{}", limit.known_keys());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn events_of_a_rate_limit_reach_its_emitter_and_the_run_with_the_run_s_ids() -> TestResult {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let note = |heard: &Arc<Mutex<Vec<String>>>, line: String, meta: &EventMeta<'_>| {
        let id = meta.trace().expect("in a run").run_id;
        heard.lock().expect("nobody panics").push(format!("{} {line} {id}", meta.path()));
    };
    for own in [true, false] {
        let (echo, heard) = (echo(&Emitter::new()), Arc::clone(&heard));
        let (delayed, denied) = (Arc::clone(&heard), Arc::clone(&heard));
        let delayed = move |event: &mut Delayed, meta: &EventMeta<'_>| {
            note(&delayed, format!("{} {}", event.key, event.waited_ms), meta);
        };
        let denied = move |event: &mut Denied, meta: &EventMeta<'_>| {
            note(&denied, format!("{} {:?}", event.key, event.retry_after_ms), meta);
        };
        let limit = RateLimit::builder(1, ms(100)).by(Key::context("user_id")).wait(ms(100)).build()?;
        let ids = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&ids);
        if own {
            limit.emitter().on("delayed", delayed.clone())?;
            limit.emitter().on("denied", denied.clone())?;
        }
        let run = || {
            let keep = Arc::clone(&keep);
            let run = echo.run(1).context(user("ann")).middleware(limit.clone()).middleware(move |ctx: &RunContext| {
                keep.lock().expect("nobody panics").push(ctx.run_id());
                Ok(())
            });
            if own {
                return run;
            }
            run.on("middleware.rate_limit.delayed", delayed.clone()).on("middleware.rate_limit.denied", denied.clone())
        };
        let (first, second, third) = tokio::join!(run(), run(), run());
        assert!(first.is_ok() && second.is_ok() && third.is_err());
        let ids = ids.lock().expect("nobody panics").clone();
        let expected = [
            format!("middleware.rate_limit.delayed \"ann\" 100 {}", ids[1]),
            format!("middleware.rate_limit.denied \"ann\" Some(100) {}", ids[2]),
        ];
        let mut heard = std::mem::take(&mut *heard.lock().expect("nobody panics"));
        // Both events are emitted at the same time, so their order is not specified.
        heard.sort();
        assert_eq!(heard, expected);
    }
    Ok(())
}

// M5: observers fail open.
#[tokio::test(start_paused = true)]
async fn a_failing_listener_does_not_affect_a_rate_limit() -> TestResult {
    let (echo, limit) = (echo(&Emitter::new()), RateLimit::builder(1, ms(100)).wait(ms(100)).build()?);
    let failing = Failing::default();
    limit.emitter().on("delayed", failing.listener::<Delayed>())?;
    for _ in 0..2 {
        echo.run(1).middleware(limit.clone()).await?;
    }
    assert_eq!(failing.calls(), 1, "the second run waits");
    Ok(())
}

#[test]
fn explain_lists_a_rate_limit_with_its_options() -> TestResult {
    let echo = echo(&Emitter::new());
    let limit = RateLimit::builder(10, ms(1_000)).burst(3).by(Key::context("user_id")).of_kind("Tool").wait(ms(50));
    let lines = [
        "echo",
        "  bound:",
        "    rate_limit: 10 runs of Tool in 1s, by `user_id` of the context, 3 at once, waits up to 50ms",
        "  passes:",
        "    guard     rate_limit: 10 runs of Tool in 1s, by `user_id` of the context, 3 at once, waits up to 50ms",
    ];
    assert_eq!(echo.run(1).middleware(limit.build()?).explain().to_string(), lines.join("\n"));
    let summary = |limit: RateLimit| limit.describe().summary();
    let rows = [
        (RateLimit::builder(1, ms(5)).build()?, "1 runs in 5ms, all together, denies"),
        (RateLimit::builder(1, ms(5)).by(Key::kind()).wait(Duration::MAX).build()?, "1 runs in 5ms, by kind, waits"),
    ];
    for (limit, text) in rows {
        assert_eq!(summary(limit), Summary::Text(text.to_owned()));
    }
    Ok(())
}
