//! A listener returns `()` or `Result<(), BoxError>`.

use emitree_emitter::Emitter;

fn main() {
    let app = Emitter::new();
    app.on("count", |n: &mut u32, _| *n + 1).unwrap();
    app.on("count", |_: &mut u32, _| Err::<(), String>("no".into())).unwrap();
    app.on("count", |_: &mut u32, _| Ok::<u32, emitree_emitter::BoxError>(1)).unwrap();
}
