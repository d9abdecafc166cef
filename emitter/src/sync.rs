//! The primitives of the modules that have a loom model; the model brings its own under the same names.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
pub(crate) use parking_lot::Mutex;

/// What a [`Slot`] held when it was read.
pub(crate) type Guard<T> = arc_swap::Guard<Option<Arc<T>>>;

/// A place for one shared value, read without a lock. Made with the first value: to store one later, or to drop a place
/// that had none, is dear.
pub(crate) struct Slot<T>(OnceLock<ArcSwapOption<T>>);

impl<T> Slot<T> {
    pub(crate) const fn empty() -> Self {
        Self(OnceLock::new())
    }

    #[inline]
    pub(crate) fn load(&self) -> Guard<T> {
        self.0.get().map_or_else(|| Guard::from_inner(None), ArcSwapOption::load)
    }

    pub(crate) fn store(&self, value: Arc<T>) {
        let mut value = Some(value);
        let slot = self.0.get_or_init(|| ArcSwapOption::new(value.take()));
        if value.is_some() {
            slot.store(value);
        }
    }

    pub(crate) fn take(&self) -> Option<Arc<T>> {
        self.0.get()?.swap(None)
    }

    pub(crate) fn guard(value: Arc<T>) -> Guard<T> {
        Guard::from_inner(Some(value))
    }
}
