//! An async listener returns a boxed future.

use emitree_emitter::{BoxError, Emitter, EventMeta};

async fn double(n: &mut u32, _: &EventMeta<'_>) -> Result<(), BoxError> {
    *n *= 2;
    Ok(())
}

fn main() {
    let app = Emitter::new();
    app.on_async("count", |n: &mut u32, _| async move { Ok(()) }).unwrap();
    app.on_async("count", async |n: &mut u32, _| Ok(())).unwrap();
    app.on_async("count", double).unwrap();
}
