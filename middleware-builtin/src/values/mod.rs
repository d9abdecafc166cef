//! Stores of JSON values under keys, which agents and their middleware share: [`KeyValues`], and the store in memory.

mod key;
mod memory;

use std::fmt;
use std::sync::Arc;

use emitree_runtime::Result;
use futures_core::future::BoxFuture;
use serde_json::Value;

pub use key::{InvalidKey, ValueKey};
pub use memory::MemoryValues;

/// A store of JSON values under [keys](ValueKey). [`MemoryValues`] keeps them in memory.
///
/// A store in a database implements the four methods. An `Arc` of a store is a store, so several users may share it.
///
/// ```
/// use emitree_middleware::values::{KeyValues, MemoryValues, ValueKey};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let values = MemoryValues::new();
/// let language = ValueKey::new(["user", "ada", "language"])?;
/// values.write(&language, &json!("en")).await?;
/// assert_eq!(values.read(&language).await?, Some(json!("en")));
///
/// let users = ValueKey::new(["user"])?;
/// assert_eq!(values.keys(Some(&users)).await?, [language]);
/// # Ok(())
/// # }
/// ```
///
/// # Concurrency
///
/// Each value is read and written as a whole: a reader never receives a part of a value. Of several writes to one key
/// at the same time, the write that takes effect last wins. There is no lock between a read and a later write. Once the
/// future of a write has returned, each later read returns the new value.
///
/// # Cancel safety
///
/// If the future of a write or a removal is dropped, the store either has the change or does not have it.
pub trait KeyValues: fmt::Debug + Send + Sync + 'static {
    /// Returns the value of a key, or `None` if it has none.
    ///
    /// # Errors
    ///
    /// Return an error if the value cannot be read.
    fn read<'a>(&'a self, key: &'a ValueKey) -> BoxFuture<'a, Result<Option<Value>>>;

    /// Sets the value of a key, and replaces an earlier value.
    ///
    /// # Errors
    ///
    /// Return an error if the value cannot be stored.
    fn write<'a>(&'a self, key: &'a ValueKey, value: &'a Value) -> BoxFuture<'a, Result<()>>;

    /// Removes the value of a key. Does nothing if the key has no value. Keys that begin with this key stay.
    ///
    /// # Errors
    ///
    /// Return an error if the value cannot be removed.
    fn remove<'a>(&'a self, key: &'a ValueKey) -> BoxFuture<'a, Result<()>>;

    /// Returns the keys that begin with the segments of a prefix, the prefix itself included, or all keys without a
    /// prefix. The keys are in the order of [`ValueKey`]. A key that is written or removed meanwhile may be listed or
    /// not.
    ///
    /// # Errors
    ///
    /// Return an error if the keys cannot be listed.
    fn keys<'a>(&'a self, prefix: Option<&'a ValueKey>) -> BoxFuture<'a, Result<Vec<ValueKey>>>;
}

impl<K: KeyValues + ?Sized> KeyValues for Arc<K> {
    fn read<'a>(&'a self, key: &'a ValueKey) -> BoxFuture<'a, Result<Option<Value>>> {
        (**self).read(key)
    }

    fn write<'a>(&'a self, key: &'a ValueKey, value: &'a Value) -> BoxFuture<'a, Result<()>> {
        (**self).write(key, value)
    }

    fn remove<'a>(&'a self, key: &'a ValueKey) -> BoxFuture<'a, Result<()>> {
        (**self).remove(key)
    }

    fn keys<'a>(&'a self, prefix: Option<&'a ValueKey>) -> BoxFuture<'a, Result<Vec<ValueKey>>> {
        (**self).keys(prefix)
    }
}
