//! A listener may be called from any thread, and so may what it awaits.

use std::rc::Rc;

use emitree_emitter::{AnyEvent, Emitter};

fn main() {
    let app = Emitter::new();
    let shared = Rc::new(1);
    app.on("*", move |_: &mut dyn AnyEvent, _| drop(Rc::clone(&shared))).unwrap();
}
