//! A payload is lent by `&mut`, text too.

use emitree_emitter::Emitter;

async fn say(app: &Emitter) {
    app.emit("said", "text").await.unwrap();
}

fn main() {
    drop(say(&Emitter::new()));
}
