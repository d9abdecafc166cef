//! A listener for any payload takes `&mut dyn AnyEvent`.

use emitree_emitter::Emitter;

fn main() {
    let app = Emitter::new();
    app.on("count", |_, _| ()).unwrap();
}
