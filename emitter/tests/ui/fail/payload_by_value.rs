//! A payload is passed by `&mut` to the emit and to the listeners. A listener also takes the meta.

use emitree_emitter::Emitter;

fn main() {
    let app = Emitter::new();
    app.emit_now("count", 1_u32).unwrap();
    app.on("count", |_: u32, _| ()).unwrap();
    app.on("count", |n: &mut u32| *n += 1).unwrap();
}
