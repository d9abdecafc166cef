//! A listener may be called on any thread, and its future may be polled on any thread.

use std::rc::Rc;

use emitree_emitter::{AnyEvent, Emitter};

fn main() {
    let app = Emitter::new();
    let shared = Rc::new(1);
    app.on("*", move |_: &mut dyn AnyEvent, _| drop(Rc::clone(&shared))).unwrap();
}
