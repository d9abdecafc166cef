//! The circuit breaker: it opens after failures, lets one call pass as a probe, and closes or opens again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Any, Failing, TestResult, instance};
use emitree_emitter::{AnyEvent, Emitter, EventMeta};
use emitree_middleware::circuit_breaker::{CircuitBreakerBuilder, CircuitBreakerError, Opened};
use emitree_middleware::key::Key;
use emitree_middleware::{CircuitBreaker, Retry, Timeout};
use emitree_runtime::{AbortHandle, Error, ErrorKind, Interrupt, Result, RunContext, Runnable, for_tree};
use futures_util::FutureExt;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::time::{advance, sleep};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Do {
    Succeed,
    Fail,
    Panic,
    Deny,
    Halt,
    Abort,
    Ask,
    Again,
    BeLate,
    Wait(u64),
}

/// Returns a tool whose input sets how its work ends.
fn tool(root: &Emitter, name: &'static str) -> impl Runnable<Input = Do, Output = ()> + use<> {
    instance(root, "Tool", name, |what: Do, _: RunContext| async move {
        match what {
            Do::Succeed => Ok(()),
            Do::Fail => Err(Error::new("busy")),
            Do::Panic => panic!("a planned panic"),
            Do::Deny => Err(Error::denied("desk", "no")),
            Do::Halt => Err(Error::halted("desk", "stop")),
            Do::Abort => Err(Error::aborted("gone")),
            Do::Ask => Err(Error::interrupted(Interrupt::new("question", 1))),
            Do::Again => Err(Error::retry("again")),
            Do::BeLate => Err(Error::timed_out("late")),
            Do::Wait(seconds) => {
                sleep(s(seconds)).await;
                Ok(())
            }
        }
    })
}

/// Returns a builder of a breaker that opens for ten seconds after two failures within the default window.
fn builder() -> CircuitBreakerBuilder {
    CircuitBreaker::builder().failures(2).cool_down(s(10))
}

fn breaker() -> CircuitBreaker {
    builder().build().expect("fine")
}

/// Returns the result of a call, with the first line of the failure or denial.
async fn call(tool: &impl Runnable<Input = Do, Output = ()>, breaker: &CircuitBreaker, what: Do) -> Result<(), String> {
    tool.run(what).middleware(breaker.clone()).await.map_err(|error| error.explain().lines().take(1).collect())
}

async fn fail(tool: &impl Runnable<Input = Do, Output = ()>, breaker: &CircuitBreaker, times: usize) {
    for _ in 0..times {
        assert_eq!(call(tool, breaker, Do::Fail).await, Err("busy".to_owned()));
    }
}

fn open_for(seconds: u64) -> Result<(), String> {
    Err(format!("denied by circuit_breaker: the circuit is open for another {seconds}s: busy"))
}

fn probing() -> Result<(), String> {
    Err("denied by circuit_breaker: the circuit is half-open, and a probe is under way: busy".to_owned())
}

/// The emitted events, as JSON.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn listener(&self) -> impl Fn(&mut (dyn AnyEvent + 'static), &EventMeta<'_>) + Send + Sync + use<> {
        let all = Arc::clone(&self.0);
        move |event, meta| {
            let line = format!("{} {}", meta.name(), event.to_json());
            all.lock().expect("nobody panics").push(line);
        }
    }

    fn by(breaker: &CircuitBreaker) -> Self {
        let said = Self::default();
        breaker.emitter().on("*", said.listener()).expect("a matcher");
        said
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("nobody panics"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_circuit_breaker_opens_by_default_after_5_failures_within_30_s_for_30_s() {
    let (tool, breaker) = (tool(&Emitter::new(), "t"), CircuitBreaker::new());
    fail(&tool, &breaker, 4).await;
    advance(s(31)).await;
    fail(&tool, &breaker, 4).await;
    advance(s(30)).await;
    fail(&tool, &breaker, 1).await;
    assert_eq!(call(&tool, &breaker, Do::Succeed).await, open_for(30));
    advance(s(29)).await;
    assert_eq!(call(&tool, &breaker, Do::Succeed).await, open_for(1));
    advance(s(1)).await;
    assert_eq!(call(&tool, &breaker, Do::Succeed).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_successful_probe_closes_the_circuit_breaker_and_a_failed_probe_reopens_it() {
    let (tool, breaker) = (tool(&Emitter::new(), "t"), breaker());
    let said = Said::by(&breaker);
    fail(&tool, &breaker, 2).await;
    advance(s(10)).await;
    fail(&tool, &breaker, 1).await;
    assert_eq!(call(&tool, &breaker, Do::Succeed).await, open_for(10));
    advance(s(10)).await;
    assert_eq!(call(&tool, &breaker, Do::Succeed).await, Ok(()));
    // The failures before the breaker opened are forgotten.
    fail(&tool, &breaker, 1).await;
    assert_eq!(call(&tool, &breaker, Do::Succeed).await, Ok(()));
    let expected = [
        r#"opened {"failures":2,"cool_down_ms":10000,"cause":"busy"}"#,
        "half_opened {}",
        r#"opened {"failures":1,"cool_down_ms":10000,"cause":"busy"}"#,
        r#"denied {"retry_after_ms":10000,"reason":"the circuit is open for another 10s: busy"}"#,
        "half_opened {}",
        "closed {}",
    ];
    let said: Vec<_> = said.take().iter().map(|line| in_order(line)).collect();
    assert_eq!(said, expected.map(in_order));
}

/// Parses a line, so that the order of object keys does not matter.
fn in_order(line: &str) -> (String, serde_json::Value) {
    let (name, json) = line.split_once(' ').expect("a name and an object");
    (name.to_owned(), serde_json::from_str(json).expect("JSON"))
}

#[tokio::test(start_paused = true)]
async fn one_probe_passes_at_a_time() {
    let (tool, breaker) = (tool(&Emitter::new(), "t"), breaker());
    fail(&tool, &breaker, 2).await;
    advance(s(10)).await;
    let results = join_all((0..100).map(|_| call(&tool, &breaker, Do::Wait(1)))).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    assert_eq!(results.iter().filter(|result| **result == probing()).count(), 99);
    assert_eq!(call(&tool, &breaker, Do::Succeed).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_aborted_or_denied_probe_admits_the_next_probe() {
    let (tool, breaker) = (tool(&Emitter::new(), "t"), breaker());
    fail(&tool, &breaker, 2).await;
    advance(s(10)).await;
    let mut dropped = Box::pin(tool.run(Do::Wait(9)).middleware(breaker.clone()));
    assert!((&mut dropped).now_or_never().is_none());
    assert_eq!(call(&tool, &breaker, Do::Succeed).await, probing());
    drop(dropped);
    let abort = AbortHandle::new();
    let mut aborted = Box::pin(tool.run(Do::Wait(9)).middleware(breaker.clone()).abort_on(abort.signal()));
    assert!((&mut aborted).now_or_never().is_none());
    assert_eq!(call(&tool, &breaker, Do::Succeed).await, probing());
    abort.abort("enough");
    assert!(aborted.await.expect_err("it was aborted").is_aborted());
    assert_eq!(call(&tool, &breaker, Do::Deny).await, Err("denied by desk: no".to_owned()));
    assert_eq!(call(&tool, &breaker, Do::Succeed).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn failures_panics_and_timeouts_count_and_other_control_flow_does_not() {
    let rows = [
        (Do::Fail, true),
        (Do::Panic, true),
        (Do::BeLate, true),
        (Do::Succeed, false),
        (Do::Deny, false),
        (Do::Halt, false),
        (Do::Abort, false),
        (Do::Ask, false),
        (Do::Again, false),
    ];
    for (what, counts) in rows {
        let (tool, breaker) = (tool(&Emitter::new(), "t"), breaker());
        for _ in 0..2 {
            call(&tool, &breaker, what).await.ok();
        }
        assert_eq!(call(&tool, &breaker, Do::Succeed).await.is_err(), counts, "{what:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn when_selects_the_failures_that_count_and_if_it_panics_the_failure_counts() {
    let (root, narrow) = (Emitter::new(), builder().when(Error::is_timed_out).build().expect("fine"));
    let tool = tool(&root, "t");
    fail(&tool, &narrow, 9).await;
    for _ in 0..2 {
        call(&tool, &narrow, Do::BeLate).await.expect_err("it is late");
    }
    assert!(call(&tool, &narrow, Do::Succeed).await.is_err());
    // A probe whose error is not counted as a failure closes the breaker.
    advance(s(10)).await;
    fail(&tool, &narrow, 1).await;
    assert_eq!(call(&tool, &narrow, Do::Succeed).await, Ok(()));
    let panics = builder().when(|_| panic!("a planned panic")).build().expect("fine");
    fail(&tool, &panics, 2).await;
    assert_eq!(call(&tool, &panics, Do::Succeed).await, open_for(10));
}

#[tokio::test(start_paused = true)]
async fn a_denial_contains_the_key_the_time_to_wait_and_the_last_cause() {
    let (tool, breaker) = (tool(&Emitter::new(), "t"), builder().by(Key::instance()).build().expect("fine"));
    fail(&tool, &breaker, 2).await;
    advance(Duration::from_micros(500)).await;
    let error = tool.run(Do::Succeed).middleware(breaker.clone()).await.expect_err("it is open");
    assert_eq!(error.kind(), &ErrorKind::Denied { by: "circuit_breaker".to_owned() });
    let details = error.details();
    assert_eq!(
        (&details["retry_after_ms"], &details["cause"], &details["key"]),
        (&10_000.into(), &"busy".into(), &"tool.t".into())
    );
    advance(s(10)).await;
    let mut probe = Box::pin(tool.run(Do::Wait(1)).middleware(breaker.clone()));
    assert!((&mut probe).now_or_never().is_none());
    let error = tool.run(Do::Succeed).middleware(breaker.clone()).await.expect_err("a probe is under way");
    assert_eq!(error.details().get("retry_after_ms"), None);
}

#[tokio::test(start_paused = true)]
async fn failures_are_counted_overall_by_instance_by_kind_or_by_context_key() {
    let rows: [(&str, CircuitBreakerBuilder, [bool; 4]); 4] = [
        ("all", builder(), [true, true, true, true]),
        ("instance", builder().by(Key::instance()), [true, false, false, true]),
        ("kind", builder().by(Key::kind()), [true, true, false, true]),
        ("tenant", builder().by(Key::context("tenant")), [true, true, true, false]),
    ];
    for (by, breaker, open) in rows {
        let (root, breaker) = (Emitter::new(), breaker.build().expect("fine"));
        let (failing, same_name, other_kind) = (
            tool(&root, "t"),
            tool(&root, "t"),
            instance(&root, "Model", "t", |_: Do, _: RunContext| async { Ok(()) }),
        );
        fail(&failing, &breaker, 2).await;
        let denied = [
            call(&failing, &breaker, Do::Succeed).await.is_err(),
            call(&same_name, &breaker, Do::Succeed).await.is_err(),
            call(&other_kind, &breaker, Do::Succeed).await.is_err(),
            failing.run(Do::Succeed).middleware(breaker).context(serde_json::json!({"tenant": "acme"})).await.is_err(),
        ];
        assert_eq!(denied, open, "{by}");
    }
}

// M5: guards fail closed.
#[tokio::test(start_paused = true)]
async fn a_panicking_key_function_of_a_circuit_breaker_denies_the_run() {
    let breaker = builder().by(Key::of(|_| panic!("a planned panic"))).build().expect("fine");
    let said = Said::by(&breaker);
    let denied = call(&tool(&Emitter::new(), "t"), &breaker, Do::Succeed).await;
    assert_eq!(denied, Err("denied by circuit_breaker: the key function panicked: a planned panic".to_owned()));
    assert_eq!(said.take(), [r#"denied {"reason":"the key function panicked: a planned panic"}"#]);
}

#[tokio::test(start_paused = true)]
async fn each_attempt_inside_a_retry_counts_and_a_denial_is_not_retried() {
    let (tool, retry) =
        (tool(&Emitter::new(), "t"), Retry::builder().max_retries(9).when(|_| true).build().expect("fine"));
    let inside = breaker();
    let error = tool.run(Do::Fail).middleware(retry.clone()).middleware(inside).await.expect_err("it fails");
    assert!(error.is_denied(), "{error:?}");
    let outside = breaker();
    let error = tool.run(Do::Fail).middleware(outside.clone()).middleware(retry).await.expect_err("it fails");
    assert_eq!(error.to_string(), "busy");
    fail(&tool, &outside, 1).await;
    assert_eq!(call(&tool, &outside, Do::Succeed).await, open_for(10));
}

#[tokio::test(start_paused = true)]
async fn a_timed_out_attempt_counts_and_a_run_dropped_by_an_overall_timeout_does_not() {
    let (tool, each, all) = (tool(&Emitter::new(), "t"), breaker(), breaker());
    for _ in 0..2 {
        let run = tool.run(Do::Wait(9)).middleware(Timeout::per_attempt(s(1))).middleware(each.clone());
        assert!(run.await.expect_err("it is late").is_timed_out());
        let run = tool.run(Do::Wait(9)).middleware(Timeout::overall(s(1))).middleware(all.clone());
        assert!(run.await.expect_err("it is late").is_timed_out());
    }
    assert!(call(&tool, &each, Do::Succeed).await.is_err());
    assert_eq!(call(&tool, &all, Do::Succeed).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_began_before_the_opening_counts_only_if_the_breaker_is_closed_when_it_ends() {
    let root = Emitter::new();
    let late = instance(&root, "Tool", "late", |what: Do, _: RunContext| async move {
        sleep(s(15)).await;
        match what {
            Do::Fail => Err(Error::new("late")),
            _ => Ok(()),
        }
    });
    let tool = tool(&root, "t");
    // The late calls end after 15 s: while the probe is under way, or after it has closed the breaker.
    let rows = [
        (Do::Wait(5), probing()),
        (Do::Succeed, Err("denied by circuit_breaker: the circuit is open for another 9s: late".to_owned())),
    ];
    for (probe, expected) in rows {
        let breaker = breaker();
        let begun_before = join_all([Do::Fail, Do::Fail, Do::Succeed].map(|what| call(&late, &breaker, what)));
        let opens = async {
            fail(&tool, &breaker, 2).await;
            sleep(s(14)).await;
            call(&tool, &breaker, probe).await
        };
        let later = async {
            sleep(s(16)).await;
            call(&tool, &breaker, Do::Succeed).await
        };
        let (_, probed, later) = tokio::join!(begun_before, opens, later);
        assert_eq!((probed, later), (Ok(()), expected), "{probe:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn for_tree_counts_each_run_below_and_a_probe_admits_the_runs_below_it() -> TestResult {
    let root = Emitter::new();
    let inner = Arc::new(tool(&root, "t"));
    let desk = instance(&root, "Assistant", "Desk", move |what: Do, _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(what).await }
    });
    // The failure is counted twice, for the tool and for the desk, and opens the breaker.
    let breaker = breaker();
    let run = |what| desk.run(what).middleware(for_tree(breaker.clone()));
    assert_eq!(run(Do::Fail).await.expect_err("it fails").to_string(), "busy");
    assert!(run(Do::Succeed).await.expect_err("it is open").is_denied());
    advance(s(10)).await;
    run(Do::Succeed).await?;
    run(Do::Succeed).await?;
    let apart = builder().by(Key::instance()).build()?;
    let run = |what| desk.run(what).middleware(for_tree(apart.clone()));
    assert_eq!(run(Do::Fail).await.expect_err("it fails").to_string(), "busy");
    run(Do::Succeed).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_circuit_breaker_that_is_shared_by_100_concurrent_runs_opens_once() {
    let (tool, breaker) = (tool(&Emitter::new(), "t"), CircuitBreaker::builder().failures(50).build().expect("fine"));
    let said = Said::by(&breaker);
    let results = join_all((0..100).map(|_| call(&tool, &breaker, Do::Fail))).await;
    assert_eq!(results.iter().filter(|result| **result == Err("busy".to_owned())).count(), 50);
    let said = said.take();
    assert_eq!(said.iter().filter(|line| line.starts_with("opened")).count(), 1, "{said:#?}");
    assert_eq!(said.iter().filter(|line| line.starts_with("denied")).count(), 50, "{said:#?}");
}

#[tokio::test(start_paused = true)]
async fn events_of_a_circuit_breaker_reach_its_emitter_and_the_run_with_the_run_s_ids() -> TestResult {
    let (breaker, heard) = (CircuitBreaker::builder().failures(1).build()?, Arc::new(Mutex::new(Vec::new())));
    let note = |who: &'static str| {
        let heard = Arc::clone(&heard);
        move |event: &mut Opened, meta: &EventMeta<'_>| {
            let run_id = meta.trace().map(|trace| trace.run_id);
            heard.lock().expect("nobody panics").push((who, run_id, event.cause.clone()));
        }
    };
    breaker.emitter().on("opened", note("own"))?;
    let run_id = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&run_id);
    let tool = tool(&Emitter::new(), "t");
    let run = tool.run(Do::Fail).middleware(breaker).on("middleware.circuit_breaker.opened", note("run"));
    let run = run.middleware(move |ctx: &RunContext| {
        *keep.lock().expect("nobody panics") = Some(ctx.run_id());
        Ok(())
    });
    run.await.expect_err("it fails");
    let run_id = *run_id.lock().expect("nobody panics");
    assert_eq!(*heard.lock().expect("nobody panics"), ["own", "run"].map(|who| (who, run_id, "busy".to_owned())));
    Ok(())
}

// M5: observers fail open.
#[tokio::test(start_paused = true)]
async fn a_failing_listener_does_not_affect_a_circuit_breaker() -> TestResult {
    let (tool, breaker, failing) = (tool(&Emitter::new(), "t"), breaker(), Failing::default());
    breaker.emitter().on("*", failing.listener::<Any>())?;
    fail(&tool, &breaker, 2).await;
    assert_eq!(call(&tool, &breaker, Do::Succeed).await, open_for(10));
    advance(s(10)).await;
    assert_eq!(call(&tool, &breaker, Do::Succeed).await, Ok(()));
    assert_eq!(failing.calls(), 4, "opened, denied, half_opened and closed");
    Ok(())
}

#[test]
fn invalid_options_of_a_circuit_breaker_are_errors_that_quote_the_value() {
    let error = CircuitBreaker::builder().failures(0).build().expect_err("it would be open for good");
    assert_eq!(error, CircuitBreakerError::NoFailures);
    assert_eq!(error.to_string(), "a circuit breaker cannot open after `0` failures: set 1 or more");
    let error = CircuitBreaker::builder().window(s(0)).build().expect_err("nothing is within it");
    let message = "a circuit breaker with a window of `0` seconds forgets each failure at once: set a longer window, such as 30 s";
    assert_eq!(error.to_string(), message);
    let error = CircuitBreaker::builder().max_keys(0).build().expect_err("nothing is remembered");
    assert_eq!(error.to_string(), "a circuit breaker that remembers `0` keys never opens: set 1 or more");
}

#[tokio::test(start_paused = true)]
async fn beyond_max_keys_the_key_whose_failure_is_oldest_is_forgotten() {
    let (tool, breaker) = (tool(&Emitter::new(), "t"), builder().failures(1).max_keys(2));
    let breaker = breaker.by(Key::context("host")).build();
    let breaker = breaker.expect("fine");
    let call = |host: u32, what| {
        let run = tool.run(what).middleware(breaker.clone()).context(serde_json::json!({ "host": host }));
        async move { run.await.map_err(|error| error.is_denied()) }
    };
    for host in 1..=3 {
        assert_eq!(call(host, Do::Fail).await, Err(false));
        advance(s(1)).await;
    }
    assert_eq!(call(3, Do::Succeed).await, Err(true));
    assert_eq!(call(2, Do::Succeed).await, Err(true));
    assert_eq!(call(1, Do::Succeed).await, Ok(()));
}

#[test]
fn explain_lists_a_circuit_breaker_with_its_thresholds() {
    let tool = tool(&Emitter::new(), "t");
    let breaker = CircuitBreaker::builder().by(Key::instance()).build().expect("fine");
    let lines = [
        "t",
        "  bound:",
        "    circuit_breaker: opens after 5 failures within 30s, for 30s, by instance",
        "  passes:",
        "    retry     circuit_breaker: opens after 5 failures within 30s, for 30s, by instance",
    ];
    assert_eq!(tool.run(Do::Succeed).middleware(breaker).explain().to_string(), lines.join("\n"));
}
