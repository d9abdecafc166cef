//! Input and output are serialised and deserialised, also of a function.
use emitree_runtime::{RunContext, runnable_fn};

struct Connection;

fn main() {
    drop(runnable_fn("connect", async |(): (), _: RunContext| Ok(Connection)));
}
