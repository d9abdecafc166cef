//! A listener says which type it takes.

use emitree_emitter::Emitter;

fn main() {
    let app = Emitter::new();
    app.on("count", |n, _| *n += 1).unwrap();
}
