//! What a runtime needs that wraps work in runs, and few others: emitters of runs, emits that are begun and finished in two
//! steps, and events that listeners of any type can change.
//!
//! `emitree-runtime` is written with it. The methods of [`Emitter`](crate::Emitter) that belong here are `for_run`, `end_run`,
//! `emit_begin`, `emit_rest`, `emit_now_with` and `record`.

pub use crate::dispatch::{Delivery, Emitted, PendingDispatch};
pub use crate::emitter::builder::RunLinks;
pub use crate::emitter::no_listener_cache::NoListenerCache;
pub use crate::emitter::scope::Scope;
pub use crate::event::facet::Facet;
pub use crate::event::stamp::EventStamp;
