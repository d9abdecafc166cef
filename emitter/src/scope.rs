//! How a runtime knows, in a listener, which run's event it is (R9).

use std::sync::Arc;

/// Something that is entered around every call of a listener of a run's events, and around every poll of one.
///
/// Implemented by the runtime, whose `RunContext::current()` it makes right wherever a listener is registered.
pub trait Scope: Send + Sync {
    /// Calls `f` exactly once, inside.
    fn within(self: Arc<Self>, f: &mut dyn FnMut());
}
