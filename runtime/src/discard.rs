//! Values of a run that nobody gets are dropped, which is user code: a panic there changes nothing (R4).

use std::mem::needs_drop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use emitree_emitter::panic_message;

/// Calls what can no longer change how the run goes on. A panic is logged.
pub(crate) fn isolated(f: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(f)) {
        // Who is told of that may panic as well.
        let tell = || tracing::warn!("a run goes on after a panic: {}", panic_message(&*panic));
        catch_unwind(AssertUnwindSafe(tell)).unwrap_or_default();
    }
}

/// Drops a value.
pub(crate) fn discard<T>(value: T) {
    if needs_drop::<T>() {
        isolated(|| drop(value));
    }
}
