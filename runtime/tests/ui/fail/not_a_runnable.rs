//! What cannot be run says so.
use emitree_runtime::{Runnable, lifecycle_of};

fn call(_: &impl Runnable) {}

struct Nothing;

fn main() {
    call(&Nothing);
    drop(lifecycle_of(&Nothing));
}
