//! `finish` is read-only, typed and through JSON (R3).
use emitree_emitter::{AnyEvent, Emitter};
use emitree_runtime::{Finish, LifecycleMut, Outcome, Stage};

fn main() {
    let tree = Emitter::new();
    tree.on(Stage::Finish, |finish: &mut Finish<u32, u32>, _| finish.outcome = Outcome::Success { output: 1 }).unwrap();
    tree.on("*.*", |event: &mut dyn AnyEvent, meta| {
        if let Some(LifecycleMut::Finish(finish)) = LifecycleMut::of(event, meta) {
            finish.set_output_json(1.into());
        }
    })
    .unwrap();
}
