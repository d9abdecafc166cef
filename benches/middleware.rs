//! The cost of built-in middlewares.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --bench middleware
//! ```
//!
//! The work does next to nothing, as in the bench `run`. The rows show the cost that a middleware adds to a run,
//! compared with the cost of the run or of the crate that the middleware wraps.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use emitree::emitter::Creator;
use emitree::layer::AnyRun;
use emitree::middleware::IntoMiddleware;
use emitree::middleware::key::Key;
use emitree::middleware::{
    Budget, Cache, CircuitBreaker, Concurrency, Limits, Metrics, RateLimit, Record, Retry, Timeout,
};
use emitree::{Emitter, Layer, Middleware, Next, Op, Result, RunContext, Runnable, Stack, runnable_fn};
use governor::{Quota, RateLimiter};
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, KeyName, Metadata, Recorder, SharedString, Unit, counter, gauge, histogram,
};

use crate::support::{Case, Extra, Id, Suite, timed};

mod support;

const COLUMNS: &[&str] = &["emitree", "peer"];
/// A limit per second that a bench does not reach.
const MANY: u32 = 1_000_000_000;

fn main() {
    // Timeouts need tokio's clock.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _inside = runtime.enter();
    let mut suite = Suite::new(COLUMNS);
    observing(&mut suite);
    observing_below(&mut suite);
    wrapping(&mut suite);
    suite.run();
}

/// MO: `metrics`, which observes a run, and middlewares that are layers around a run.
fn observing(suite: &mut Suite) {
    let bare = suite.case(bare());
    let mut row = |name, what, case: Box<dyn Case>| {
        let more = Extra::shared(suite.case(case), bare, 1);
        suite.row(name, what, more).beside("peer", bare).at_most(1.0, "a bare run", bare);
    };
    row("MO", "the extra cost of a run with: `metrics`, without a recorder", Box::new(with(Metrics::new())));
    recorded(suite, bare);
    // The costs of these layers are shown without a bound.
    let mut row = |name, what, case: Box<dyn Case>| {
        let more = Extra::shared(suite.case(case), bare, 1);
        suite.row(name, what, more).beside("peer", bare);
    };
    row("", "… a layer that passes on and sees no values", Box::new(with(passing())));
    row("", "… `circuit_breaker`", Box::new(with(CircuitBreaker::new())));
    row("", "… `concurrency`", Box::new(with(Concurrency::builder(8).build().expect("places"))));
    row("", "… `timeout` per attempt", Box::new(with(Timeout::per_attempt(Duration::from_secs(1)))));
    row("", "… `retry`", Box::new(with(Retry::new())));
}

/// `metrics` with a recorder, compared with runs around which the bench makes the same calls to the recorder.
fn recorded(suite: &mut Suite, bare: Id) {
    let (metrics, calls) = (suite.case(counted(with(Metrics::new()))), suite.case(counted(calling())));
    let more = Extra::shared(metrics, calls, 1);
    let what = "… `metrics` with a recorder, minus a run that makes the same calls itself";
    suite.row("", what, more).beside("peer", bare).at_most(1.0, "a bare run", bare);
    suite.row("", "… those calls", Extra::shared(calls, bare, 1));
}

/// MB: middlewares that count or record the runs below the run that they are bound to.
fn observing_below(suite: &mut Suite) {
    let bare = suite.case(below(|_: &RunContext| Ok(())));
    let mut row = |name, what, bound, case: Box<dyn Case>| {
        let more = Extra::shared(suite.case(case), bare, 1);
        suite.row(name, what, more).beside("peer", bare).at_most(bound, "a bare run below another", bare);
    };
    let limits = Limits::builder().runs(u64::MAX).depth(9).build();
    row("MB", "the extra cost of a run below a run with: `limits`", 1.0, Box::new(below(limits)));
    let budget = Budget::builder().calls(u64::MAX).build().expect("a budget");
    row("", "… `budget`, of calls", 1.0, Box::new(below(budget)));
    row("", "… `record`", 1.3, Box::new(below(Record::new())));
}

/// MW: middlewares that wrap a crate, compared with the crate.
fn wrapping(suite: &mut Suite) {
    let passing = suite.case(with(passing()));
    let mut row = |name, what, key, label, peer: Box<dyn Case>| {
        let limit = RateLimit::builder(MANY, Duration::from_secs(1)).by(key).build().expect("a rate");
        let (limited, peer) = (Extra::shared(suite.case(with(limit)), passing, 1), suite.case(peer));
        suite.row(name, what, limited).beside("peer", peer).at_most(3.0, label, peer);
    };
    let what = "`rate_limit`, minus a layer that passes on";
    row("MW", what, Key::all(), "governor's check", Box::new(checks()));
    row("", "… by kind", Key::kind(), "governor's check of a key", Box::new(checks_of_key()));
    let typed = suite.case(with(Stack::<Adder>::builder().layer(Pass).build()));
    let cache = Cache::typed::<u64>().build().expect("a cache");
    let hits = Extra::shared(suite.case(asked_again(&cache)), typed, 1);
    let moka = suite.case(gets());
    let row = suite.row("", "a hit of `cache`, minus a layer that passes on", hits);
    row.beside("peer", moka).at_most(3.0, "moka's get, and making the key", moka);
}

fn passing() -> Stack<AnyRun> {
    Stack::builder().layer(Pass).build()
}

/// A layer that only calls the next layer.
#[derive(Debug)]
struct Pass;

impl<O: Op> Layer<O> for Pass {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        next.run(input).await
    }
}

/// A runnable that adds one.
struct Adder {
    emitter: Emitter,
    middlewares: Vec<Arc<dyn Middleware>>,
}

impl Runnable for Adder {
    type Input = u64;
    type Output = u64;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    fn middlewares(&self) -> &[Arc<dyn Middleware>] {
        &self.middlewares
    }

    async fn execute(&self, input: &u64, _: &RunContext) -> Result<u64> {
        Ok(black_box(*input) + 1)
    }
}

fn adder(middlewares: Vec<Arc<dyn Middleware>>) -> Adder {
    let emitter = Emitter::new().child_builder("tool.add").creator(Creator::new("Tool", "add")).build();
    Adder { emitter: emitter.expect("a valid name"), middlewares }
}

fn bare() -> impl Case {
    runs(adder(Vec::new()))
}

fn with<Sort>(middleware: impl IntoMiddleware<Sort>) -> impl Case {
    runs(adder(vec![Arc::new(middleware.into_middleware())]))
}

fn runs(adder: Adder) -> impl Case {
    inputs(adder, |i| i)
}

/// A case of runs that all receive the same input.
fn asked_again(cache: &Cache<u64>) -> impl Case + use<> {
    inputs(adder(vec![Arc::new(cache.stack::<Adder>())]), |_| 7)
}

fn inputs(adder: Adder, input: impl Fn(u64) -> u64) -> impl Case {
    move |n| {
        timed(async {
            for i in 0..n {
                black_box(adder.run(black_box(input(i))).await.ok());
            }
        })
    }
}

/// A case of runs inside one run that has a middleware.
fn below<Sort>(middleware: impl IntoMiddleware<Sort>) -> impl Case {
    let adder = Arc::new(adder(Vec::new()));
    let host = runnable_fn("host", move |n: u64, _: RunContext| {
        let adder = Arc::clone(&adder);
        async move {
            let start = Instant::now();
            for i in 0..n {
                black_box(adder.run(black_box(i)).await.ok());
            }
            Ok(start.elapsed())
        }
    });
    let host = host.with_emitter(Emitter::new()).middleware(middleware);
    move |n| {
        let mut took = Duration::ZERO;
        timed(async { took = host.run(n).await.expect("a batch") });
        took
    }
}

/// A case of runs without the middleware `metrics`. The loop around the runs makes the same calls to the recorder.
fn calling() -> impl Case {
    let (adder, mut handles) = (adder(Vec::new()), None);
    move |n| {
        let (started, active, ended, duration) = handles
            .get_or_insert_with(|| (counter!("started"), gauge!("active"), counter!("ended"), histogram!("duration")));
        let begun = tokio::time::Instant::now();
        timed(async {
            for i in 0..n {
                started.increment(1);
                active.increment(1.0);
                black_box(adder.run(black_box(i)).await.ok());
                active.decrement(1.0);
                ended.increment(1);
                duration.record(begun.elapsed());
            }
        })
    }
}

/// A case whose batches run with a recorder installed.
fn counted(mut case: impl Case) -> impl Case {
    let recorder = Counting::default();
    move |n| metrics::with_local_recorder(&recorder, || case(n))
}

/// A recorder that keeps one number for each key. For a histogram, this is the number of recorded values.
#[derive(Default)]
struct Counting(Mutex<HashMap<metrics::Key, Arc<AtomicU64>>>);

impl Counting {
    fn of(&self, key: &metrics::Key) -> Arc<AtomicU64> {
        Arc::clone(self.0.lock().expect("nobody panics").entry(key.clone()).or_default())
    }
}

impl Recorder for Counting {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &metrics::Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.of(key))
    }

    fn register_gauge(&self, key: &metrics::Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.of(key))
    }

    fn register_histogram(&self, key: &metrics::Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Records(self.of(key))))
    }
}

struct Records(Arc<AtomicU64>);

impl HistogramFn for Records {
    fn record(&self, _: f64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

// --- peers ---

fn checks() -> impl Case {
    let quota = Quota::per_second(MANY.try_into().expect("more than none"));
    let limiter = RateLimiter::direct_with_clock(quota, governor::clock::DefaultClock::default());
    move |n| {
        let start = Instant::now();
        (0..n).for_each(|_| {
            black_box(limiter.check().is_ok());
        });
        start.elapsed()
    }
}

/// Checks a limiter of governor that is keyed by kind, with governor's own store.
fn checks_of_key() -> impl Case {
    let limiter = RateLimiter::keyed(Quota::per_second(MANY.try_into().expect("more than none")));
    let kind = "Tool".to_owned();
    move |n| {
        let start = Instant::now();
        (0..n).for_each(|_| {
            black_box(limiter.check_key(black_box(&kind)).is_ok());
        });
        start.elapsed()
    }
}

fn gets() -> impl Case {
    let cache = moka::sync::Cache::<Vec<u8>, u64>::new(10_000);
    let key = |input: u64| serde_json::to_vec(&("tool.add", "Tool", "add", input)).expect("JSON");
    cache.insert(key(7), 8);
    move |n| {
        let start = Instant::now();
        (0..n).for_each(|_| {
            black_box(cache.get(&key(black_box(7))));
        });
        start.elapsed()
    }
}
