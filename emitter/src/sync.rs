//! The primitives of the modules that have a loom model; the model brings its own under the same names.

use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
pub(crate) use parking_lot::Mutex;

/// What a [`Slot`] held when it was read.
pub(crate) type Guard<T> = arc_swap::Guard<Option<Arc<T>>>;

/// A place for one shared value, read without a lock.
pub(crate) struct Slot<T>(ArcSwapOption<T>);

impl<T> Slot<T> {
    pub(crate) const fn empty() -> Self {
        Self(ArcSwapOption::const_empty())
    }

    #[inline]
    pub(crate) fn load(&self) -> Guard<T> {
        self.0.load()
    }

    pub(crate) fn store(&self, value: Arc<T>) {
        self.0.store(Some(value));
    }

    pub(crate) fn take(&self) -> Option<Arc<T>> {
        self.0.swap(None)
    }

    pub(crate) fn guard(value: Arc<T>) -> Guard<T> {
        Guard::from_inner(Some(value))
    }
}
