//! An observer does not change the event.

use emitree_emitter::{AnyEvent, Emitter};

fn main() {
    let app = Emitter::new();
    app.observe("count", |n: &u32, _| *n += 1).unwrap();
    app.observe("*", |event: &dyn AnyEvent, _| drop(event.downcast_mut::<u32>())).unwrap();
}
