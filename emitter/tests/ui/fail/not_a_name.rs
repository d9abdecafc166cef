//! E2: a name is text or an `EventName`.

use emitree_emitter::Emitter;

fn main() {
    let app = Emitter::new();
    app.emit_now(42, &mut ()).unwrap();
    app.child(42).unwrap();
}
