//! Work for workers: [`Take`] and [`WorkerHead`].

use std::time::{Duration, SystemTime};

use super::{StoreError, check_id};

/// The request of a worker for entries: [`Store::take`](super::Store::take).
///
/// ```
/// use std::time::Duration;
/// use emitree_middleware::store::{Append, EntryHead, EntryStatus, MemoryStore, Store, Take};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let store = MemoryStore::new();
/// let mut head = EntryHead::new("import-7", "job");
/// (head.status, head.queue) = (EntryStatus::Queued, Some("import".to_owned()));
/// store.append(&Append::new(head).due(Duration::ZERO)).await?;
///
/// let take = Take::new("worker-3", Duration::from_secs(30), ["import"]).most(16);
/// let taken = store.take(&take).await?;
/// assert_eq!((taken.len(), taken[0].attempts), (1, 1));
/// assert_eq!(store.load("import-7").await?.unwrap().head.holder.unwrap().by, "worker-3");
/// assert!(store.take(&take).await?.is_empty(), "an entry that is held is not taken");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Take {
    /// The name of the worker, which no other process has.
    pub by: String,
    /// For how long the worker holds what it takes, and for how long it is [listed](super::Store::workers).
    pub lease: Duration,
    /// The queues, the first ones first.
    pub queues: Vec<String>,
    /// The maximum number of entries. With 0, the worker is only listed.
    pub most: usize,
}

impl Take {
    /// Takes one entry.
    #[must_use]
    pub fn new(by: impl Into<String>, lease: Duration, queues: impl IntoIterator<Item: Into<String>>) -> Self {
        Self { by: by.into(), lease, queues: queues.into_iter().map(Into::into).collect(), most: 1 }
    }

    /// Sets the maximum number of entries.
    #[must_use]
    pub const fn most(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    /// Checks the names, for code that implements a store.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Invalid`] for the name of a worker or a queue that is no [id](check_id).
    pub fn check(&self) -> Result<(), StoreError> {
        [&self.by].into_iter().chain(&self.queues).try_for_each(|name| check_id(name))
    }
}

/// A worker that [takes](super::Store::take) entries.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerHead {
    /// The name of the worker.
    pub by: String,
    /// The queues that it serves.
    pub queues: Vec<String>,
    /// When it is no longer listed, unless it takes again, by the clock of the store.
    pub until: SystemTime,
}

impl WorkerHead {
    /// Creates the head of a worker, for code that implements a store.
    #[must_use]
    pub const fn new(by: String, queues: Vec<String>, until: SystemTime) -> Self {
        Self { by, queues, until }
    }

    /// Returns `true` if the worker serves a queue.
    #[must_use]
    pub fn serves(&self, queue: &str) -> bool {
        self.queues.iter().any(|of| of == queue)
    }
}
