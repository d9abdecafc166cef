//! The error for a value that cannot be run names `Runnable`.
use emitree_runtime::{Runnable, lifecycle_of};

fn call(_: &impl Runnable) {}

struct Nothing;

fn main() {
    call(&Nothing);
    drop(lifecycle_of(&Nothing));
}
