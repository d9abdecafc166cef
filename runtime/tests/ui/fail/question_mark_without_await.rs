//! A run has no result before it is awaited (R1).
use emitree_runtime::{Result, RunContext, Runnable, runnable_fn};

async fn work() -> Result<u32> {
    let double = runnable_fn("double", async |n: u32, _: RunContext| Ok(n * 2));
    let doubled = double.run(21)?;
    Ok(doubled)
}

fn main() {
    drop(work());
}
