//! A payload is passed by `&mut`, even if it is text.

use emitree_emitter::Emitter;

async fn say(app: &Emitter) {
    app.emit("said", "text").await.unwrap();
}

fn main() {
    drop(say(&Emitter::new()));
}
