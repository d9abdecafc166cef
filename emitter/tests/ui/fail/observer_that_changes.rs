//! An observer does not take the event by `&mut`.

use emitree_emitter::Emitter;

fn main() {
    let app = Emitter::new();
    app.observe("count", |n: &mut u32, _| *n += 1).unwrap();
}
