//! Each row of the table in `docs/middleware-order.md`, "What a wait, a retry and a cache do to each other", is true of
//! the built-ins (M2).

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_emitter::{AnyEvent, Emitter};
use emitree_middleware::approval::{Approval, Decision, Request};
use emitree_middleware::budget::{Usage, charge, spent};
use emitree_middleware::store::{MemoryStore, Store};
use emitree_middleware::{
    Budget, Cache, CircuitBreaker, Concurrency, Durable, Fallback, RateLimit, Redact, Retry, Runs, Timeout,
};
use emitree_runtime::{
    Error, Guard, Interrupt, JsonRun, Layer, Middleware, Next, Op, Phase, Result, Run, RunContext, Runnable, Stack,
    Stage, Transform, for_tree, map_output,
};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join, try_join_all};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::cache::OnlyAda;
use crate::support::{TestResult, instance};

const PAGE: &str = include_str!("../../../docs/middleware-order.md");

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::test(start_paused = true)]
async fn each_row_of_the_table_is_true() -> TestResult {
    let rows: [(&str, BoxFuture<'static, TestResult>); 17] = [
        ("| `Retry` and `RateLimit` | each attempt is counted |", each_attempt_is_counted().boxed()),
        (
            "| `Retry` and `Concurrency` | the permit is released between attempts |",
            the_permit_is_released_between_attempts().boxed(),
        ),
        (
            "| `Retry` and `Approval` | an answer is kept: another attempt with the same input asks nobody |",
            another_attempt_asks_nobody().boxed(),
        ),
        (
            "| `Retry` and `CircuitBreaker` | bound before the retry, the breaker counts a call; bound after it, each \
             attempt |",
            the_breaker_counts_calls_or_attempts().boxed(),
        ),
        (
            "| `Retry` and `Fallback` | bound before the retry, the alternative runs after the last attempt; bound after \
             it, in each |",
            the_alternative_runs_after_the_last_attempt_or_in_each().boxed(),
        ),
        ("| `Retry` and a denial, halt, abort or question | never retried |", control_flow_is_never_retried().boxed()),
        (
            "| `Retry` of a run and of a run above | the attempts multiply, and a warning says so: select one kind with \
             `Runs` |",
            attempts_multiply_with_a_warning().boxed(),
        ),
        (
            "| `Timeout` per attempt and waits | it is innermost: neither permits nor approvals nor delays between \
             attempts count |",
            no_wait_counts_towards_an_attempt().boxed(),
        ),
        (
            "| `Timeout` overall, `Budget` of time, `run.timeout(…)` | all attempts, delays and waits count |",
            all_waits_count_towards_the_other_limits_of_time().boxed(),
        ),
        (
            "| `Cache` and the layers inside it | a hit needs no permit, is not counted, and asks nobody |",
            a_hit_needs_no_permit_is_not_counted_and_asks_nobody().boxed(),
        ),
        (
            "| `Cache` and guards | guards are inside, so a hit does not pass them. If a guard decides by the caller, add \
             the caller to the key with `context_keys`, or use `in_phase(Phase::Guard)` and bind the cache after the \
             guard |",
            a_hit_does_not_pass_guards_unless_the_cache_is_inside_or_knows_the_caller().boxed(),
        ),
        (
            "| `Cache` and failures | failures are not stored, unless you ask for it; a further attempt by `Error::retry` \
             ignores the entry |",
            failures_are_not_stored_and_another_attempt_ignores_the_entry().boxed(),
        ),
        (
            "| `Cache` and `Budget` | a hit spends neither tokens nor money, but is a run, and counts as a call |",
            a_hit_spends_nothing_and_counts_as_a_call().boxed(),
        ),
        (
            "| `Cache` and `Redact` | bound first, `Redact` is outside: the cache keeps the text before its output is \
             redacted. Bound after the cache, it is inside: the cache keeps the redacted text |",
            the_cache_keeps_what_is_inside_of_it().boxed(),
        ),
        (
            "| `Concurrency` of a run and of runs below | they share one permit, because a run must not wait for its own \
             parent: select one kind with `Runs` |",
            a_run_and_the_runs_below_it_share_one_permit().boxed(),
        ),
        (
            "| `Approval` and transforms | the person reads the input that the work receives, after all transforms |",
            the_person_reads_the_input_of_the_work().boxed(),
        ),
        (
            "| `Durable` | a step that has ended is answered outside its own layers, and its guards check only the output. \
             *Began* is stored innermost, after all guards |",
            a_step_is_answered_outside_its_layers_and_begins_after_all_guards().boxed(),
        ),
    ];
    let table = PAGE.split_once("\n## What a wait, a retry and a cache do to each other\n").expect("a table").1;
    let lines = table.lines().skip_while(|line| *line != "|---|---|").skip(1).take_while(|line| line.starts_with('|'));
    assert_eq!(lines.collect::<Vec<_>>(), rows.each_ref().map(|(row, _)| *row));
    for (row, check) in rows {
        println!("{row}");
        check.await?;
    }
    Ok(())
}

/// The calls, in their order.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn note(&self, call: impl Into<String>) {
        self.0.lock().expect("nobody panics").push(call.into());
    }

    /// Compares the calls since the last call of this function with the expected calls.
    #[track_caller]
    fn expect(&self, calls: &[&str]) {
        assert_eq!(mem::take(&mut *self.0.lock().expect("nobody panics")), calls);
    }
}

const ALWAYS: usize = usize::MAX;
const AT_ONCE: Duration = ms(0);
const HOUR: Duration = ms(3_600_000);

/// Returns work that sleeps for its input in milliseconds. Its first calls fail with an error that is retryable.
fn work(name: &'static str, failures: usize, log: &Log) -> impl Runnable<Input = u64, Output = u64> + 'static {
    let (log, calls) = (log.clone(), AtomicUsize::new(0));
    instance(&Emitter::new(), "Model", name, move |n: u64, _: RunContext| {
        log.note(name);
        let fails = calls.fetch_add(1, Ordering::Relaxed) < failures;
        async move {
            sleep(ms(n)).await;
            if fails { Err(Error::new("busy").retryable(true)) } else { Ok(n) }
        }
    })
}

/// Binds the middlewares in their order, or in the opposite order.
fn bound<R: Runnable>(run: Run<'_, R>, mut wares: [Arc<dyn Middleware>; 2], swapped: bool) -> Run<'_, R> {
    if swapped {
        wares.reverse();
    }
    wares.into_iter().fold(run, |run, ware| run.middleware(ware))
}

/// Returns a retry that waits for 500 ms, and then for 1 s.
fn retry() -> Retry {
    Retry::builder().max_retries(2).base_delay(ms(500)).without_jitter().build().expect("fine")
}

/// Returns an approval of everything after some time.
fn approval(takes: Duration, log: &Log) -> Approval {
    let log = log.clone();
    Approval::by(move |request: Request| {
        log.note(format!("asked about {}", request.input));
        async move {
            sleep(takes).await;
            Ok(Decision::Approve)
        }
    })
}

async fn each_attempt_is_counted() -> TestResult {
    let log = Log::default();
    let two = RateLimit::builder(2, HOUR).build()?;
    let error = work("work", ALWAYS, &log).run(1).middleware(retry()).middleware(two).await.expect_err("it fails");
    assert!(error.is_denied(), "{error}");
    log.expect(&["work"; 2]);
    Ok(())
}

async fn the_permit_is_released_between_attempts() -> TestResult {
    let log = Log::default();
    // A run that gets no permit at once is denied.
    let one = Concurrency::builder(1).build()?;
    let (first, second) = (work("first", 1, &log), work("second", 0, &log));
    let (first, second) = join(first.run(100).middleware(retry()).middleware(one.clone()), async {
        sleep(ms(200)).await;
        second.run(100).middleware(one).await
    })
    .await;
    assert_eq!((first?, second?), (100, 100));
    log.expect(&["first", "second", "first"]);
    Ok(())
}

async fn another_attempt_asks_nobody() -> TestResult {
    let log = Log::default();
    work("work", 2, &log).run(1).middleware(retry()).middleware(approval(AT_ONCE, &log)).await?;
    log.expect(&["asked about 1", "work", "work", "work"]);
    Ok(())
}

async fn the_breaker_counts_calls_or_attempts() -> TestResult {
    for (after, attempts) in [(false, [3, 3, 0]), (true, [2, 0, 0])] {
        let (log, breaker) = (Log::default(), CircuitBreaker::builder().failures(2).build()?);
        let work = work("work", ALWAYS, &log);
        for attempts in attempts {
            let wares: [Arc<dyn Middleware>; 2] = [Arc::new(breaker.clone()), Arc::new(retry())];
            bound(work.run(1), wares, after).await.expect_err("it fails");
            log.expect(&["work"; 3][..attempts]);
        }
    }
    Ok(())
}

async fn the_alternative_runs_after_the_last_attempt_or_in_each() -> TestResult {
    let after_the_last = ["work", "work", "work", "other"];
    let in_each = ["work", "other", "work", "other", "work", "other"];
    for (after, calls) in [(false, &after_the_last[..]), (true, &in_each)] {
        let log = Log::default();
        let fallback = Fallback::to(work("other", ALWAYS, &log));
        let wares: [Arc<dyn Middleware>; 2] = [Arc::new(fallback), Arc::new(retry())];
        bound(work("work", ALWAYS, &log).run(1), wares, after).await.expect_err("both fail");
        log.expect(calls);
    }
    Ok(())
}

async fn control_flow_is_never_retried() -> TestResult {
    let question = Interrupt::new("question", json!("why?"));
    let ends = [
        Error::denied("policy", "no"),
        Error::halted("policy", "no"),
        Error::aborted("enough"),
        Error::interrupted(question),
    ];
    for end in ends {
        let (log, kind) = (Log::default(), end.kind().clone());
        let noted = log.clone();
        let work = instance(&Emitter::new(), "Model", "work", move |(): (), _: RunContext| {
            noted.note("work");
            let end = end.clone();
            async move { Err::<(), _>(end) }
        });
        let error = work.run(()).middleware(Retry::when(|_| true)).await.expect_err("it ends");
        assert_eq!(*error.kind(), kind);
        log.expect(&["work"]);
    }
    Ok(())
}

/// Returns `Agent[above]`, which runs `Model[below]` as often as its input says, at the same time and for 100 ms each.
/// `below` notes whether there is a warning about its chain.
fn above(fails: bool, log: &Log) -> impl Runnable<Input = usize, Output = ()> + 'static {
    let (tree, log) = (Emitter::new(), log.clone());
    let below = Arc::new(instance(&tree, "Model", "below", move |(): (), ctx: RunContext| {
        let warns = ctx.explain().warnings.iter().any(|warning| warning.contains("`above` above it"));
        log.note(if warns { "warned" } else { "work" });
        async move {
            sleep(ms(100)).await;
            if fails { Err(Error::new("busy").retryable(true)) } else { Ok(()) }
        }
    }));
    instance(&tree, "Agent", "above", move |times: usize, _: RunContext| {
        let below = Arc::clone(&below);
        async move { try_join_all((0..times).map(|_| below.run(()))).await.map(drop) }
    })
}

async fn attempts_multiply_with_a_warning() -> TestResult {
    let log = Log::default();
    let above = above(true, &log);
    above.run(1).middleware(for_tree(retry())).await.expect_err("it fails");
    log.expect(&["warned"; 9]);
    above.run(1).middleware(for_tree(Runs::of_kind("Model").only(retry()))).await.expect_err("it fails");
    log.expect(&["work"; 3]);
    Ok(())
}

/// Runs work whose first attempt fails. It takes 2.7 s: 1 s until it gets a permit, 1 s for an approval, 500 ms between
/// the attempts, and 100 ms in each. Returns how it ended, and when.
async fn patient(limit: Option<Arc<dyn Middleware>>, timeout: Duration) -> TestResult<(Result<u64>, Duration)> {
    let log = Log::default();
    let one = Concurrency::builder(1).wait(HOUR).build()?;
    let holder = work("holder", 0, &log);
    let patient = work("patient", 1, &log);
    let run = patient.run(100).middleware(retry()).middleware(one.clone()).middleware(approval(ms(1000), &log));
    let run = limit.into_iter().fold(run, |run, limit| run.middleware(limit)).timeout(timeout);
    let begun = Instant::now();
    let (held, ended) = join(holder.run(1000).middleware(one), run.map(|result| (result, begun.elapsed()))).await;
    held?;
    Ok(ended)
}

async fn no_wait_counts_towards_an_attempt() -> TestResult {
    let (result, after) = patient(Some(Arc::new(Timeout::per_attempt(ms(101)))), HOUR).await?;
    assert_eq!((result?, after), (100, ms(2700)));
    let (result, _) = patient(Some(Arc::new(Timeout::per_attempt(ms(99)))), HOUR).await?;
    assert!(result.expect_err("each attempt takes longer").is_timed_out());
    Ok(())
}

async fn all_waits_count_towards_the_other_limits_of_time() -> TestResult {
    // During the wait for the permit, the approval, the first attempt, the delay, and the second attempt.
    for after in [500, 1500, 2050, 2300, 2650] {
        let after = ms(after);
        let budget = Budget::builder().wall_time(after).build()?;
        let limits: [(Option<Arc<dyn Middleware>>, Duration); 3] =
            [(Some(Arc::new(Timeout::overall(after))), HOUR), (Some(Arc::new(budget)), HOUR), (None, after)];
        for (limit, timeout) in limits {
            let shown = format!("{limit:?}");
            let (result, ended) = patient(limit, timeout).await?;
            assert!(result.is_err(), "{shown}");
            assert_eq!(ended, after, "{shown}");
        }
    }
    Ok(())
}

async fn a_hit_needs_no_permit_is_not_counted_and_asks_nobody() -> TestResult {
    let (log, cache) = (Log::default(), Cache::json().build()?);
    let (two, one) = (RateLimit::builder(2, HOUR).build()?, Concurrency::builder(1).build()?);
    let work = work("work", 0, &log);
    let run = |n| {
        let run = work.run(n).middleware(cache.clone()).middleware(two.clone()).middleware(one.clone());
        run.middleware(approval(AT_ONCE, &log))
    };
    run(1).await?;
    // A run with another input holds the only permit, and is the last that the rate limit admits.
    let (other, hit) = join(run(1000), async {
        sleep(ms(500)).await;
        run(1).await
    })
    .await;
    assert_eq!((other?, hit?), (1000, 1));
    log.expect(&["asked about 1", "work", "asked about 1000", "work"]);
    assert!(run(2).await.expect_err("it is no hit").is_denied());
    Ok(())
}

async fn a_hit_does_not_pass_guards_unless_the_cache_is_inside_or_knows_the_caller() -> TestResult {
    let caches = [
        (Cache::json(), true),
        (Cache::json().context_keys(["user"]), false),
        (Cache::json().in_phase(Phase::Guard), false),
    ];
    for (cache, answers_all) in caches {
        let (log, cache) = (Log::default(), cache.build()?);
        let work = work("work", 0, &log);
        let run = |user: &str| {
            let run = work.run(1).layers(|stack| stack.guard(OnlyAda::default()));
            run.middleware(cache.clone()).context(json!({"user": user}))
        };
        run("Ada").await?;
        run("Ada").await?;
        assert_eq!(run("Bob").await.is_ok(), answers_all, "{cache:?}");
        log.expect(&["work"]);
    }
    Ok(())
}

async fn failures_are_not_stored_and_another_attempt_ignores_the_entry() -> TestResult {
    let log = Log::default();
    let cache = Cache::json().build()?;
    let once_busy = work("work", 1, &log);
    once_busy.run(1).middleware(cache.clone()).await.expect_err("busy");
    once_busy.run(1).middleware(cache.clone()).await?;
    log.expect(&["work", "work"]);

    let asks_again = AtomicUsize::new(0);
    let again = map_output(move |_: &mut u64, _: &RunContext| match asks_again.fetch_add(1, Ordering::Relaxed) {
        0 => Err(Error::retry("too old")),
        _ => Ok(()),
    });
    once_busy.run(1).middleware(cache).middleware(again).max_middleware_retries(1).await?;
    log.expect(&["work"]);

    let (keeps, once_busy) = (Cache::json().cache_errors().build()?, work("work", 1, &log));
    once_busy.run(1).middleware(keeps.clone()).await.expect_err("busy");
    once_busy.run(1).middleware(keeps).await.expect_err("it is stored");
    log.expect(&["work"]);
    Ok(())
}

async fn a_hit_spends_nothing_and_counts_as_a_call() -> TestResult {
    let tree = Emitter::new();
    let chat = Arc::new(instance(&tree, "Model", "chat", |(): (), ctx: RunContext| async move {
        charge(&ctx, Usage::new().input_tokens(60)).await
    }));
    let agent = instance(&tree, "Agent", "desk", move |cache: Option<()>, ctx: RunContext| {
        let chat = Arc::clone(&chat);
        async move {
            let cache = cache.map(|()| Cache::json().build().expect("fine"));
            for _ in 0..2 {
                let run = cache.iter().fold(chat.run(()), |run, cache| run.middleware(cache.clone()));
                run.await?;
            }
            let spent = spent(&ctx).expect("a budget");
            Ok((spent.tokens, spent.calls))
        }
    });
    let budget = Budget::builder().tokens(100).build()?;
    assert_eq!(agent.run(Some(())).middleware(budget.clone()).await?, (60, 2));
    assert!(agent.run(None).middleware(budget).await.expect_err("120 tokens").is_halted());
    Ok(())
}

const KEY: &str = "sk-proj-Qm7Zt2Vx9Lr4Kd8Ws3Yb6Nf1Hc5Jg0PaQm7Zt2Vx9Lr4Kd8Ws3Yb6Nf1";

/// Notes whether the output of the inner layers has the key.
#[derive(Debug)]
struct SeesKey(Log);

impl Layer<JsonRun> for SeesKey {
    async fn call(&self, input: &Value, _: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        let output = next.run(input).await?;
        self.0.note(if output.to_string().contains(KEY) { "key" } else { "redacted" });
        Ok(output)
    }
}

async fn the_cache_keeps_what_is_inside_of_it() -> TestResult {
    for (after, kept) in [(false, "key"), (true, "redacted")] {
        let (log, cache) = (Log::default(), Cache::json().build()?);
        let noted = log.clone();
        let work = instance(&Emitter::new(), "Model", "work", move |(): (), _: RunContext| {
            noted.note("work");
            async { Ok(format!("the key is {KEY}")) }
        });
        for calls in [&["work", kept][..], &[kept]] {
            // Between the two, or outside of both: it receives what the cache returns.
            let sees = Stack::builder().layer(SeesKey(log.clone())).build();
            let redact: Arc<dyn Middleware> = Arc::new(Redact::new());
            let run = if after {
                work.run(()).middleware(sees).middleware(cache.clone()).middleware(redact)
            } else {
                work.run(()).middleware(redact).middleware(sees).middleware(cache.clone())
            };
            assert!(!run.await?.contains(KEY));
            log.expect(calls);
        }
    }
    Ok(())
}

async fn a_run_and_the_runs_below_it_share_one_permit() -> TestResult {
    let log = Log::default();
    let above = above(false, &log);
    let begun = Instant::now();
    // A run that gets no permit at once is denied.
    above.run(2).middleware(for_tree(Concurrency::builder(1).build()?)).await?;
    assert_eq!(begun.elapsed(), ms(100));
    log.expect(&["warned"; 2]);

    let one_model = Concurrency::builder(1).wait(HOUR).of_kind("Model").build()?;
    above.run(2).middleware(for_tree(one_model)).await?;
    assert_eq!(begun.elapsed(), ms(300));
    log.expect(&["work"; 2]);
    Ok(())
}

/// Adds one to the input.
#[derive(Debug)]
struct AddOne;

impl Transform<JsonRun> for AddOne {
    async fn input(&self, input: &Value, _: &RunContext) -> Result<Option<Value>> {
        Ok(input.as_u64().map(|n| json!(n + 1)))
    }
}

async fn the_person_reads_the_input_of_the_work() -> TestResult {
    let log = Log::default();
    let add_one: Arc<dyn Middleware> = Arc::new(Stack::builder().transform(AddOne).build());
    for swapped in [false, true] {
        let wares = [Arc::clone(&add_one), Arc::new(approval(AT_ONCE, &log))];
        assert_eq!(bound(work("work", 0, &log).run(1), wares, swapped).await?, 2);
        log.expect(&["asked about 2", "work"]);
    }
    Ok(())
}

const JOB: &str = "import-7";

/// A layer, a guard and work that note what they are, and whether the store has the beginning of the step.
#[derive(Clone, Debug)]
struct Begins {
    name: &'static str,
    log: Log,
    store: MemoryStore,
}

impl Begins {
    async fn note(&self) {
        let entry = self.store.load(JOB).await.expect("a store").expect("an entry");
        let begun = entry.parts.iter().any(|part| part.starts_with(b"{\"began\""));
        self.log.note(format!("{}{}", self.name, if begun { ", began" } else { "" }));
    }
}

impl<O: Op> Layer<O> for Begins {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        self.note().await;
        next.run(input).await
    }
}

impl<O: Op> Guard<O> for Begins {
    async fn check_input(&self, _: &O::In, _: &RunContext) -> Result<()> {
        self.note().await;
        Ok(())
    }

    async fn check_output(&self, _: &O::Out, _: &RunContext) -> Result<()> {
        self.log.note("checks the output");
        Ok(())
    }
}

async fn a_step_is_answered_outside_its_layers_and_begins_after_all_guards() -> TestResult {
    let (log, store) = (Log::default(), MemoryStore::new());
    let notes = |name| Begins { name, log: log.clone(), store: store.clone() };
    let works = notes("work");
    let step = Arc::new(instance(&Emitter::new(), "Tool", "step", move |n: u64, _: RunContext| {
        let works = works.clone();
        async move {
            works.note().await;
            Ok(n)
        }
    }));
    let (observes, observed) = ([notes("observe"), notes("retry"), notes("transform"), notes("guard")], log.clone());
    let fails = AtomicUsize::new(1);
    let job = instance(&Emitter::new(), "Job", "import", move |(): (), _: RunContext| {
        let [observe, retry, transform, guard] = observes.clone();
        let (step, log) = (Arc::clone(&step), observed.clone());
        let fails = fails.fetch_sub(1, Ordering::Relaxed) == 1;
        async move {
            let run = step.run(1).key("step").layers(|stack| {
                stack.guard(guard).layer_in(Phase::Transform, transform).retry(retry).layer_in(Phase::Observe, observe)
            });
            let run = run.observe(Stage::Start, move |_: &dyn AnyEvent, _| log.note("start"));
            run.await?;
            if fails { Err(Error::new("killed")) } else { Ok(()) }
        }
    });
    let run = || job.run(()).middleware(Durable::new(&store, JOB));
    run().await.expect_err("killed");
    log.expect(&["start", "observe", "retry", "transform", "guard", "work, began", "checks the output"]);
    run().await?;
    log.expect(&["start", "checks the output"]);
    Ok(())
}
