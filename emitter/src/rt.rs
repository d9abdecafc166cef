//! The interface for a runtime that wraps work in runs: emitters of runs, emits that create a future only if a listener
//! must be awaited, and facets. With a facet, listeners can read and change payloads whose types they do not know.
//!
//! `emitree-runtime` is built on this module. The methods of [`Emitter`](crate::Emitter) that belong to this interface
//! are `for_run`, `end_run`, `emit_begin`, `emit_rest` and `record`. They are hidden on its page, because only a runtime
//! calls them.

pub use crate::dispatch::{Delivery, Emitted, PendingDispatch};
pub use crate::emitter::builder::RunLinks;
pub use crate::emitter::no_listener_cache::NoListenerCache;
pub use crate::emitter::scope::Scope;
pub use crate::event::facet::Facet;
pub use crate::event::stamp::EventStamp;
pub use crate::registry::bound::binding;
