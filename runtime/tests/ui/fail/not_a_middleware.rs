//! Neither a closure that returns no result nor a number is a middleware.
use emitree_runtime::{RunContext, Runnable, runnable_fn};

fn main() {
    let double = runnable_fn("double", async |n: u32, _: RunContext| Ok(n * 2));
    drop(double.run(1).middleware(|_: &RunContext| ()));
    drop(double.run(1).middleware(7));
}
