//! The cost of sinks that show runs, on the thread that emits.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --features traces --bench traces
//! ```

use std::hint::black_box;
use std::io;
use std::time::Duration;

use emitree::otlp::Otlp;
use emitree::sinks::{Jsonl, Sink};
use emitree::viewer::Viewer;
use emitree::{Emitter, RunContext, Runnable, runnable_fn};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Builder;

use crate::support::{Case, Extra, Suite, timed};

mod support;

/// The bytes of the input of a run.
const INPUT: usize = 8 << 10;
/// Nobody listens here: spans fail at once, so the thread that sends them costs little.
const NOWHERE: &str = "http://127.0.0.1:9";

fn main() {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let viewer = runtime.block_on(Viewer::bind("127.0.0.1:0").into_future()).expect("a viewer");
    let otlp = Otlp::to(NOWHERE).expect("a URL").retry_for(Duration::ZERO).pending_bytes(1 << 20);
    let mut suite = Suite::new(&["emitree", "JSONL"]);
    let alone = suite.case(runs(&Emitter::new(), || ()));
    let mut sink = |sink: Box<dyn Sink>| suite.case(with_sink(sink));
    let jsonl = sink(Box::new(Jsonl::new(io::sink())));
    let heads = sink(Box::new(otlp.sink()));
    let content = sink(Box::new(otlp.clone().content(true).sink()));
    let shown = sink(Box::new(viewer.sink()));
    suite.row("", "a run with 8 KB of input, without a sink", alone);
    let [jsonl, heads, content, shown] = [jsonl, heads, content, shown].map(|of| Extra::shared(of, alone, 1));
    let row = suite.row("OH", "… what spans without content add", heads);
    row.beside("JSONL", jsonl).at_most(0.25, "JSONL", jsonl);
    let row = suite.row("OC", "… spans with content", content);
    row.beside("JSONL", jsonl).at_most(1.2, "JSONL", jsonl);
    let row = suite.row("VR", "… the page of the program", shown);
    row.beside("JSONL", jsonl).at_most(1.2, "JSONL", jsonl);
    suite.run();
}

/// Runs with a sink, whose queue is empty again before the next batch.
fn with_sink(sink: Box<dyn Sink>) -> impl Case + use<> {
    let top = Emitter::new();
    let handle = top.pipe_to(sink).expect("a thread");
    runs(&top, move || _ = handle.flush_blocking())
}

/// Runs below an emitter. The time is the CPU time of this thread, because the thread of a sink may have the same core.
fn runs<T: Fn()>(top: &Emitter, after: T) -> impl Case + use<T> {
    let length = runnable_fn("length", |text: String, _: RunContext| async move { Ok(text.len()) });
    let length = length.with_emitter(top.child("length").expect("a name"));
    let input = "text ".repeat(INPUT / 5);
    move |n| {
        let begin = cpu_time();
        timed(async {
            for _ in 0..n {
                black_box(length.run(input.clone()).await.expect("a length"));
            }
        });
        let took = cpu_time() - begin;
        after();
        took
    }
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("a time")
}
