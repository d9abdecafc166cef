//! An async listener is called many times, so it has to clone captured values for each call.

use emitree_emitter::Emitter;

fn main() {
    let client = String::from("https://example.org");
    let app = Emitter::new();
    app.on_async("fetch", move |url: &mut String, _| {
        Box::pin(async move {
            *url = client;
            Ok(())
        })
    })
    .unwrap();
}
