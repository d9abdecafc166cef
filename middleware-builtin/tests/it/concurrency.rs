//! The number of concurrent runs per key is limited; excess runs wait in the order of their arrival, or are denied.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Failing, TestResult, instance};
use emitree_emitter::{Context, Emitter, EventMeta};
use emitree_middleware::Concurrency;
use emitree_middleware::concurrency::{ConcurrencyError, Delayed, Denied};
use emitree_middleware::key::{Key, Missing};
use emitree_runtime::{AbortHandle, Error, RunContext, Runnable, for_tree};
use futures_util::FutureExt;
use futures_util::future::{join_all, try_join_all};
use serde_json::json;
use tokio::time::{Instant, sleep};

const FOREVER: Duration = Duration::MAX;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns a tool that sleeps for the given number of milliseconds.
fn nap(root: &Emitter) -> impl Runnable<Input = u64, Output = u64> + 'static {
    instance(root, "Tool", "nap", |n: u64, _: RunContext| async move {
        sleep(ms(n)).await;
        Ok(n)
    })
}

/// Counts the runs under way, and records the maximum.
#[derive(Clone, Default)]
struct Gauge(Arc<[AtomicUsize; 2]>);

impl Gauge {
    fn enter(&self) -> impl Drop + use<> {
        struct Leave(Gauge);
        impl Drop for Leave {
            fn drop(&mut self) {
                self.0.0[0].fetch_sub(1, Ordering::Relaxed);
            }
        }
        let now = self.0[0].fetch_add(1, Ordering::Relaxed) + 1;
        self.0[1].fetch_max(now, Ordering::Relaxed);
        Leave(self.clone())
    }

    fn most(&self) -> usize {
        self.0[1].load(Ordering::Relaxed)
    }
}

fn user(id: &str) -> Context {
    Context::new().with("user_id", id)
}

#[tokio::test(start_paused = true)]
async fn runs_beyond_the_limit_are_denied_with_the_time_to_retry_after() -> TestResult {
    let (nap, limit) = (nap(&Emitter::new()), Concurrency::builder(2).retry_after(ms(50)).build()?);
    let results = join_all((0..3).map(|_| nap.run(10).middleware(limit.clone()))).await;
    let error = results[2].as_ref().expect_err("there are two permits");
    assert!(results[0].is_ok() && results[1].is_ok());
    assert_eq!(
        error.explain(),
        "denied by concurrency: at most 2 concurrent runs are allowed: retry after 50ms\n  retry_after_ms: 50"
    );
    nap.run(10).middleware(limit).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn waiting_runs_get_their_permits_in_the_order_of_their_arrival() -> TestResult {
    let (order, begun) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
    let seen = Arc::clone(&order);
    let note = instance(&Emitter::new(), "Tool", "note", move |n: u64, _: RunContext| {
        seen.lock().expect("nobody panics").push((n, begun.elapsed()));
        async {
            sleep(ms(100)).await;
            Ok(())
        }
    });
    let limit = Concurrency::builder(2).wait(FOREVER).build()?;
    try_join_all((0..6).map(|n| note.run(n).middleware(limit.clone()))).await?;
    let expected: Vec<_> = (0..6).map(|n| (n, ms(100 * (n / 2)))).collect();
    assert_eq!(*order.lock().expect("nobody panics"), expected);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_too_long_for_a_permit_is_denied() -> TestResult {
    let (nap, limit) = (nap(&Emitter::new()), Concurrency::builder(1).wait(ms(50)).build()?);
    let begun = Instant::now();
    let run = |n| async move { (n, begun.elapsed()) };
    let (first, second) = tokio::join!(nap.run(100).middleware(limit.clone()), async {
        (nap.run(1).middleware(limit.clone()).await, run(0).await.1)
    });
    assert!(first.is_ok());
    assert!(second.0.expect_err("too long").is_denied());
    assert_eq!(second.1, ms(50));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_that_leaves_the_queue_or_returns_its_permit_lets_the_next_run_move_up() -> TestResult {
    let (nap, limit) = (nap(&Emitter::new()), Concurrency::builder(1).wait(FOREVER).build()?);
    let run = |n| nap.run(n).middleware(limit.clone());
    let (mut holds, mut waits, abort) = (Box::pin(run(1_000)), Box::pin(run(1_000)), AbortHandle::new());
    assert!((&mut holds).now_or_never().is_none());
    assert!((&mut waits).now_or_never().is_none());
    let begun = Instant::now();
    let aborted = run(1_000).abort_on(&abort);
    let (aborted, last) = tokio::join!(aborted, async {
        let (last, ()) = tokio::join!(run(5), async {
            sleep(ms(10)).await;
            drop(waits);
            abort.abort("enough");
            sleep(ms(10)).await;
            drop(holds);
        });
        last.map(|_| begun.elapsed())
    });
    assert!(aborted.expect_err("it was aborted").is_aborted());
    assert_eq!(last?, ms(25));
    assert_eq!(limit.known_keys(), 0);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn each_key_has_its_own_permits_and_idle_keys_are_forgotten() -> TestResult {
    let (nap, limit) = (nap(&Emitter::new()), Concurrency::builder(1).by(Key::context("user_id")).build()?);
    let run = |id: &str| nap.run(10).context(user(id)).middleware(limit.clone());
    let (ann, bob, again, known) = tokio::join!(run("ann"), run("bob"), run("ann"), async { limit.known_keys() });
    assert!(ann.is_ok() && bob.is_ok() && again.is_err());
    assert_eq!((known, limit.known_keys()), (2, 0));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn runs_without_the_key_share_permits_pass_or_are_denied_as_configured() -> TestResult {
    let nap = nap(&Emitter::new());
    let rows = [(Missing::Together, [true, false]), (Missing::Pass, [true, true]), (Missing::Deny, [false, false])];
    for (missing, expected) in rows {
        let limit = Concurrency::builder(1).by(Key::context("user_id").when_missing(missing)).build()?;
        let results = join_all((0..2).map(|_| nap.run(10).middleware(limit.clone()))).await;
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), expected, "{missing:?}");
    }
    Ok(())
}

// M5: guards fail closed.
#[tokio::test(start_paused = true)]
async fn a_failing_key_function_of_a_concurrency_limit_denies_the_run_with_the_cause() -> TestResult {
    let limit = Concurrency::builder(1).by(Key::of(|_| Err(Error::new("no such user")))).build()?;
    let error = nap(&Emitter::new()).run(1).middleware(limit).await.expect_err("it fails closed");
    assert_eq!(
        error.explain(),
        "denied by concurrency: the key function failed: no such user\n  caused by: no such user"
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_below_a_run_with_a_permit_of_the_same_key_shares_the_permit() -> TestResult {
    let root = Emitter::new();
    let (leaf, gauge) = (Arc::new(nap(&root)), Gauge::default());
    let seen = gauge.clone();
    let tree = instance(&root, "Tool", "tree", move |(): (), _: RunContext| {
        let (leaf, seen) = (Arc::clone(&leaf), seen.clone());
        async move {
            let _inside = seen.enter();
            leaf.run(5).await?;
            leaf.run(5).await
        }
    });
    let limit = Concurrency::builder(1).wait(FOREVER).build()?;
    let runs = try_join_all((0..4).map(|_| tree.run(()).middleware(for_tree(limit.clone()))));
    tokio::time::timeout(Duration::from_secs(3600), runs).await.expect("no leaf waits for the permit of its tree")?;
    assert_eq!((gauge.most(), limit.known_keys()), (1, 0));
    Ok(())
}

/// A value that records, when it is dropped, the number of keys with a held permit.
struct KeysAtDrop(Concurrency, Arc<Mutex<Vec<usize>>>);

impl Drop for KeysAtDrop {
    fn drop(&mut self) {
        self.1.lock().expect("nobody panics").push(self.0.known_keys());
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_returned_when_the_last_of_the_runs_that_share_it_has_ended() -> TestResult {
    let (root, limit, keys) = (Emitter::new(), Concurrency::builder(1).build()?, Arc::default());
    let (shared, seen) = (limit.clone(), Arc::clone(&keys));
    let leaf = Arc::new(instance(&root, "Tool", "leaf", move |(): (), _: RunContext| {
        let at_end = KeysAtDrop(shared.clone(), Arc::clone(&seen));
        async move {
            let _at_end = at_end;
            std::future::pending::<Result<(), Error>>().await
        }
    }));
    let tree = instance(&root, "Tool", "tree", move |(): (), ctx: RunContext| {
        let leaf = leaf.run_shared(());
        async move {
            drop(ctx.spawn(leaf));
            tokio::task::yield_now().await;
            Ok(())
        }
    });
    // The leaf is aborted when the work of `tree` is over, so it is the last run that shares the permit.
    for ended in 1..=2 {
        tree.run(()).middleware(for_tree(limit.clone())).await?;
        assert_eq!(*keys.lock().expect("nobody panics"), vec![1; ended], "the permit is held until the leaf ends");
        assert_eq!(limit.known_keys(), 0);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_below_of_a_limited_kind_or_another_key_needs_its_own_permit() -> TestResult {
    let root = Emitter::new();
    let leaf = Arc::new(nap(&root));
    let tree = instance(&root, "Assistant", "tree", move |n: u64, _: RunContext| {
        let leaf = Arc::clone(&leaf);
        async move {
            let results = join_all((0..n).map(|_| leaf.run(5))).await;
            Ok(results.iter().filter(|result| result.is_ok()).count())
        }
    });
    let tools = Concurrency::builder(2).of_kind("Tool").build()?;
    assert_eq!(tree.run(5).middleware(for_tree(tools)).await?, 2);
    let each_kind = Concurrency::builder(3).by(Key::kind()).build()?;
    assert_eq!(tree.run(5).middleware(for_tree(each_kind)).await?, 3);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_permit_is_returned_between_attempts() -> TestResult {
    let root = Emitter::new();
    let (tries, begun) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let again = instance(&root, "Tool", "again", move |(): (), _: RunContext| {
        let tries = tries.fetch_add(1, Ordering::Relaxed);
        async move {
            sleep(ms(10)).await;
            if tries == 0 { Err(Error::retry("not yet")) } else { Ok(begun.elapsed()) }
        }
    });
    let nap = nap(&root);
    let limit = Concurrency::builder(1).wait(FOREVER).build()?;
    let (again, between) = tokio::join!(
        again.run(()).middleware(limit.clone()).max_middleware_retries(1),
        nap.run(100).middleware(limit.clone())
    );
    between?;
    assert_eq!(again?, ms(120));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_concurrency_limit_is_shared_by_100_concurrent_runs() -> TestResult {
    let gauge = Gauge::default();
    let seen = gauge.clone();
    let busy = instance(&Emitter::new(), "Tool", "busy", move |n: u64, _: RunContext| {
        let inside = seen.enter();
        async move {
            sleep(ms(n % 7)).await;
            drop(inside);
            Ok(())
        }
    });
    let limit = Concurrency::builder(10).wait(FOREVER).build()?;
    try_join_all((0..100).map(|n| busy.run(n).middleware(limit.clone()))).await?;
    assert_eq!((gauge.most(), limit.known_keys()), (10, 0));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn events_of_a_concurrency_limit_reach_its_emitter_and_the_run_with_the_run_s_ids() -> TestResult {
    for own in [true, false] {
        let (nap, heard) = (nap(&Emitter::new()), Arc::new(Mutex::new(Vec::new())));
        let limit = Concurrency::builder(1).by(Key::context("user_id")).wait(ms(15)).build()?;
        let note = |line: String, meta: &EventMeta<'_>, to: &Arc<Mutex<Vec<String>>>| {
            let run = RunContext::current().expect("in a run").run_id();
            assert_eq!(meta.trace().map(|trace| trace.run_id), Some(run));
            to.lock().expect("nobody panics").push(format!("{} {line}", meta.path()));
        };
        let (a, b) = (Arc::clone(&heard), Arc::clone(&heard));
        let delayed = move |event: &mut Delayed, meta: &EventMeta<'_>| {
            note(format!("{} {}", event.key, event.waited_ms), meta, &a);
        };
        let denied = move |event: &mut Denied, meta: &EventMeta<'_>| {
            note(format!("{} {:?}", event.key, event.retry_after_ms), meta, &b);
        };
        if own {
            limit.emitter().on("delayed", delayed.clone())?;
            limit.emitter().on("denied", denied.clone())?;
        }
        let run = || {
            let run = nap.run(10).context(user("ann")).middleware(limit.clone());
            if own {
                return run;
            }
            run.on("middleware.concurrency.delayed", delayed.clone())
                .on("middleware.concurrency.denied", denied.clone())
        };
        let (first, second, third) = tokio::join!(run(), run(), run());
        assert!(first.is_ok() && second.is_ok() && third.is_err());
        let expected =
            ["middleware.concurrency.delayed \"ann\" 10", "middleware.concurrency.denied \"ann\" Some(1000)"];
        assert_eq!(*heard.lock().expect("nobody panics"), expected);
    }
    Ok(())
}

// M5: observers fail open.
#[tokio::test(start_paused = true)]
async fn a_failing_listener_does_not_affect_a_concurrency_limit() -> TestResult {
    let (nap, limit, failing) =
        (nap(&Emitter::new()), Concurrency::builder(1).wait(FOREVER).build()?, Failing::default());
    limit.emitter().on("delayed", failing.listener::<Delayed>())?;
    try_join_all((0..3).map(|_| nap.run(1).middleware(limit.clone()))).await?;
    assert_eq!(failing.calls(), 2, "two runs wait");
    Ok(())
}

#[test]
fn an_invalid_number_of_permits_is_an_error_that_quotes_it() {
    let rows = [
        (0, "`0` permits would deny every run: at least 1 is needed".to_owned()),
        (usize::MAX, format!("`{}` permits are too many: at most {} are allowed", usize::MAX, usize::MAX >> 3)),
    ];
    for (permits, message) in rows {
        let error: ConcurrencyError = Concurrency::builder(permits).build().expect_err("it cannot be");
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn explain_lists_a_concurrency_limit_with_its_options() -> TestResult {
    let limit = Concurrency::builder(3).by(Key::instance()).of_kind("Tool").of_kind("Model").wait(ms(50)).build()?;
    let lines = [
        "nap",
        "  bound:",
        "    concurrency: 3 runs of Tool or of Model at once, by instance, waits up to 50ms",
        "  passes:",
        "    guard     concurrency: 3 runs of Tool or of Model at once, by instance, waits up to 50ms",
    ];
    assert_eq!(nap(&Emitter::new()).run(1).middleware(limit).explain().to_string(), lines.join("\n"));
    assert_eq!(format!("{:?}", Concurrency::builder(1)), "1 runs at once, all together, denies");
    assert_eq!(json!(Missing::Together), json!("together"));
    Ok(())
}
