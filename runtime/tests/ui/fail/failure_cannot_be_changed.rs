//! `error` is read-only (R3).
use emitree_emitter::Emitter;
use emitree_runtime::{Error, Failure, Stage};

fn main() {
    let tree = Emitter::new();
    tree.on(Stage::Error, |failure: &mut Failure, _| failure.error = Error::new("another")).unwrap();
}
