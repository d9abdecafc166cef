//! E7: `on_event` and `emit_event_now` take only types that implement `Event`.

use emitree_emitter::Emitter;

#[derive(serde::Serialize)]
struct FetchData;

fn main() {
    let app = Emitter::new();
    app.on_event(|_: &mut FetchData, _| ()).unwrap();
    app.emit_event_now(&mut FetchData).unwrap();
}
