//! A listener may be called on any thread, and so may its future be polled.

use std::rc::Rc;

use emitree_emitter::{AnyEvent, Emitter};

fn main() {
    let app = Emitter::new();
    let shared = Rc::new(1);
    app.on("*", move |_: &mut dyn AnyEvent, _| drop(Rc::clone(&shared))).unwrap();
}
