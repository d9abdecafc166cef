//! `error` is read-only: user code cannot create a `Failure` to replace it with (R3).
use emitree_emitter::Emitter;
use emitree_runtime::{Error, Failure, Stage};

fn main() {
    let tree = Emitter::new();
    tree.on(Stage::Error, |failure: &mut Failure, _| *failure = Failure { error: Error::new("another") }).unwrap();
}
