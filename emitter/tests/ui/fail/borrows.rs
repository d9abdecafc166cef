//! A listener owns its captured values.

use emitree_emitter::Emitter;

fn main() {
    let app = Emitter::new();
    let prefix = String::from("https://");
    app.on("fetch", |url: &mut String, _| url.insert_str(0, &prefix)).unwrap();
}
