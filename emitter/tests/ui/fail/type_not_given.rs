//! The closure of a listener names its payload type.

use emitree_emitter::Emitter;

fn main() {
    let app = Emitter::new();
    app.on("count", |n, _| *n += 1).unwrap();
}
