//! How a runtime knows, in a listener, which run's event it is (R9).

use std::sync::Arc;

use serde_json::Value;

/// Something that is entered around every call of a listener of a run's events, and around every poll of one.
///
/// Implemented by the runtime, whose `RunContext::current()` it makes right wherever a listener is registered.
pub trait Scope: Send + Sync {
    /// Calls `f` exactly once, inside.
    fn within(self: Arc<Self>, f: &mut dyn FnMut());

    /// A value is about to be set on the context of the run's emitter: gives what is set. By default what was given.
    fn admit(&self, key: &str, value: Value) -> Value {
        _ = key;
        value
    }
}
