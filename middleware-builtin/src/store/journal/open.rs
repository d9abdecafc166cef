//! The entries that are open in this process: [`OpenEntries`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::store::StoreId;

/// The smallest number of entries at which dropped ones are removed.
const SWEPT_FROM: usize = 64;

/// The entries that are open in this process, so that an entry that is opened again is the same value. It keeps no entry
/// alive.
///
/// ```
/// use std::sync::Arc;
/// use emitree_middleware::store::{MemoryStore, OpenEntries, Store};
///
/// static OPEN: OpenEntries<String> = OpenEntries::new();
///
/// let store = MemoryStore::new();
/// let first = OPEN.insert_or_get(store.store_id(), "order-17", Arc::new("opened".to_owned()));
/// let second = OPEN.get(store.clone().store_id(), "order-17").unwrap();
/// assert!(Arc::ptr_eq(&first, &second));
///
/// drop((first, second));
/// assert_eq!(OPEN.get(store.store_id(), "order-17"), None);
/// ```
pub struct OpenEntries<T>(Mutex<Open<T>>);

struct Open<T> {
    entries: BTreeMap<(u64, String), Weak<T>>,
    /// The number of entries at which dropped ones are removed next.
    sweep_at: usize,
}

impl<T> OpenEntries<T> {
    /// Creates a table without entries, for a `static`.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Open { entries: BTreeMap::new(), sweep_at: SWEPT_FROM }))
    }

    /// Returns the value of an entry that is open.
    #[must_use]
    pub fn get(&self, store: StoreId, id: &str) -> Option<Arc<T>> {
        let key = (store.0, id.to_owned());
        self.0.lock().entries.get(&key).and_then(Weak::upgrade)
    }

    /// Returns the value of an entry that is open. If there is none, `new` becomes its value.
    #[must_use]
    pub fn insert_or_get(&self, store: StoreId, id: &str, new: Arc<T>) -> Arc<T> {
        let key = (store.0, id.to_owned());
        let mut open = self.0.lock();
        if let Some(value) = open.entries.get(&key).and_then(Weak::upgrade) {
            // Unlock before `new` is dropped, because that may call user code.
            drop(open);
            return value;
        }
        open.sweep();
        open.entries.insert(key, Arc::downgrade(&new));
        new
    }
}

impl<T> Open<T> {
    /// Removes the entries that were dropped, when the table has twice as many as were alive before.
    fn sweep(&mut self) {
        if self.entries.len() >= self.sweep_at {
            self.entries.retain(|_, value| value.strong_count() > 0);
            self.sweep_at = SWEPT_FROM.max(2 * self.entries.len());
        }
    }
}

impl<T> Default for OpenEntries<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Shows the number of entries that are open, or were open until recently.
impl<T> fmt::Debug for OpenEntries<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenEntries").field("len", &self.0.lock().entries.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_were_dropped_are_removed() {
        let open = OpenEntries::new();
        let store = StoreId::new();
        let kept: Vec<_> = (0..100).map(|n| open.insert_or_get(store, &format!("kept-{n}"), Arc::new(n))).collect();
        for n in 0..10_000 {
            assert_eq!(*open.insert_or_get(store, &format!("dropped-{n}"), Arc::new(n)), n);
        }
        assert!(open.0.lock().entries.len() <= 2 * kept.len() + 1, "{open:?}");
        assert_eq!(open.get(store, "kept-99").as_deref(), Some(&99));
        assert_eq!(open.get(StoreId::new(), "kept-99"), None);
    }
}
