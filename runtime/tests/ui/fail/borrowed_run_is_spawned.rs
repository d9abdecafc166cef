//! A run borrows its instance, so the run can be spawned only if the borrow is `'static` (R1).
use emitree_runtime::{RunContext, Runnable, runnable_fn};

async fn spawn() {
    let double = runnable_fn("double", async |n: u32, _: RunContext| Ok(n * 2));
    drop(tokio::spawn(double.run(1)).await);
}

fn main() {
    drop(spawn());
}
