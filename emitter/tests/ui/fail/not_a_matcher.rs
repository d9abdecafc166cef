//! E4: a matcher is text, a name, a regex or a function of the meta.

use emitree_emitter::{AnyEvent, Emitter};

fn main() {
    let app = Emitter::new();
    app.on(42, |_: &mut dyn AnyEvent, _| ()).unwrap();
    app.on(|name: &str| name == "x", |_: &mut dyn AnyEvent, _| ()).unwrap();
    app.on(Some("x"), |_: &mut dyn AnyEvent, _| ()).unwrap();
}
