//! The builder of a cache.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::Namespace;
use emitree_runtime::Phase;
use serde::Serialize;

use super::flight::Flights;
use super::key::CacheKey;
use super::lookup::CacheEntry;
use super::new_instances::NewInstances;
use super::{Cache, CacheInner, CacheOptions, CacheScope};
use crate::shared::own_events::OwnEvents;

const DEFAULT_MAX_ENTRIES: u64 = 10_000;

/// A builder of a [`Cache`]. Created by [`Cache::json`] and [`Cache::typed`].
#[must_use = "a cache is created only by `build`"]
pub struct CacheBuilder<T> {
    options: CacheOptions<T>,
    entries: Option<u64>,
    bytes: Option<u64>,
}

/// An invalid option of a [`Cache`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The size is 0.
    #[error("a cache of {0} stores nothing: set its size to 1 or more")]
    NoRoom(&'static str),
    /// The maximum age is 0.
    #[error("a cache with a maximum age of {0:?} stores nothing: set a longer age, or none")]
    NoTime(Duration),
    /// The size is set both in entries and in bytes.
    #[error("the size of a cache is set in entries ({entries}) and in bytes ({bytes}): set only one of the two")]
    TwoSizes {
        /// The size in entries.
        entries: u64,
        /// The size in bytes.
        bytes: u64,
    },
}

impl<T: Clone + Send + Sync + 'static> CacheBuilder<T> {
    pub(super) const fn new() -> Self {
        let options = CacheOptions {
            scope: CacheScope::Instance,
            context_keys: Vec::new(),
            ttl: None,
            keeps_errors: false,
            phase: Phase::Transform,
            size: DEFAULT_MAX_ENTRIES,
            weigh: None,
        };
        Self { options, entries: None, bytes: None }
    }

    /// Limits the number of entries. Default: 10,000.
    pub const fn max_entries(mut self, most: u64) -> Self {
        self.entries = Some(most);
        self
    }

    /// Limits the total size of keys and outputs, in bytes of JSON, instead of the number of entries. A single entry
    /// larger than the limit is not stored.
    pub fn max_bytes(mut self, most: u64) -> Self
    where
        T: Serialize,
    {
        self.bytes = Some(most);
        self.options.weigh = Some(json_len);
        self
    }

    /// Sets the maximum age of an entry, by tokio's clock. Default: no maximum.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Shares entries among all instances that this cache is bound to: equal inputs get equal answers, even if kinds
    /// and names differ. By default each instance has its own entries.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.options.scope = CacheScope::Shared(scope.into());
        self
    }

    /// Shares entries among instances with the same kind and name, such as those of a runnable that is made anew for
    /// each call. By default each instance has its own entries.
    ///
    /// ```
    /// use emitree_middleware::Cache;
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let cache = Cache::json().by_name().build()?;
    /// let double = || runnable_fn("double", |n: u32, ctx: RunContext| async move { Ok((n * 2, ctx.run_id())) });
    /// let first = double().run(2).middleware(cache.clone()).await?;
    /// assert_eq!(double().run(2).middleware(cache).await?, first);
    /// # Ok(())
    /// # }
    /// ```
    pub fn by_name(mut self) -> Self {
        self.options.scope = CacheScope::Name;
        self
    }

    /// Adds context keys. Two runs share an answer only if these keys have equal values in the
    /// [`context`](emitree_runtime::RunContext::context) of both runs.
    pub fn context_keys<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.options.context_keys.extend(keys.into_iter().map(Into::into));
        self
    }

    /// Stores failures too, even retryable failures. Control flow and panics are never stored.
    pub const fn cache_errors(mut self) -> Self {
        self.options.keeps_errors = true;
        self
    }

    /// Sets the layer's phase. Default: [`Phase::Transform`], outside guards.
    pub const fn in_phase(mut self, phase: Phase) -> Self {
        self.options.phase = phase;
        self
    }

    /// Builds the [`Cache`].
    ///
    /// # Errors
    ///
    /// Returns an error if the size or the maximum age is 0, or if the size is set both in entries and in bytes.
    pub fn build(mut self) -> Result<Cache<T>, CacheError> {
        self.options.size = self.size()?;
        if let Some(ttl) = self.options.ttl.filter(Duration::is_zero) {
            return Err(CacheError::NoTime(ttl));
        }
        self.options.context_keys.sort_unstable();
        self.options.context_keys.dedup();
        Ok(Cache(Arc::new(CacheInner {
            entries: new_entries(&self.options),
            flights: Flights::default(),
            options: self.options,
            new_instances: NewInstances::default(),
            own_events: OwnEvents::new(Namespace::new("middleware.cache")),
        })))
    }

    const fn size(&self) -> Result<u64, CacheError> {
        match (self.entries, self.bytes) {
            (Some(entries), Some(bytes)) => Err(CacheError::TwoSizes { entries, bytes }),
            (Some(0), _) => Err(CacheError::NoRoom("0 entries")),
            (_, Some(0)) => Err(CacheError::NoRoom("0 bytes")),
            (Some(size), None) | (None, Some(size)) => Ok(size),
            (None, None) => Ok(DEFAULT_MAX_ENTRIES),
        }
    }
}

fn new_entries<T: Send + Sync + 'static>(options: &CacheOptions<T>) -> moka::sync::Cache<CacheKey, Arc<CacheEntry<T>>> {
    let entries = moka::sync::Cache::builder().max_capacity(options.size);
    match options.weigh {
        None => entries.build(),
        Some(_) => entries.weigher(|_, entry: &Arc<CacheEntry<T>>| entry.weight()).build(),
    }
}

/// Returns the length of a value as JSON. If serialization fails, returns the length of the JSON written before the
/// failure.
fn json_len<T: Serialize>(value: &T) -> u64 {
    let mut len = ByteCounter(0);
    serde_json::to_writer(&mut len, value).ok();
    len.0
}

/// A writer that counts bytes and drops them.
struct ByteCounter(u64);

impl io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<T> fmt::Debug for CacheBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheOptions { scope, context_keys, ttl, .. } = &self.options;
        f.debug_struct("CacheBuilder")
            .field("entries", &self.entries)
            .field("bytes", &self.bytes)
            .field("ttl", ttl)
            .field("scope", scope)
            .field("context_keys", context_keys)
            .finish_non_exhaustive()
    }
}
