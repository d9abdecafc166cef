//! `async_fn` takes closures that capture nothing.

use emitree_emitter::{BoxError, Emitter, EventMeta, async_fn};

fn main() {
    let prefix = String::from("https://");
    let app = Emitter::new();
    app.on_async("fetch", async_fn(async move |url: &mut String, _: &EventMeta<'_>| -> Result<(), BoxError> {
        url.insert_str(0, &prefix);
        Ok(())
    }))
    .unwrap();
}
