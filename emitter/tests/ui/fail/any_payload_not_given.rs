//! A listener of any payload says so: `&mut dyn AnyEvent`.

use emitree_emitter::Emitter;

fn main() {
    let app = Emitter::new();
    app.on("count", |_, _| ()).unwrap();
}
