//! The cache: answers are reused, and equal concurrent requests are executed once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::{Any, Failing, TestResult, instance};
use emitree_emitter::{AnyEvent, Context, Emitter, EventMeta};
use emitree_middleware::cache::{CacheError, Hit, Joined, Miss, Why};
use emitree_middleware::{Cache, Retry};
use emitree_runtime::{
    AbortHandle, Data, Error, Guard, Interrupt, Next, Op, Phase, Result, RunContext, Runnable, Stack, for_tree,
    layer_fn, map_output,
};
use futures_util::FutureExt;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{advance, sleep};
use uuid::Uuid;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns a tool whose output is the number of its executions so far.
fn counts<I: Data + Clone>(root: &Emitter) -> impl Runnable<Input = I, Output = u32> + 'static {
    let count = AtomicU32::new(0);
    instance(root, "Tool", "count", move |_: I, _: RunContext| {
        let n = count.fetch_add(1, Ordering::Relaxed) + 1;
        async move { Ok(n) }
    })
}

/// Returns a tool whose output is the number of its executions so far. Each execution waits for a permit of `gate`.
fn gated(root: &Emitter, gate: &Arc<Semaphore>) -> impl Runnable<Input = u32, Output = u32> + 'static {
    let (count, gate) = (AtomicU32::new(0), Arc::clone(gate));
    instance(root, "Tool", "gated", move |_: u32, _: RunContext| {
        let (n, gate) = (count.fetch_add(1, Ordering::Relaxed) + 1, Arc::clone(&gate));
        async move {
            gate.acquire().await?.forget();
            Ok(n)
        }
    })
}

fn typed() -> Cache<u32> {
    Cache::typed().build().expect("options that are right")
}

/// Records the names of the events that a cache emits, in order.
fn told<T>(cache: &Cache<T>) -> Arc<Mutex<Vec<String>>> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let hear = move |_: &dyn AnyEvent, meta: &EventMeta<'_>| {
        tell.lock().expect("nobody panics").push(meta.name().to_owned());
    };
    cache.emitter().observe("*.*", hear).expect("a matcher that is right");
    told
}

fn take(told: &Mutex<Vec<String>>) -> Vec<String> {
    std::mem::take(&mut *told.lock().expect("nobody panics"))
}

#[tokio::test]
async fn a_run_with_an_input_that_was_answered_before_gets_the_cached_output() -> TestResult {
    let (count, cache) = (counts::<u32>(&Emitter::new()), typed());
    let told = told(&cache);
    assert_eq!(count.run(7).layer(cache.clone()).await?, 1);
    assert_eq!(count.run(7).layer(cache.clone()).await?, 1);
    assert_eq!(count.run(8).layer(cache.clone()).await?, 2);
    assert_eq!(count.run(8).middleware(cache.stack::<CountsOf>()).await.map_err(|_| ()), Err(()), "other types");
    assert_eq!(take(&told), ["miss", "hit", "miss"]);
    Ok(())
}

/// A kind of work whose types differ from the types of `counts`.
struct CountsOf;
impl Op for CountsOf {
    type In = String;
    type Out = u32;
}

#[tokio::test]
async fn a_json_cache_answers_runs_of_any_type() -> TestResult {
    let root = Emitter::new();
    let (count, cache) = (Arc::new(counts::<u32>(&root)), Cache::json().build()?);
    let nested = Arc::clone(&count);
    let outer = instance(&root, "Assistant", "Desk", move |text: String, _| {
        let nested = Arc::clone(&nested);
        async move { Ok(format!("{text} {} {} {}", nested.run(1).await?, nested.run(1).await?, nested.run(2).await?)) }
    });
    let told = told(&cache);
    assert_eq!(outer.run("a".to_owned()).middleware(for_tree(cache.clone())).await?, "a 1 1 2");
    assert_eq!(outer.run("b".to_owned()).middleware(for_tree(cache.clone())).await?, "b 1 1 2");
    assert_eq!(outer.run("a".to_owned()).middleware(for_tree(cache.clone())).await?, "a 1 1 2");
    assert_eq!(take(&told), ["miss", "miss", "hit", "miss", "miss", "hit", "hit", "hit", "hit"]);
    Ok(())
}

#[tokio::test]
async fn inputs_are_equal_if_their_canonical_json_is_equal() -> TestResult {
    let (count, cache) = (counts::<HashMap<String, u32>>(&Emitter::new()), typed());
    let input = |keys: &mut dyn Iterator<Item = u32>| keys.map(|n| (format!("key {n}"), n)).collect();
    assert_eq!(count.run(input(&mut (0..50))).layer(cache.clone()).await?, 1);
    for _ in 0..5 {
        assert_eq!(count.run(input(&mut (0..50).rev())).layer(cache.clone()).await?, 1);
    }
    let count = counts::<Raw>(&Emitter::new());
    let raw = |text: &str| serde_json::from_str::<Raw>(text);
    assert_eq!(count.run(raw(r#"{"b":1,"a":2}"#)?).layer(cache.clone()).await?, 1);
    assert_eq!(count.run(raw(r#"{ "a" : 2, "b" : 1 }"#)?).layer(cache.clone()).await?, 1);
    assert_eq!(count.run(raw(r#"{"a":2}"#)?).layer(cache.clone()).await?, 2);
    Ok(())
}

/// JSON text as it was written, with its order of keys and its spaces.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
struct Raw(Box<serde_json::value::RawValue>);

#[tokio::test]
async fn each_instance_and_name_has_its_own_entries_unless_the_cache_has_a_scope() -> TestResult {
    let (root, cache) = (Emitter::new(), typed());
    let (one, other) = (counts::<u32>(&root), counts::<u32>(&root));
    one.run(1).layer(cache.clone()).await?;
    assert_eq!((one.run(9).layer(cache.clone()).await?, other.run(9).layer(cache.clone()).await?), (2, 1));

    let named =
        |name: &'static str| instance(&root, "Tool", "x", move |_: u32, _| async move { Ok(name.len() as u32) });
    let same_emitter = root.child("same")?;
    let (short, long) = (named("a").with_emitter(same_emitter.clone()), counts::<u32>(&root));
    let renamed = emitree_runtime::runnable_fn("longer", |_: u32, _| async { Ok(6) }).with_emitter(same_emitter);
    assert_eq!((short.run(1).layer(cache.clone()).await?, renamed.run(1).layer(cache.clone()).await?), (1, 6));

    let shared = Cache::typed().scope("both").build()?;
    assert_eq!((long.run(9).layer(shared.clone()).await?, other.run(9).layer(shared.clone()).await?), (1, 1));
    Ok(())
}

#[tokio::test]
async fn the_cache_key_includes_the_chosen_context_keys_and_no_others() -> TestResult {
    let count = counts::<u32>(&Emitter::new());
    let cache = Cache::typed().context_keys(["user", "a"]).context_keys(["user"]).build()?;
    let run = |context: Value| count.run(1).context(context).layer(cache.clone());
    assert_eq!(run(json!({"user": {"x": 1, "y": 2}})).await?, 1);
    assert_eq!(run(json!({"user": {"y": 2, "x": 1}, "trace": 1})).await?, 1);
    assert_eq!(run(json!({"a": {"x": 1, "y": 2}})).await?, 2);
    assert_eq!(run(json!({"user": null})).await?, 3);
    assert_eq!(run(json!({})).await?, 4);
    assert_eq!(run(json!({"trace": 2})).await?, 4);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_too_old_is_replaced() -> TestResult {
    let (count, cache) = (counts::<u32>(&Emitter::new()), Cache::typed().ttl(ms(100)).build()?);
    let why = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&why);
    cache.emitter().on("miss", move |miss: &mut Miss, _| keep.lock().expect("nobody panics").push(miss.why))?;
    for (wait, expected) in [(0, 1), (99, 1), (1, 2), (99, 2), (1_000, 3)] {
        advance(ms(wait)).await;
        assert_eq!(count.run(1).layer(cache.clone()).await?, expected, "after {wait} ms more");
    }
    assert_eq!(*why.lock().expect("nobody panics"), [Why::Absent, Why::Expired, Why::Expired]);
    Ok(())
}

#[tokio::test]
async fn the_cache_stays_within_its_maximum_of_entries_or_bytes() -> TestResult {
    let count = counts::<String>(&Emitter::new());
    let few = Cache::typed().max_entries(10).build()?;
    let small = Cache::typed().max_bytes(200).build()?;
    for n in 0..100 {
        count.run(n.to_string()).layer(few.clone()).layer(small.clone()).await?;
    }
    assert!((1..=10).contains(&few.len()), "{} entries", few.len());
    assert!((1..=12).contains(&small.len()), "{} entries of at least 16 bytes", small.len());
    let before = small.len();
    let large = "x".repeat(300);
    let one = count.run(large.clone()).layer(small.clone()).await?;
    assert_ne!(count.run(large).layer(small.clone()).await?, one, "larger than all the room");
    assert!(small.len() <= before);
    Ok(())
}

#[tokio::test]
async fn identical_concurrent_runs_are_executed_once() -> TestResult {
    let (gate, cache) = (Arc::new(Semaphore::new(0)), typed());
    let (gated, told) = (gated(&Emitter::new(), &gate), told(&cache));
    let runs = join_all((0..100).map(|_| gated.run(1).layer(cache.clone())));
    let (results, ()) = tokio::join!(runs, async { gate.add_permits(100) });
    assert!(results.iter().all(|result| matches!(result, Ok(1))), "{results:?}");
    let told = take(&told);
    assert_eq!((told[0].as_str(), told.iter().filter(|name| *name == "joined").count()), ("miss", 99), "{told:?}");
    assert_eq!(gate.available_permits(), 99);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn identical_concurrent_runs_on_several_threads_are_executed_once() -> TestResult {
    let (count, cache) = (Arc::new(counts::<u32>(&Emitter::new())), typed());
    for round in 0..50 {
        let tasks = (0..16).map(|_| {
            let (count, cache) = (Arc::clone(&count), cache.clone());
            tokio::spawn(async move { count.run(round).layer(cache).await })
        });
        for result in join_all(tasks).await {
            assert_eq!(result??, round + 1);
        }
    }
    Ok(())
}

#[tokio::test]
async fn if_the_executing_run_is_dropped_a_joined_run_executes() -> TestResult {
    let (gate, cache) = (Arc::new(Semaphore::new(0)), typed());
    let gated = Arc::new(gated(&Emitter::new(), &gate));
    let run = || {
        let (gated, cache) = (Arc::clone(&gated), cache.clone());
        tokio::spawn(async move { gated.run(1).layer(cache).await })
    };
    // The runs become the leader one after the other. The first 497 leaders are aborted.
    let mut runs: Vec<_> = (0..500).map(|_| run()).collect();
    tokio::task::yield_now().await;
    for leader in runs.drain(..497) {
        leader.abort();
        assert!(leader.await.is_err_and(|error| error.is_cancelled()));
        tokio::task::yield_now().await;
    }
    gate.add_permits(1);
    let results: Vec<_> = join_all(runs).await.into_iter().map(|joined| joined.expect("not aborted").ok()).collect();
    assert!(results[0].is_some() && results.iter().all(|result| *result == results[0]), "{results:?}");
    Ok(())
}

#[tokio::test]
async fn if_the_executing_run_is_aborted_or_panics_a_joined_run_executes() -> TestResult {
    for sort in ["abort", "panic"] {
        let (count, cache) = (Arc::new(AtomicU32::new(0)), typed());
        let (gate, counted) = (Arc::new(Semaphore::new(0)), Arc::clone(&count));
        let (opens, handle) = (Arc::clone(&gate), AbortHandle::new());
        let work = instance(&Emitter::new(), "Tool", "work", move |_: u32, _: RunContext| {
            let (n, gate) = (counted.fetch_add(1, Ordering::Relaxed) + 1, Arc::clone(&gate));
            async move {
                gate.acquire().await?.forget();
                assert!(n > 1 || sort != "panic", "the first one panics");
                Ok(n)
            }
        });
        let leader = work.run(1).layer(cache.clone()).abort_on(handle.signal());
        let joined = join_all((0..10).map(|_| work.run(1).layer(cache.clone())));
        let (leader, joined, ()) = tokio::join!(leader, joined, async {
            if sort == "abort" {
                handle.abort("enough");
            }
            opens.add_permits(10);
        });
        let error = leader.expect_err("it has not ended well");
        assert_eq!((error.is_aborted(), sort == "abort"), (sort == "abort", error.is_aborted()));
        assert!(joined.iter().all(|result| matches!(result, Ok(2))), "{sort}: {joined:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_joined_run_can_be_aborted_or_dropped_without_affecting_the_others() -> TestResult {
    let (gate, cache, handle) = (Arc::new(Semaphore::new(0)), typed(), AbortHandle::new());
    let gated = gated(&Emitter::new(), &gate);
    let run = || gated.run(1).layer(cache.clone());
    let mut dropped = Box::pin(run());
    let (leader, aborted, last, ()) = tokio::join!(run(), run().abort_on(handle.signal()), run(), async {
        assert!((&mut dropped).now_or_never().is_none());
        drop(dropped);
        handle.abort("enough");
        tokio::task::yield_now().await;
        gate.add_permits(1);
    });
    assert!(aborted.expect_err("aborted").is_aborted());
    assert_eq!((leader?, last?), (1, 1));
    Ok(())
}

#[tokio::test]
async fn a_joined_run_shares_a_failure_but_executes_itself_after_control_flow() -> TestResult {
    type Ends = fn() -> Error;
    let rows: [(&str, Ends, u32); 7] = [
        ("failed", || Error::new("no"), 1),
        ("fatal", || Error::new("no").fatal(true), 1),
        ("denied", || Error::denied("guard", "no"), 5),
        ("halted", || Error::halted("guard", "no"), 5),
        ("timed out", || Error::timed_out("late"), 5),
        ("interrupted", || Error::interrupted(Interrupt::new("approval", Value::Null)), 5),
        ("aborted", || Error::aborted("no"), 5),
    ];
    for (what, ends, executed) in rows {
        let (count, cache, gate) = (Arc::new(AtomicU32::new(0)), typed(), Arc::new(Semaphore::new(0)));
        let (counted, opens) = (Arc::clone(&count), Arc::clone(&gate));
        let work = instance(&Emitter::new(), "Tool", "work", move |_: u32, _: RunContext| {
            counted.fetch_add(1, Ordering::Relaxed);
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await?.forget();
                Err::<u32, _>(ends())
            }
        });
        let runs = join_all((0..5).map(|_| work.run(1).layer(cache.clone())));
        let (results, ()) = tokio::join!(runs, async { opens.add_permits(10) });
        assert!(
            results.iter().all(|result| result.as_ref().is_err_and(|e| *e.kind() == *ends().kind())),
            "{results:?}"
        );
        assert_eq!(count.load(Ordering::Relaxed), executed, "{what}");
        assert!(cache.is_empty());
    }
    Ok(())
}

#[tokio::test]
async fn errors_are_cached_only_on_request_and_a_denial_never_is() -> TestResult {
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let fails = instance(&Emitter::new(), "Tool", "fails", move |denied: bool, _: RunContext| {
        let n = counted.fetch_add(1, Ordering::Relaxed) + 1;
        async move { Err::<u32, _>(if denied { Error::denied("x", "no") } else { Error::new(n.to_string()) }) }
    });
    let run = |cache: &Cache<u32>, denied: bool| {
        let run = fails.run(denied).layer(cache.clone());
        async move { run.await.expect_err("it fails").to_string() }
    };
    let (plain, keeps) = (typed(), Cache::typed().cache_errors().build()?);
    assert_eq!((run(&plain, false).await, run(&plain, false).await), ("1".to_owned(), "2".to_owned()));
    assert_eq!((run(&keeps, false).await, run(&keeps, false).await), ("3".to_owned(), "3".to_owned()));
    run(&keeps, true).await;
    run(&keeps, true).await;
    assert_eq!(count.load(Ordering::Relaxed), 5);
    Ok(())
}

#[tokio::test]
async fn an_invalidated_entry_is_executed_again() -> TestResult {
    let count = counts::<u32>(&Emitter::new());
    let cache = Cache::typed().context_keys(["user"]).build()?;
    let run = |n, user: &str| count.run(n).context(json!({"user": user})).layer(cache.clone());
    assert_eq!((run(1, "a").await?, run(1, "b").await?, run(2, "a").await?), (1, 2, 3));
    cache.invalidate(&count, &1, &Context::new().with("user", "a"));
    assert_eq!((run(1, "a").await?, run(1, "b").await?, run(2, "a").await?), (4, 2, 3));
    cache.invalidate_all();
    assert!(cache.is_empty());
    assert_eq!((run(1, "b").await?, run(2, "a").await?), (5, 6));
    Ok(())
}

#[tokio::test]
async fn a_run_under_way_during_invalidate_all_is_not_cached_or_joined_by_later_runs() -> TestResult {
    let (gate, cache) = (Arc::new(Semaphore::new(0)), typed());
    let gated = gated(&Emitter::new(), &gate);
    let run = || gated.run(1).layer(cache.clone());
    let mut late = None;
    let (early, joined, ()) = tokio::join!(run(), run(), async {
        cache.invalidate_all();
        let mut run = Box::pin(run());
        assert!((&mut run).now_or_never().is_none());
        late = Some(run);
        gate.add_permits(1);
    });
    assert_eq!((early?, joined?), (1, 1));
    assert!(cache.is_empty(), "it was forgotten before it was known");
    gate.add_permits(1);
    assert_eq!(late.expect("made above").await?, 2);
    assert_eq!(run().await?, 2);
    Ok(())
}

// A run that joined itself would wait forever.
#[tokio::test]
async fn a_nested_run_with_the_same_key_does_not_wait_for_the_executing_run() -> TestResult {
    let cache = typed();
    let inner = cache.clone();
    let slot: Arc<std::sync::OnceLock<Arc<dyn emitree_runtime::AnyRunnable>>> = Arc::default();
    let (own, depth) = (Arc::clone(&slot), AtomicU32::new(0));
    let recursive = instance(&Emitter::new(), "Tool", "recursive", move |n: u32, _: RunContext| {
        let (own, deepest) = (Arc::clone(&own), depth.fetch_add(1, Ordering::Relaxed) == 2);
        async move {
            if deepest {
                return Ok(n);
            }
            let nested = own.get().expect("set below").run_json(n.into()).await?;
            Ok(u32::try_from(nested.as_u64().unwrap_or_default())? + 1)
        }
    })
    .layer(inner);
    let recursive = Arc::new(recursive);
    assert!(slot.set(recursive.clone()).is_ok());
    let told = told(&cache);
    assert_eq!(recursive.run(1).await?, 3);
    assert_eq!(recursive.run(1).await?, 3);
    assert_eq!(take(&told), ["miss", "miss", "miss", "hit"]);
    Ok(())
}

// In a cycle, each run would join the request that the next run executes.
#[tokio::test(start_paused = true)]
async fn runs_that_would_wait_for_each_other_in_a_cycle_across_caches_do_not_wait() -> TestResult {
    for n in 2..6 {
        let caches = [0, 1].map(|at| Cache::json().scope(format!("of {at}")).build().expect("a name"));
        let tree = Emitter::new();
        let leaf = Arc::new(instance(&tree, "Tool", "leaf", |i: usize, _: RunContext| async move { Ok(i) }));
        let of = caches.clone();
        let outer = instance(&tree, "Tool", "outer", move |i: usize, _: RunContext| {
            let (leaf, next) = (Arc::clone(&leaf), (i + 1) % n);
            let cache = of[next % 2].clone();
            async move {
                sleep(Duration::from_millis(10)).await;
                leaf.run(next).middleware(cache).await?;
                Ok(i)
            }
        });
        let told = told(&caches[0]);
        let runs = (0..n).map(|i| outer.run(i).middleware(caches[i % 2].clone()));
        let all = futures_util::future::try_join_all(runs);
        let outputs = tokio::time::timeout(Duration::from_secs(3600), all).await.expect("nobody waits for itself")?;
        assert_eq!(outputs, (0..n).collect::<Vec<_>>());
        // All runs except the last one join a request. `told` contains only the events of the first cache, and
        // about half of the requests use that cache.
        let joined = take(&told).iter().filter(|told| *told == "joined").count();
        assert!((n.div_ceil(2) - 1..=n.div_ceil(2)).contains(&joined), "{joined} of {n}");
    }
    Ok(())
}

// A run's list of the flights that it leads does not grow with the number of its attempts.
#[tokio::test(start_paused = true)]
async fn a_run_with_30000_attempts_through_a_cache_ends() -> TestResult {
    let fails = instance(&Emitter::new(), "Tool", "fails", |_: u32, _: RunContext| async {
        Err::<u32, _>(Error::new("busy").retryable(true))
    });
    let retry = Retry::builder().max_retries(30_000).base_delay(Duration::ZERO).build()?;
    let run = fails.run(1).middleware(retry).middleware(Cache::json().build()?);
    assert_eq!(run.await.expect_err("it always fails").to_string(), "busy");
    Ok(())
}

/// A kind of work inside a run.
struct Looks;
impl Op for Looks {
    type In = u32;
    type Out = u32;
}

// A run's list of the flights that it leads does not grow with the flights of inner work, even if one of these flights
// is always under way.
#[tokio::test]
async fn a_run_that_leads_20000_overlapping_flights_ends() -> TestResult {
    let looks = Arc::new(typed().stack::<Looks>());
    let agent = instance(&Emitter::new(), "Agent", "agent", move |n: u32, ctx: RunContext| {
        let looks = Arc::clone(&looks);
        async move {
            let look = |at: u32| {
                let (looks, ctx) = (Arc::clone(&looks), ctx.clone());
                let mut look = Box::pin(async move {
                    looks.call(&at, &ctx, |at, _| Box::pin(tokio::task::yield_now().map(|()| Ok(*at)))).await
                });
                assert!((&mut look).now_or_never().is_none());
                look
            };
            let mut before = look(0);
            for at in 1..n {
                assert_eq!(std::mem::replace(&mut before, look(at)).await?, at - 1);
            }
            before.await
        }
    });
    assert_eq!(agent.run(20_000).await?, 19_999);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_in_a_listener_of_miss_does_not_wait_for_the_run_that_missed() -> TestResult {
    let (count, cache) = (Arc::new(counts::<u32>(&Emitter::new())), typed());
    let (asks, of) = (Arc::clone(&count), cache.clone());
    cache.emitter().on_async("miss", move |miss: &mut Miss, _| {
        let (asks, of) = (Arc::clone(&asks), of.clone());
        let is_first = miss.why == Why::Absent;
        Box::pin(async move {
            if is_first {
                asks.run(7).layer(of).await?;
            }
            Ok(())
        })
    })?;
    let run = count.run(7).layer(cache.clone());
    let answered = tokio::time::timeout(Duration::from_secs(3600), run).await;
    assert_eq!(answered.expect("nobody waits for itself")?, 2);
    Ok(())
}

// M7
#[tokio::test]
async fn another_attempt_ignores_the_cached_entry_and_replaces_it() -> TestResult {
    let (count, cache) = (counts::<u32>(&Emitter::new()), typed());
    let run = |least: u32| {
        let enough = map_output(
            move |n: &mut u32, _: &RunContext| {
                if *n < least { Err(Error::retry("too few")) } else { Ok(()) }
            },
        );
        count.run(1).layer(cache.clone()).middleware(enough).max_middleware_retries(5)
    };
    assert_eq!(run(0).await?, 1);
    assert_eq!(run(3).await?, 3);
    assert_eq!(run(0).await?, 3);
    Ok(())
}

/// A guard that lets one user pass, and counts its calls.
#[derive(Debug, Default)]
pub(crate) struct OnlyAda(Arc<AtomicU32>);
impl<O: Op> Guard<O> for OnlyAda {
    async fn check_input(&self, _: &O::In, ctx: &RunContext) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        if ctx.get("user") == Some("Ada".into()) { Ok(()) } else { Err(Error::new("not Ada")) }
    }
}

#[tokio::test]
async fn a_hit_skips_a_guard_inside_the_cache_and_passes_a_guard_outside() -> TestResult {
    for (phase, called) in [(Phase::Transform, 1), (Phase::Guard, 3)] {
        let (count, asked) = (counts::<u32>(&Emitter::new()), Arc::new(AtomicU32::new(0)));
        let cache = Cache::typed().in_phase(phase).build()?;
        let run = |user: &str| {
            let guarded = count.run(1).layers(|stack| stack.guard(OnlyAda(Arc::clone(&asked))));
            guarded.middleware(cache.clone().stack::<Same>()).context(json!({"user": user}))
        };
        assert_eq!(run("Ada").await?, 1);
        assert_eq!(run("Ada").await?, 1);
        assert_eq!(run("Bob").await.is_ok_and(|n| n == 1), phase == Phase::Transform);
        assert_eq!(asked.load(Ordering::Relaxed), called, "{phase:?}");
    }
    Ok(())
}

/// A kind of work with the types of `counts`.
struct Same;
impl Op for Same {
    type In = u32;
    type Out = u32;
}

#[tokio::test]
async fn an_output_set_at_start_bypasses_the_cache() -> TestResult {
    for phase in [Phase::Observe, Phase::Transform, Phase::Guard] {
        let (count, cache) = (counts::<u32>(&Emitter::new()), Cache::typed().in_phase(phase).build()?);
        let told = told(&cache);
        let run = || count.run(7).middleware(cache.stack::<Same>());
        let early = || run().on_start(|start, _| start.output = Some(70));
        assert_eq!((early().await?, run().await?, early().await?, run().await?), (70, 1, 70, 1));
        assert_eq!(early().max_middleware_retries(1).await?, 70);
        assert_eq!(take(&told), ["miss", "hit"]);
    }
    Ok(())
}

#[tokio::test]
async fn an_output_set_at_start_bypasses_a_json_cache() -> TestResult {
    let (count, cache) = (counts::<u32>(&Emitter::new()), Cache::json().build()?);
    let run = || count.run(7).middleware(cache.clone()).middleware(Retry::new());
    let early = || run().on_start(|start, _| start.output = Some(70));
    assert_eq!((early().await?, run().await?, early().await?), (70, 1, 70));
    Ok(())
}

#[tokio::test]
async fn a_run_with_an_output_set_at_start_does_not_join_an_executing_run() -> TestResult {
    let gate = Arc::new(Semaphore::new(0));
    let (gated, cache) = (gated(&Emitter::new(), &gate), typed());
    let run = || gated.run(7).layer(cache.clone());
    let early = run().on_start(|start, _| start.output = Some(70));
    let (first, early, ()) = tokio::join!(run(), early, async { gate.add_permits(1) });
    assert_eq!((first?, early?), (1, 70));
    Ok(())
}

#[tokio::test]
async fn no_run_joins_a_run_with_an_output_set_at_start() -> TestResult {
    let (count, cache, gate) = (counts::<u32>(&Emitter::new()), typed(), Arc::new(Semaphore::new(0)));
    let opens = Arc::clone(&gate);
    // This layer is inside the cache, so the answered run waits at a place where other runs could join it.
    let waits = layer_fn("waits", move |input: &u32, _, next: Next<'_, Same>| {
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            gate.acquire().await?.forget();
            next.run(input).await
        })
    });
    let layers = Stack::builder().layer(cache.clone()).layer(waits).build();
    let mut early = Box::pin(count.run(7).middleware(layers).on_start(|start, _| start.output = Some(70)));
    assert!((&mut early).now_or_never().is_none());
    let late = count.run(7).layer(cache.clone()).now_or_never();
    assert_eq!(late.expect("it executes its own work")?, 1);
    opens.add_permits(1);
    assert_eq!(early.await?, 70);
    Ok(())
}

/// A value that fails to serialize if its field is `true`.
#[derive(Clone, Debug, Deserialize)]
struct Awkward(bool);
impl Serialize for Awkward {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 { Err(serde::ser::Error::custom("awkward")) } else { serializer.serialize_unit() }
    }
}

#[tokio::test]
async fn an_input_that_cannot_be_serialized_is_not_cached() -> TestResult {
    let (count, cache) = (counts::<Awkward>(&Emitter::new()), typed());
    for expected in [1, 2] {
        assert_eq!(count.run(Awkward(true)).layer(cache.clone()).await?, expected);
    }
    for expected in [3, 3] {
        assert_eq!(count.run(Awkward(false)).layer(cache.clone()).await?, expected);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn hit_miss_and_joined_carry_the_run_s_ids_the_hash_of_the_key_and_the_age() -> TestResult {
    let cache = typed();
    let wait = instance(&Emitter::new(), "Tool", "wait", |n: u64, _: RunContext| async move {
        sleep(ms(n)).await;
        Ok(7)
    });
    let heard = Arc::new(Mutex::new(Vec::new()));
    cache.emitter().observe("hit", hears::<Hit>(&heard))?;
    cache.emitter().observe("miss", hears::<Miss>(&heard))?;
    cache.emitter().observe("joined", hears::<Joined>(&heard))?;
    let runs = Arc::new(Mutex::new(Vec::new()));
    let run = || {
        let runs = Arc::clone(&runs);
        let note = move |ctx: &RunContext| {
            runs.lock().expect("nobody panics").push(Some(ctx.run_id()));
            Ok(())
        };
        wait.run(20).layer(cache.clone()).middleware(note).observe("middleware.cache.*", hears::<dyn AnyEvent>(&heard))
    };
    let late = async {
        sleep(ms(5)).await;
        run().await
    };
    let (first, second) = tokio::join!(run(), late);
    sleep(ms(30)).await;
    assert_eq!((first?, second?, run().await?), (7, 7, 7));
    let heard = heard.lock().expect("nobody panics");
    let runs = runs.lock().expect("nobody panics");
    let key = heard[0].2["key"].clone();
    assert_eq!(key.as_str().map(str::len), Some(16));
    let expected = [
        ("miss", 0, json!({"key": key, "why": "absent"})),
        ("joined", 1, json!({"key": key, "age_ms": 5})),
        ("hit", 2, json!({"key": key, "age_ms": 30})),
    ];
    let expected = expected.map(|(name, run, json)| (format!("middleware.cache.{name}"), runs[run], json));
    let twice: Vec<_> = expected.into_iter().flat_map(|event| [event.clone(), event]).collect();
    assert_eq!(*heard, twice);
    Ok(())
}

/// The path, run id and payload of each event, in order.
type Heard = Arc<Mutex<Vec<(String, Option<Uuid>, Value)>>>;

/// Returns an observer that records events of type `E`.
fn hears<E: AnyEvent + ?Sized>(heard: &Heard) -> impl Fn(&E, &EventMeta<'_>) + Send + Sync + use<E> {
    let heard = Arc::clone(heard);
    move |event, meta| {
        let event = (meta.path().to_owned(), meta.trace().map(|trace| trace.run_id), event.payload_to_json());
        heard.lock().expect("nobody panics").push(event);
    }
}

// M5: observers fail open.
#[tokio::test]
async fn a_failing_listener_does_not_affect_a_cache() -> TestResult {
    let (count, cache) = (counts::<u32>(&Emitter::new()), typed());
    let failing = Failing::default();
    cache.emitter().on("*.*", failing.listener::<Any>())?;
    for _ in 0..2 {
        assert_eq!(count.run(1).layer(cache.clone()).await?, 1);
    }
    assert_eq!(failing.calls(), 2, "a miss and a hit");
    Ok(())
}

#[test]
fn cache_options_that_store_nothing_or_contradict_are_errors() {
    let rows = [
        (Cache::json().max_entries(0), "a cache of 0 entries stores nothing: set its size to 1 or more"),
        (Cache::json().max_bytes(0), "a cache of 0 bytes stores nothing: set its size to 1 or more"),
        (
            Cache::json().ttl(Duration::ZERO),
            "a cache with a maximum age of 0ns stores nothing: set a longer age, or none",
        ),
        (
            Cache::json().max_bytes(1).max_entries(2),
            "the size of a cache is set in entries (2) and in bytes (1): set only one of the two",
        ),
    ];
    for (builder, message) in rows {
        let error: CacheError = builder.build().expect_err(message);
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn explain_lists_a_cache_with_its_options() -> TestResult {
    let count = counts::<u32>(&Emitter::new());
    let json = Cache::json().max_bytes(1 << 20).ttl(ms(50)).scope("all").context_keys(["b", "a"]).cache_errors();
    let run = count.run(1).layer(typed()).middleware(json.build()?);
    let lines = [
        "count",
        "  bound:",
        "    cache: 10000 entries",
        "    cache: 1048576 bytes, for 50ms, in all, by a, b, errors too",
        "  passes:",
        "    transform cache: 10000 entries",
        "    transform cache: 1048576 bytes, for 50ms, in all, by a, b, errors too",
    ];
    assert_eq!(run.explain().to_string(), lines.join("\n"));
    Ok(())
}
