//! The compiler warns about a run that is not awaited, and about a task handle that is not kept (R1).
#![deny(unused_must_use)]
use emitree_runtime::{RunContext, Runnable, runnable_fn};

fn main() {
    let double = runnable_fn("double", async |n: u32, ctx: RunContext| {
        ctx.spawn(async { 1 });
        Ok(n * 2)
    });
    double.run(1);
    double.run(1).on_start(|_, _| ());
}
