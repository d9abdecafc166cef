//! A store in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem::take;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use futures_core::future::BoxFuture;
use parking_lot::Mutex;
use uuid::Uuid;

use super::{Append, Entry, EntryHead, EntryStatus, Filter, Revision, Store, StoreError, StoreId, check_id};

/// A [`Store`] in memory. Clones share the entries, and nothing is kept when the last clone is dropped.
#[derive(Clone)]
pub struct MemoryStore {
    id: StoreId,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The last revision of any entry: the revisions of an id also grow if its entry was removed.
    last: u64,
    entries: BTreeMap<Arc<str>, Stored>,
    /// The ids of the entries by status. A list passes no entries of other statuses.
    by_status: BTreeSet<(EntryStatus, Arc<str>)>,
}

struct Stored {
    head: Arc<EntryHead>,
    parts: Vec<Bytes>,
    /// The parts that are hidden.
    older: Vec<Bytes>,
    /// The revision of the last append that has hidden or replaced parts.
    whole: Revision,
    last_append: Uuid,
}

impl MemoryStore {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self { id: StoreId::new(), state: Arc::default() }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    fn check_revision(&self, id: &str, after: Revision) -> Result<(), StoreError> {
        let current = self.entries.get(id).map_or(Revision::NONE, |stored| stored.head.revision);
        if current == after { Ok(()) } else { Err(StoreError::Conflict { id: id.to_owned(), after, current }) }
    }

    /// Applies an append. The head and the parts that were replaced are moved into `replaced`, to be dropped after the
    /// lock.
    fn append(&mut self, append: &Append, replaced: &mut Option<Stored>) -> Result<Revision, StoreError> {
        let id = &*append.head.id;
        match self.entries.get(id) {
            Some(stored) if stored.last_append == append.id => return Ok(stored.head.revision),
            _ => self.check_revision(id, append.head.revision)?,
        }
        self.last += 1;
        let revision = Revision::new(self.last);
        let (mut parts, mut older, mut whole) = (append.parts.clone(), Vec::new(), revision);
        *replaced = self.take(id);
        if let Some(before) = replaced.as_mut() {
            match (append.replaces, append.hides_older) {
                (false, false) => {
                    before.parts.append(&mut parts);
                    (parts, older, whole) = (take(&mut before.parts), take(&mut before.older), before.whole);
                }
                (false, true) => {
                    older = take(&mut before.older);
                    older.append(&mut before.parts);
                }
                (true, true) => older = take(&mut before.parts),
                (true, false) => {}
            }
        }
        let id = Arc::<str>::from(id);
        let head = Arc::new(EntryHead { revision, ..append.head.clone() });
        self.by_status.insert((head.status, Arc::clone(&id)));
        self.entries.insert(id, Stored { head, parts, older, whole, last_append: append.id });
        Ok(revision)
    }

    fn take(&mut self, id: &str) -> Option<Stored> {
        let (id, stored) = self.entries.remove_entry(id)?;
        self.by_status.remove(&(stored.head.status, id));
        Some(stored)
    }

    /// Returns the heads that a filter selects: at most `limit` of each status, of which the first are kept.
    fn list(&self, filter: &Filter) -> Vec<Arc<EntryHead>> {
        let after: Option<Arc<str>> = filter.after.as_deref().map(Into::into);
        let limit = filter.limit.unwrap_or(usize::MAX);
        let of_status = |&status: &EntryStatus| {
            let from = match &after {
                Some(after) => Bound::Excluded((status, Arc::clone(after))),
                None => Bound::Included((status, Arc::from(""))),
            };
            let ids = self.by_status.range((from, Bound::Unbounded));
            ids.take_while(move |(of, _)| *of == status).take(limit).map(|(_, id)| id)
        };
        let mut ids: Vec<_> = filter.statuses.iter().flat_map(of_status).collect();
        ids.sort_unstable();
        ids.truncate(limit);
        ids.into_iter().filter_map(|id| self.entries.get(id)).map(|stored| Arc::clone(&stored.head)).collect()
    }
}

impl Store for MemoryStore {
    fn store_id(&self) -> StoreId {
        self.id
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            let found =
                self.state.lock().entries.get(id).map(|stored| (Arc::clone(&stored.head), stored.parts.clone()));
            Ok(found.map(|(head, parts)| Entry::new((*head).clone(), parts)))
        })
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            append.check()?;
            let mut replaced = None;
            self.state.lock().append(append, &mut replaced)
        })
    }

    fn older_parts<'a>(&'a self, id: &'a str, before: Revision) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            let state = self.state.lock();
            match state.entries.get(id) {
                Some(stored) if stored.whole <= before => Ok(stored.older.clone()),
                stored => {
                    let current = stored.map_or(Revision::NONE, |stored| stored.head.revision);
                    Err(StoreError::Conflict { id: id.to_owned(), after: before, current })
                }
            }
        })
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        Box::pin(async move {
            let heads = self.state.lock().list(filter);
            Ok(heads.into_iter().map(Arc::unwrap_or_clone).collect())
        })
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            let mut state = self.state.lock();
            if state.entries.contains_key(id) {
                state.check_revision(id, after)?;
            }
            let removed = state.take(id);
            drop(state);
            drop(removed);
            Ok(())
        })
    }
}

/// Shows the number of entries, because entries may be secret.
impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("len", &self.state.lock().entries.len()).finish()
    }
}
