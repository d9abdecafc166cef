//! The return type of a closure that never returns cannot be inferred.

use emitree_emitter::Emitter;

fn main() {
    let app = Emitter::new();
    app.on("count", |_: &mut u32, _| todo!()).unwrap();
}
