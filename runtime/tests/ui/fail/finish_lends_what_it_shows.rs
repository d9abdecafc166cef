//! `finish` is read-only: its methods return shared references (R3).
use emitree_runtime::{Outcome, RunContext, Runnable, runnable_fn};

fn main() {
    let double = runnable_fn("double", async |n: u32, _: RunContext| Ok(n * 2));
    drop(double.run(1).on_finish(|finish, _| *finish.outcome() = Outcome::Success { output: 1 }));
}
