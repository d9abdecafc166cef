//! The primitives of the modules that have a loom model; the model brings its own under the same names.

use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

/// A place for one shared value, read without a lock.
pub(crate) use arc_swap::ArcSwapOption as Slot;
pub(crate) use parking_lot::Mutex;

/// What a [`Slot`] held when it was read.
pub(crate) type Guard<T> = arc_swap::Guard<Option<Arc<T>>>;
