//! Failed runs that may succeed later are retried a limited number of times, after growing delays. Control flow other
//! than a time-out is never retried.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Any, Failing, TestResult, instance};
use emitree_emitter::{Emitter, EventMeta};
use emitree_middleware::retry::{RetriesExhausted, RetryAfter, RetryBuilder, RetryError, RetryScheduled};
use emitree_middleware::{Retry, Timeout};
use emitree_runtime::{AbortHandle, AttemptDiscarded, Error, Interrupt, RunContext, Runnable, StreamItem, for_tree};
use futures_util::StreamExt;
use tokio::time::{Instant, sleep};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn plain() -> RetryBuilder {
    Retry::builder().without_jitter()
}

/// Returns work that fails in its first `times` calls, and a counter of its calls.
fn fails(root: &Emitter, times: u32, error: &Error) -> (impl Runnable<Input = (), Output = u32> + use<>, Calls) {
    let (calls, error) = (Calls::default(), error.clone());
    let counted = calls.clone();
    let work = instance(root, "Tool", "fails", move |(): (), _: RunContext| {
        let (n, error) = (counted.count(), error.clone());
        async move { if n < times { Err(error) } else { Ok(n) } }
    });
    (work, calls)
}

#[derive(Clone, Default)]
struct Calls(Arc<AtomicU32>);

impl Calls {
    fn count(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    fn take(&self) -> u32 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

fn busy() -> Error {
    Error::new("busy").retryable(true)
}

/// The retries that were scheduled on a run.
#[derive(Clone, Default)]
struct Scheduled(Arc<Mutex<Vec<RetryScheduled>>>);

impl Scheduled {
    fn listener(&self) -> impl Fn(&mut RetryScheduled, &EventMeta<'_>) + Send + Sync + use<> {
        let all = Arc::clone(&self.0);
        move |event, _| all.lock().expect("nobody panics").push(event.clone())
    }

    fn take(&self) -> Vec<RetryScheduled> {
        std::mem::take(&mut *self.0.lock().expect("nobody panics"))
    }

    fn delays(&self) -> Vec<u64> {
        self.take().into_iter().map(|event| event.delay_ms).collect()
    }
}

const RETRY: &str = "middleware.retry.retry";

#[tokio::test(start_paused = true)]
async fn a_retry_makes_two_more_attempts_by_default_after_500_ms_and_1_s() {
    let root = Emitter::new();
    let (work, calls) = fails(&root, 9, &busy());
    let begun = Instant::now();
    let error = work.run(()).middleware(plain().build().expect("fine")).await.expect_err("it fails too often");
    assert_eq!((error.to_string(), calls.take(), begun.elapsed()), ("busy".to_owned(), 3, ms(1_500)));
    // With jitter, the delays are up to twice as long.
    let begun = Instant::now();
    work.run(()).middleware(Retry::new()).await.expect_err("it fails too often");
    assert_eq!(calls.take(), 3);
    assert!((ms(1_500)..=ms(3_000)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_event_reports_that_the_last_retry_has_failed_too() {
    let spent = |times, error: Error, most| async move {
        let (work, _) = fails(&Emitter::new(), times, &error);
        let all = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&all);
        let retry = plain().max_retries(most).build().expect("fine");
        let run = work.run(()).middleware(retry);
        let run = run.observe("middleware.retry.exhausted", move |event: &RetriesExhausted, _| {
            to.lock().expect("nobody panics").push((event.retries, event.cause.clone()));
        });
        drop(run.await);
        all.lock().expect("nobody panics").clone()
    };
    assert_eq!(spent(9, busy(), 2).await, [(2, "busy".to_owned())]);
    assert_eq!(spent(2, busy(), 2).await, [], "the last retry succeeds");
    assert_eq!(spent(9, Error::new("wrong"), 2).await, [], "nothing is retried");
    assert_eq!(spent(9, busy(), 0).await, [], "no retries are allowed");
}

#[tokio::test(start_paused = true)]
async fn the_output_of_the_attempt_that_succeeds_is_returned() -> TestResult {
    let (work, calls) = fails(&Emitter::new(), 2, &busy());
    assert_eq!(work.run(()).middleware(Retry::new()).await?, 2);
    assert_eq!(calls.take(), 3);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn only_retryable_errors_are_retried_by_default() {
    let rows = [
        (busy(), 3),
        (Error::new("wrong"), 1),
        (Error::timed_out("late").retryable(true), 3),
        (Error::timed_out("late").detail("timeout", "attempt"), 1),
    ];
    for (error, expected) in rows {
        let (work, calls) = fails(&Emitter::new(), 9, &error);
        let ended = work.run(()).middleware(Retry::new()).await.expect_err("it always fails");
        assert_eq!((calls.take(), ended.kind()), (expected, error.kind()), "{error}");
    }
}

// M9
#[tokio::test(start_paused = true)]
async fn denials_halts_aborts_interrupts_and_retry_requests_are_never_retried() {
    let errors = [
        Error::denied("desk", "no"),
        Error::halted("desk", "stop"),
        Error::aborted("gone"),
        Error::interrupted(Interrupt::new("question", 1)),
        Error::retry("again"),
    ];
    for error in errors {
        let (work, calls) = fails(&Emitter::new(), 9, &error.clone().retryable(true));
        let (retry, scheduled) = (plain().when(|_| true).build().expect("fine"), Scheduled::default());
        let run = work.run(()).middleware(retry).on(RETRY, scheduled.listener());
        assert_eq!(run.await.expect_err("it always ends so").kind(), error.kind());
        assert_eq!((calls.take(), scheduled.take()), (1, Vec::new()), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn when_widens_and_narrows_the_errors_that_are_retried() {
    let rows = [(Error::new("odd"), 3), (busy(), 1), (Error::timed_out("odd"), 3)];
    for (error, expected) in rows {
        let (work, calls) = fails(&Emitter::new(), 9, &error);
        let retry = plain().when(|error| error.to_string() == "odd").build().expect("fine");
        work.run(()).middleware(retry).await.expect_err("it always fails");
        assert_eq!(calls.take(), expected, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_when_prevents_a_retry_and_a_panic_of_retry_after_is_ignored() {
    let (work, calls) = fails(&Emitter::new(), 9, &busy());
    let retry = plain().when(|_| panic!("a planned panic")).build().expect("fine");
    let error = work.run(()).middleware(retry).await.expect_err("it fails");
    assert_eq!((error.to_string(), calls.take()), ("busy".to_owned(), 1));
    let scheduled = Scheduled::default();
    let retry = plain().retry_after(|_| panic!("a planned panic")).build().expect("fine");
    work.run(()).middleware(retry).on(RETRY, scheduled.listener()).await.expect_err("it fails");
    assert_eq!(scheduled.delays(), [500, 1_000]);
}

#[tokio::test(start_paused = true)]
async fn the_delay_is_as_long_as_the_error_asks_but_at_most_the_longest_delay() {
    let after = |ms| busy().caused_by(RetryAfter(Duration::from_millis(ms)));
    let rows = [
        (after(7_000), 7_000, Some(7_000)),
        (after(0), 0, Some(0)),
        (after(90_000), 30_000, Some(90_000)),
        (busy().detail("retry_after_ms", 2_000), 2_000, Some(2_000)),
        // The user's function takes precedence over a cause, and a cause takes precedence over a detail.
        (after(7_000).detail("retry_after_ms", 2_000), 7_000, Some(7_000)),
        (after(7_000).detail("header", 3), 3_000, Some(3_000)),
        (busy().detail("retry_after_ms", "soon"), 500, None),
        (busy(), 500, None),
    ];
    for (error, delay_ms, asked) in rows {
        let ((work, _), scheduled) = (fails(&Emitter::new(), 1, &error), Scheduled::default());
        let header = |error: &Error| error.details().get("header")?.as_u64().map(Duration::from_secs);
        let retry = plain().retry_after(header).build().expect("fine");
        let begun = Instant::now();
        work.run(()).middleware(retry).on(RETRY, scheduled.listener()).await.expect("the second attempt is fine");
        assert_eq!(begun.elapsed(), ms(delay_ms));
        let all = scheduled.take();
        assert_eq!((all.len(), all[0].delay_ms, all[0].retry_after_ms), (1, delay_ms, asked));
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_times_out_is_retried() -> TestResult {
    let calls = Calls::default();
    let counted = calls.clone();
    let slow = instance(&Emitter::new(), "Tool", "slow", move |(): (), _: RunContext| {
        let n = counted.count();
        async move {
            sleep(if n < 2 { ms(1_000) } else { ms(10) }).await;
            Ok(n)
        }
    });
    // The order of binding does not matter.
    for timeout_first in [true, false] {
        let (retry, timeout) = (plain().build()?, Timeout::per_attempt(ms(100)));
        let begun = Instant::now();
        let run = slow.run(());
        let run = if timeout_first {
            run.middleware(timeout).middleware(retry)
        } else {
            run.middleware(retry).middleware(timeout)
        };
        assert_eq!(run.await?, 2);
        assert_eq!((calls.take(), begun.elapsed()), (3, ms(100 + 500 + 100 + 1_000 + 10)));
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn events_of_a_retry_reach_its_emitter_and_the_run_with_the_run_s_ids() -> TestResult {
    let (retry, heard) = (plain().build()?, Arc::new(Mutex::new(Vec::new())));
    let note = |who: &'static str| {
        let heard = Arc::clone(&heard);
        move |event: &mut RetryScheduled, meta: &EventMeta<'_>| {
            let (run_id, event) = (meta.trace().map(|trace| trace.run_id), serde_json::to_string(event));
            heard.lock().expect("nobody panics").push((who, run_id, event.expect("it is serialisable")));
        }
    };
    retry.emitter().on("retry", note("own"))?;
    let run_id = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&run_id);
    let (work, _) = fails(&Emitter::new(), 2, &busy());
    let run = work.run(()).middleware(retry).on(RETRY, note("run")).middleware(move |ctx: &RunContext| {
        *keep.lock().expect("nobody panics") = Some(ctx.run_id());
        Ok(())
    });
    run.await?;
    let run_id = *run_id.lock().expect("nobody panics");
    let event = |attempt, delay| {
        format!(r#"{{"attempt":{attempt},"delay_ms":{delay},"cause":"busy","kind":"failed","retries":2}}"#)
    };
    let both = |attempt, delay| ["own", "run"].map(|who| (who, run_id, event(attempt, delay)));
    assert_eq!(*heard.lock().expect("nobody panics"), [both(0, 500), both(1, 1_000)].concat());
    Ok(())
}

// M5: observers fail open.
#[tokio::test(start_paused = true)]
async fn a_failing_listener_does_not_affect_a_retry() -> TestResult {
    let ((work, _), failing) = (fails(&Emitter::new(), 2, &busy()), Failing::default());
    let run = work.run(()).middleware(Retry::new()).on(RETRY, failing.listener::<RetryScheduled>());
    assert_eq!((run.await?, failing.calls()), (2, 2));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_abort_ends_the_delay_at_once() {
    let (work, calls) = fails(&Emitter::new(), 9, &busy());
    let (abort, begun) = (AbortHandle::new(), Instant::now());
    let run = work.run(()).middleware(plain().build().expect("fine")).abort_on(abort.signal());
    let stop = async {
        sleep(ms(100)).await;
        abort.abort("enough");
    };
    let (ended, ()) = futures_util::future::join(run, stop).await;
    assert_eq!(ended.expect_err("it was aborted").explain(), "aborted: enough");
    assert_eq!((calls.take(), begun.elapsed()), (1, ms(100)));
}

/// Returns a tool that fails until its third call; if `said` is `true`, each call emits its number.
fn tells(root: &Emitter, said: bool) -> impl Runnable<Input = (), Output = u32> + 'static {
    let calls = Calls::default();
    instance(root, "Tool", "tells", move |(): (), ctx: RunContext| {
        let n = calls.count();
        async move {
            if said {
                ctx.emitter().emit("token", &mut { n }).await?;
            }
            if n < 2 { Err(busy()) } else { Ok(n) }
        }
    })
}

async fn lines<R: Runnable<Output = u32>>(stream: emitree_runtime::RunStream<'_, R>) -> Vec<String> {
    let line = |item: StreamItem<u32>| match item {
        StreamItem::Event(event) => {
            let mut payload: serde_json::Value = serde_json::from_str(event.payload.get()).expect("it is JSON");
            payload.sort_all_objects();
            format!("{} {payload}", event.name())
        }
        StreamItem::Result(result) => format!("{:?}", result.map_err(|error| error.to_string())),
        other => format!("{other:?}"),
    };
    stream.map(line).collect().await
}

fn discarded(attempt: u32) -> String {
    format!(r#"attempt_discarded {{"attempt":0,"metadata":{{"attempt":{attempt},"by":"retry"}},"reason":"busy"}}"#)
}

// M7
#[tokio::test(start_paused = true)]
async fn a_streamed_attempt_is_marked_as_discarded_and_dropped_from_a_held_stream() -> TestResult {
    let root = Emitter::new();
    let shown = tells(&root, true);
    let shown = lines(shown.run(()).middleware(plain().build()?).events("{token,attempt_discarded}")).await;
    let (first, second) = (discarded(0), discarded(1));
    assert_eq!(shown, ["token 0", &first, "token 1", &second, "token 2", "Ok(2)"]);
    let held = tells(&root, true);
    let held = held.run(()).middleware(plain().build()?).events("{token,attempt_discarded}").held(true);
    assert_eq!(lines(held).await, [&second, "token 2", "Ok(2)"]);
    Ok(())
}

// M7
#[tokio::test(start_paused = true)]
async fn an_attempt_without_events_is_not_marked_as_discarded() -> TestResult {
    let root = Emitter::new();
    let work = tells(&root, false);
    // Events that middlewares emit themselves do not belong to an attempt. Here, such events come from the inner retry,
    // which makes two attempts before the outer retry continues.
    let inner = plain().max_retries(1).build()?;
    let run = work.run(()).middleware(plain().build()?).middleware(inner);
    let shown = lines(run.events("*.*")).await;
    assert_eq!(shown.iter().filter(|line| line.starts_with("attempt_discarded")).count(), 0, "{shown:#?}");
    assert_eq!(shown.iter().filter(|line| line.starts_with("retry ")).count(), 2, "{shown:#?}");
    Ok(())
}

// M7
#[tokio::test(start_paused = true)]
async fn an_attempt_with_events_of_runs_below_is_marked_as_discarded() -> TestResult {
    let root = Emitter::new();
    let inner = Arc::new(fails(&root, 1, &busy()).0);
    let outer = instance(&root, "Assistant", "Desk", move |(): (), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(()).await }
    });
    let shown = lines(outer.run(()).middleware(plain().build()?).events("*.*")).await;
    let names: Vec<_> = shown.iter().filter_map(|line| line.split(' ').next()).collect();
    let below = ["start", "error", "finish"];
    let again = ["attempt_discarded", "retry", "start", "success", "finish"];
    assert_eq!(names, [&["start"], &below[..], &again[..], &["success", "finish", "Ok(1)"]].concat());
    Ok(())
}

// M7
#[tokio::test(start_paused = true)]
async fn an_error_of_a_listener_of_attempt_discarded_ends_the_run() {
    let work = tells(&Emitter::new(), true);
    let no = |_: &mut AttemptDiscarded, _: &EventMeta<'_>| Err(Error::denied("desk", "once is enough").into());
    let run = work.run(()).middleware(Retry::new()).on("attempt_discarded", no);
    assert!(run.await.expect_err("a listener said no").is_denied());
}

// R7
#[tokio::test(start_paused = true)]
async fn work_that_fails_after_an_abort_is_not_retried_and_no_event_is_emitted() -> TestResult {
    let (calls, scheduled) = (Calls::default(), Scheduled::default());
    let counted = calls.clone();
    let work = instance(&Emitter::new(), "Tool", "aborts", move |(): (), ctx: RunContext| {
        counted.count();
        async move {
            ctx.abort("enough");
            Err::<(), _>(busy())
        }
    });
    let at_once = plain().base_delay(Duration::ZERO).build()?;
    let run = work.run(()).middleware(at_once).on(RETRY, scheduled.listener());
    assert!(run.await.expect_err("it is aborted").is_aborted());
    assert_eq!((calls.take(), scheduled.take().len()), (1, 0));
    Ok(())
}

// M7
#[tokio::test(start_paused = true)]
async fn attempts_of_a_retry_are_not_counted_as_attempts_of_the_run() -> TestResult {
    let calls = Calls::default();
    let work = instance(&Emitter::new(), "Tool", "both", move |(): (), ctx: RunContext| {
        let n = calls.count();
        async move {
            match n {
                0 | 2 => Err(busy()),
                1 => Err(Error::retry("the whole again")),
                _ => Ok((n, ctx.attempt())),
            }
        }
    });
    let retry = plain().max_retries(1).build()?;
    assert_eq!(work.run(()).middleware(retry).max_middleware_retries(1).await?, (3, 1));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_below_a_retry_bound_with_for_tree_succeeds_in_its_third_attempt() -> TestResult {
    let root = Emitter::new();
    let (inner, calls) = fails(&root, 2, &busy());
    let inner = Arc::new(inner);
    let outer = instance(&root, "Assistant", "Desk", move |(): (), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(()).await }
    });
    let scheduled = Scheduled::default();
    let run = outer.run(()).middleware(for_tree(plain().build()?)).on(RETRY, scheduled.listener());
    assert_eq!(run.await?, 2);
    assert_eq!((calls.take(), scheduled.delays()), (3, vec![500, 1_000]));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_shared_by_100_concurrent_runs_and_counts_retries_for_each_run() {
    let (root, retry) = (Emitter::new(), Retry::new());
    let works: Vec<_> = (0..100).map(|n| fails(&root, n % 4, &busy()).0).collect();
    let runs = works.iter().map(|work| work.run(()).middleware(retry.clone()));
    let results = futures_util::future::join_all(runs).await;
    for (n, result) in (0..).zip(results) {
        assert_eq!(result.ok(), (n % 4 < 3).then_some(n % 4));
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_retried_if_when_selects_it() -> TestResult {
    let calls = Calls::default();
    let work = instance(&Emitter::new(), "Tool", "panics", move |(): (), _: RunContext| {
        let n = calls.count();
        async move {
            assert!(n > 0, "a planned panic");
            Ok(n)
        }
    });
    let retry = plain().when(|error| *error.kind() == emitree_runtime::ErrorKind::Panicked).build()?;
    assert_eq!(work.run(()).middleware(retry).await?, 1);
    Ok(())
}

#[test]
fn invalid_options_of_a_retry_are_errors_that_quote_the_value() {
    for factor in [0.5, -1.0, f32::NAN, f32::INFINITY] {
        let error = Retry::builder().factor(factor).build().expect_err("no factor of delays");
        let message =
            format!("the delays of a retry cannot grow by `{factor}`: set a finite factor of 1 or more, such as 2");
        assert_eq!(error.to_string(), message);
    }
    let error = Retry::builder().base_delay(ms(60_000)).build().expect_err("longer than 30 s");
    assert_eq!(error, RetryError::BaseDelay { base: ms(60_000), max: ms(30_000) });
    let message = "the first delay of a retry, 60s, is longer than the longest delay, 30s: use a shorter `base_delay`, or a longer `max_delay`";
    assert_eq!(error.to_string(), message);
}

#[test]
fn explain_lists_a_retry_with_its_delays() {
    let (work, _) = fails(&Emitter::new(), 0, &busy());
    let lines = [
        "fails",
        "  bound:",
        "    retry: at most 2, after 500ms × 2 up to 30s with jitter",
        "  passes:",
        "    retry     retry: at most 2, after 500ms × 2 up to 30s with jitter",
    ];
    assert_eq!(work.run(()).middleware(Retry::new()).explain().to_string(), lines.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_retried_run_has_the_same_output_with_and_without_listeners() -> TestResult {
    let (work, calls) = fails(&Emitter::new(), 2, &busy());
    assert_eq!(work.run(()).middleware(Retry::new()).observe("*.*", |_: &Any, _: &EventMeta<'_>| ()).await?, 2);
    calls.take();
    assert_eq!(work.run(()).middleware(Retry::new()).await?, 2);
    Ok(())
}
