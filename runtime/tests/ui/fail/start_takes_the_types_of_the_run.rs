//! The output that a listener of `start` sets has the output type of the run (R5).
use emitree_runtime::{RunContext, Runnable, runnable_fn};

fn main() {
    let double = runnable_fn("double", async |n: u32, _: RunContext| Ok(n * 2));
    drop(double.run(1).on_start(|start, _| start.output = Some("two")));
    drop(double.run("one"));
}
