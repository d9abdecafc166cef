//! An async listener holds only `Send` values across an await.

use std::rc::Rc;

use emitree_emitter::{AnyEvent, Emitter};

fn main() {
    let app = Emitter::new();
    app.on_async("*", |_: &mut dyn AnyEvent, _| {
        Box::pin(async {
            let local = Rc::new(1);
            std::future::ready(()).await;
            drop(local);
            Ok(())
        })
    })
    .unwrap();
}
