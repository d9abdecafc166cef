//! A closure that never returns has no type to return.

use emitree_emitter::Emitter;

fn main() {
    let app = Emitter::new();
    app.on("count", |_: &mut u32, _| todo!()).unwrap();
}
