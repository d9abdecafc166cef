//! Values that do nothing on their own are `must_use`.
#![deny(unused_must_use)]

use emitree_emitter::{AnyEvent, Emitter, Options};

fn main() {
    let app = Emitter::new();
    app.emit("x", &mut ());
    app.with(Options::new().once());
    Options::new().on("x", |_: &mut dyn AnyEvent, _| ());
    app.on("x", |_: &mut dyn AnyEvent, _| ()).unwrap().drop_guard();
    app.on("x", |_: &mut dyn AnyEvent, _| ());
    app.child_builder("a");
}
