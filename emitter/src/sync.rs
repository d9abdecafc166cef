//! The synchronization primitives of the modules that have a loom model. The model (`tests/loom.rs`) includes these
//! modules and supplies loom's primitives under the same names.

use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

/// A slot for one shared value, read without a lock.
pub(crate) use arc_swap::ArcSwapOption as Slot;
pub(crate) use parking_lot::Mutex;

/// The value of a [`Slot`] at the time it was read.
pub(crate) type Guard<T> = arc_swap::Guard<Option<Arc<T>>>;
