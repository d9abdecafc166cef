//! The selection of entries in a list: [`Filter`].

use std::collections::BTreeSet;

use super::EntryStatus;

/// Selects the entries that [`Store::list`](super::Store::list) returns: by their status, and page by page.
///
/// ```
/// # use emitree_middleware::store::{Filter, MemoryStore, Store};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// # let store = MemoryStore::new();
/// let mut page = Filter::waiting().limit(50);
/// loop {
///     let heads = store.list(&page).await?;
///     let Some(last) = heads.last() else { break };
///     page = page.after(&last.id);
///     for head in &heads {
///         println!("{} {:?}", head.id, head.questions);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filter {
    /// The statuses of the entries.
    pub statuses: BTreeSet<EntryStatus>,
    /// If set, only entries whose id comes after this id.
    pub after: Option<String>,
    /// The maximum number of entries, or `None` for all entries.
    pub limit: Option<usize>,
}

impl Filter {
    /// Selects all entries with one of these statuses.
    #[must_use]
    pub fn of(statuses: impl IntoIterator<Item = EntryStatus>) -> Self {
        Self { statuses: statuses.into_iter().collect(), after: None, limit: None }
    }

    /// Selects the entries that wait for the answers to questions.
    #[must_use]
    pub fn waiting() -> Self {
        Self::of([EntryStatus::Waiting])
    }

    /// Selects the entries whose work has neither ended nor failed.
    #[must_use]
    pub fn unfinished() -> Self {
        Self::of([EntryStatus::Queued, EntryStatus::Running, EntryStatus::Waiting, EntryStatus::Paused])
    }

    /// Selects only entries whose id comes after an id, such as the last id of the page before.
    #[must_use]
    pub fn after(mut self, id: impl Into<String>) -> Self {
        self.after = Some(id.into());
        self
    }

    /// Selects at most `limit` entries.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }
}
