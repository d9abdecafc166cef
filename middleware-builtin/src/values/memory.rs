//! A store in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use emitree_runtime::Result;
use futures_core::future::BoxFuture;
use parking_lot::RwLock;
use serde_json::Value;

use super::{KeyValues, ValueKey};

/// A [`KeyValues`] in memory. Clones share the values, and nothing is kept when the last clone is dropped.
#[derive(Clone, Default)]
pub struct MemoryValues(Arc<RwLock<BTreeMap<ValueKey, Value>>>);

impl MemoryValues {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl KeyValues for MemoryValues {
    fn read<'a>(&'a self, key: &'a ValueKey) -> BoxFuture<'a, Result<Option<Value>>> {
        Box::pin(async move { Ok(self.0.read().get(key).cloned()) })
    }

    fn write<'a>(&'a self, key: &'a ValueKey, value: &'a Value) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            // The value is copied before, and the old value is dropped after the lock: both may take long.
            let key = key.clone();
            let value = value.clone();
            let replaced = self.0.write().insert(key, value);
            drop(replaced);
            Ok(())
        })
    }

    fn remove<'a>(&'a self, key: &'a ValueKey) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let removed = self.0.write().remove(key);
            drop(removed);
            Ok(())
        })
    }

    fn keys<'a>(&'a self, prefix: Option<&'a ValueKey>) -> BoxFuture<'a, Result<Vec<ValueKey>>> {
        Box::pin(async move {
            let values = self.0.read();
            let from = prefix.map_or(Bound::Unbounded, Bound::Included);
            // In the order of keys, all keys with a prefix follow the prefix itself.
            let keys = values.range::<ValueKey, _>((from, Bound::Unbounded)).map(|(key, _)| key);
            Ok(keys.take_while(|key| prefix.is_none_or(|prefix| key.starts_with(prefix))).cloned().collect())
        })
    }
}

/// Shows the number of values, because values may be secret.
impl fmt::Debug for MemoryValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryValues").field("len", &self.0.read().len()).finish()
    }
}
