//! What built-in middlewares cost.
//!
//! ```text
//! cargo bench --bench middleware
//! ```
//!
//! Work that does next to nothing, as in the bench of runs: what is measured is what a middleware adds to a run, beside
//! the run itself or the crate that it wraps.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use emitree::middleware::{Metrics, Timeout};
use emitree::{Creator, Emitter, Layer, Middleware, Next, Op, Result, RunContext, Runnable, Stack, Unseen};

use crate::support::{Case, Extra, Suite, timed};

mod support;

const COLUMNS: &[&str] = &["emitree", "peer"];

fn main() {
    // Time-outs are tokio's.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _inside = runtime.enter();
    let mut suite = Suite::new(COLUMNS);
    observing(&mut suite);
    suite.run();
}

/// MO: what only observes or counts.
fn observing(suite: &mut Suite) {
    let bare = suite.case(bare());
    let mut row = |name, what, case: Box<dyn Case>| {
        let more = Extra::shared(suite.case(case), bare, 1);
        suite.row(name, what, more).beside("peer", bare).at_most(1.0, "a bare run", bare);
    };
    let pass = Stack::<Unseen>::builder().layer(Pass).build();
    row("MO", "what a run takes more with: a layer that passes on", Box::new(with(pass)));
    row("", "… `metrics`, without a recorder", Box::new(with(Metrics::new())));
    row("", "… `timeout` per attempt", Box::new(with(Timeout::per_attempt(Duration::from_secs(1)))));
}

/// Passes on.
#[derive(Debug)]
struct Pass;

impl<O: Op> Layer<O> for Pass {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        next.run(input).await
    }
}

/// Adds one.
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

fn with(middleware: impl Middleware) -> impl Case {
    runs(adder(vec![Arc::new(middleware)]))
}

fn runs(adder: Adder) -> impl Case {
    move |n| {
        timed(async {
            for i in 0..n {
                black_box(adder.run(black_box(i)).await.ok());
            }
        })
    }
}
