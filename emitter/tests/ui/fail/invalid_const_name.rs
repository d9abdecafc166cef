//! E2: a name in a `const` is checked at compile time.

use emitree_emitter::{EventName, Namespace};

const NEW_TOKEN: EventName = EventName::new("new token");
const CHAT: Namespace = Namespace::new("backend..chat");

fn main() {
    println!("{NEW_TOKEN:?} {CHAT:?}");
}
