//! The input and output of a function must be serializable and deserializable.
use emitree_runtime::{RunContext, runnable_fn};

struct Connection;

fn main() {
    drop(runnable_fn("connect", async |(): (), _: RunContext| Ok(Connection)));
}
