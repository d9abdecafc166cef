//! E7: a payload is serializable, or wrapped in `Opaque`.

use emitree_emitter::Emitter;

struct Connection;

fn main() {
    let app = Emitter::new();
    app.on("open", |_: &mut Connection, _| ()).unwrap();
    app.emit_now("open", &mut Connection).unwrap();
}
