//! The cost of a whole run.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --bench run
//! ```
//!
//! The work does next to nothing, so a row shows the cost of the run itself. Most rows measure runs, instrumented
//! functions and tower services in the same way: each batch is one async block with a loop, polled once with a waker
//! that does nothing. A batch that uses the thread of a sink ends when everything is written.

use std::cell::Cell;
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use emitree::abort::AbortHandle;
use emitree::emitter::Creator;
use emitree::middleware::Trajectory;
use emitree::sinks::Jsonl;
use emitree::{Emitter, Result, Run, RunContext, Runnable, Stack};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tracing::{Dispatch, Instrument, Subscriber, info, info_span, instrument};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{Registry, fmt};

use crate::support::{Case, Extra, Suite, timed};
use crate::work::{Adder, runs, services};

#[path = "support/below.rs"]
mod below;
#[path = "support/chain.rs"]
mod chain;
mod support;
#[path = "support/work.rs"]
mod work;

const COLUMNS: &[&str] = &["emitree", "tracing", "tower"];

fn main() {
    let mut suite = Suite::new(COLUMNS);
    alone(&mut suite);
    layers(&mut suite);
    aborts(&mut suite);
    beside_others(&mut suite);
    lines(&mut suite);
    suite.run();
}

/// WL: layers that only call the next layer, compared with the same number of boxed services.
fn layers(suite: &mut Suite) {
    let [one, five] = [1, 5].map(|layers| suite.case(layered(layers)));
    let [tower_one, tower_five] = [1, 5].map(|layers| suite.case(services(layers)));
    let (layer, service) = (Extra::shared(five, one, 4), Extra::shared(tower_five, tower_one, 4));
    let row = suite.row("WL", "a further layer that only passes on: (five layers − one layer) / 4", layer);
    row.beside("tower", service).at_most(2.0, "a boxed tower layer", service);
}

/// WS, WX, WD: the cost of an abort signal, and of ending runs by abort.
fn aborts(suite: &mut Suite) {
    let bare = suite.case(runs(Adder::new()));
    let signalled = suite.case(signalled_runs());
    let token = suite.case(tokens());
    let row = suite.row("WS", "an abort signal: the extra cost of a run", Extra::shared(signalled, bare, 1));
    row.at_most(1.0, "creating and dropping a `CancellationToken`", token);
    let [one, many] = [1, 1_000].map(|children| suite.case(below::aborted(children)));
    let row = suite.row("WX", "each of 1,000 runs below a run, started, then ended by abort", Extra::per(many, 1_000));
    row.at_most(1.5, "the same with one run below", one);
    let [short, long] = [1_000, 10_000].map(|levels| suite.case(chain::aborted(levels)));
    let row = suite.row(
        "WD",
        "each of a chain of 10,000 spawned runs, started, then ended by abort",
        Extra::per(long, 10_000),
    );
    row.at_most(1.5, "a chain of 1,000", Extra::per(short, 1_000));
}

/// WB, WT: a run whose parent has other children.
fn beside_others(suite: &mut Suite) {
    let [alone, crowded] = [0, 1_000].map(|siblings| suite.case(below::runs(siblings)));
    suite.row("WB", "a run below another run, with 1,000 living siblings", crowded).at_most(
        1.2,
        "the same without siblings",
        alone,
    );
    let [one, two] = [1, 2].map(|threads| suite.case(below::on_threads(threads)));
    suite.row("WT", "a run below another run, on two threads at a time", two).at_most(1.2, "one thread", one);
}

/// WR: one run, compared with a service in three boxed layers, and with an instrumented function under a counting
/// layer.
fn alone(suite: &mut Suite) {
    let instrumented = suite.case(under(counting(), |n| {
        timed(async {
            for i in 0..n {
                black_box(add_one(black_box(i)).await.ok());
            }
        })
    }));
    let counted = suite.case(under(counting(), runs(Adder::new())));
    let bare = suite.case(runs(Adder::new()));
    let tower = suite.case(services(3));
    let row =
        suite.row("WR", "a whole run without listeners or middlewares; the counting layer receives its span", counted);
    row.beside("tracing", instrumented).beside("tower", tower).at_most(3.5, "instrumented", instrumented);
    let row = suite.row("", "… without a subscriber", bare);
    row.beside("tracing", instrumented).beside("tower", tower).at_most(3.0, "instrumented", instrumented);
}

/// WN: three nested runs, printed or recorded, compared with the same number of lines of tracing's own layers.
fn lines(suite: &mut Suite) {
    let text = suite.case(under(fmt_layer(fmt::layer().with_writer(io::sink)), traced(2)));
    let json = suite.case(under(fmt_layer(fmt::layer().json().with_writer(io::sink)), traced(3)));
    let shown = suite.case(trajectories());
    let recorded = suite.case(recordings());
    let row = suite.row("WN", "three nested runs, trajectory into a null writer: six lines", shown);
    row.beside("tracing", text).at_most(1.0, "fmt layer, six lines", text);
    let row = suite.row("", "… JSONL of all events into a null writer: nine lines", recorded);
    row.beside("tracing", json).at_most(0.7, "JSON layer, nine lines", json);
}

// --- emitree ---

/// A layer that only calls the next layer.
#[derive(Debug)]
struct Pass;

impl emitree::Layer<Adder> for Pass {
    async fn call(&self, input: &u64, _: &RunContext, next: emitree::Next<'_, Adder>) -> Result<u64> {
        next.run(input).await
    }
}

/// Calls work through a number of layers. All calls are inside one run, because the cost of a run would hide the cost
/// of a layer.
fn layered(layers: usize) -> impl Case {
    let stack = (0..layers).fold(Stack::<Adder>::builder(), |stack, _| stack.layer(Pass)).build();
    below::inside(move |ctx, n| {
        timed(async {
            for i in 0..n {
                let i = black_box(i);
                let called = stack.call(&i, &ctx, |n, _| Box::pin(std::future::ready(Ok(black_box(*n) + 1))));
                black_box(called.await.ok());
            }
        })
    })
}

fn signalled_runs() -> impl Case {
    let (adder, handle) = (Adder::new(), AbortHandle::new());
    move |n| {
        timed(async {
            for i in 0..n {
                black_box(adder.run(black_box(i)).abort_on(black_box(&handle)).await.ok());
            }
        })
    }
}

fn tokens() -> impl Case {
    move |n| {
        timed(async {
            for _ in 0..n {
                drop(black_box(CancellationToken::new()));
            }
        })
    }
}

/// The value that passes through the nested runs and functions.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Question {
    question: String,
    level: u32,
}

impl Question {
    fn new() -> Self {
        Self { question: "how many words are there in this file?".to_owned(), level: 0 }
    }

    fn below(&self) -> Self {
        Self { question: self.question.clone(), level: self.level + 1 }
    }
}

/// A runnable that runs the next runnable, if there is one.
struct Asker {
    emitter: Emitter,
    next: Option<Box<Self>>,
}

impl Asker {
    /// Creates three nested runnables.
    fn three() -> Self {
        let root = Emitter::new();
        ["decode", "read_file", "desk"]
            .into_iter()
            .fold(None, |next: Option<Box<Self>>, name| {
                let emitter = root.child_builder(["tool", name]).creator(Creator::new("Tool", name)).build();
                Some(Box::new(Self { emitter: emitter.expect("a valid name"), next }))
            })
            .map_or_else(|| unreachable!("three names"), |asker| *asker)
    }
}

impl Runnable for Asker {
    type Input = Question;
    type Output = u32;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, input: &Question, _: &RunContext) -> Result<u32> {
        match &self.next {
            Some(next) => next.run(input.below()).await,
            None => Ok(input.level),
        }
    }
}

async fn ask(asker: &Asker, n: u64, prepare: impl Fn(Run<'_, Asker>) -> Run<'_, Asker>) {
    for _ in 0..n {
        black_box(prepare(asker.run(Question::new())).await.ok());
    }
}

fn trajectories() -> impl Case {
    let (asker, trajectory) =
        (Asker::three(), Arc::new(Trajectory::builder().writer(io::sink()).build().expect("a null writer")));
    move |n| timed(ask(&asker, n, |run| run.middleware(trajectory.clone())))
}

fn recordings() -> impl Case {
    const MANY: u64 = 20;
    let asker = Asker::three();
    let top = asker.emitter.parent().expect("a root above").clone();
    let sink = top.pipe_to(Jsonl::new(io::sink())).expect("a thread");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    move |n| {
        let start = Instant::now();
        runtime.block_on(async {
            // There are so many runs that the wait for the sink's thread at the end of a batch is negligible.
            ask(&asker, n * MANY, |run| run).await;
            assert!(sink.flush().await.is_complete(), "everything is written");
        });
        start.elapsed() / u32::try_from(MANY).expect("a handful")
    }
}

// --- tracing ---

#[instrument(level = "info", skip_all, fields(n))]
async fn add_one(n: u64) -> Result<u64> {
    Ok(black_box(n) + 1)
}

/// A layer that counts spans and does nothing else.
struct Counting;

thread_local! {
    static SPANS: Cell<u64> = const { Cell::new(0) };
}

impl<S: Subscriber> tracing_subscriber::Layer<S> for Counting {
    fn on_new_span(&self, _: &tracing::span::Attributes<'_>, _: &tracing::Id, _: Context<'_, S>) {
        SPANS.set(SPANS.get() + 1);
    }
}

fn counting() -> Dispatch {
    Dispatch::new(Registry::default().with(Counting))
}

fn fmt_layer(layer: impl tracing_subscriber::Layer<Registry> + Send + Sync) -> Dispatch {
    Dispatch::new(Registry::default().with(layer))
}

/// A case whose batches run under a subscriber.
fn under(subscriber: Dispatch, mut case: impl Case) -> impl Case {
    move |n| tracing::dispatcher::with_default(&subscriber, || case(n))
}

/// Three nested instrumented functions that each write two lines (`start` and `success`) or three (also `finish`).
fn traced(each: u32) -> impl Case {
    move |n| {
        timed(async {
            for _ in 0..n {
                black_box(traced_at(["decode", "read_file", "desk"].as_slice(), Question::new(), each).await);
            }
        })
    }
}

fn traced_at<'a>(names: &'a [&'static str], input: Question, each: u32) -> BoxFuture<'a, u32> {
    let Some((name, rest)) = names.split_last() else { return Box::pin(std::future::ready(input.level)) };
    let span = info_span!("run", name);
    let work = async move {
        info!(input = ?input, "start");
        let output = traced_at(rest, input.below(), each).await;
        info!(input = ?input, output, "success");
        if each > 2 {
            info!(input = ?input, output, status = "success", "finish");
        }
        output
    };
    Box::pin(work.instrument(span))
}

// --- tower ---
