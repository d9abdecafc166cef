//! The points of a process: before and after each commit, and before and after each effect.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emitree::middleware::store::{
    Append, Entry, EntryHead, Filter, Post, Posted, Revision, Store, StoreError, StoreId,
};
use futures_util::future::BoxFuture;

use crate::kinds::Seen;
use crate::log::Log;

/// The defects of a store, which the check has to notice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flaws {
    /// The kind of commits that it does not store.
    pub(crate) swallowed: Option<String>,
    /// `true` if it stores a commit that was made for another revision.
    pub(crate) is_blind: bool,
}

impl Flaws {
    pub(crate) const fn is_any(&self) -> bool {
        self.swallowed.is_some() || self.is_blind
    }
}

/// A store whose commits are points. It may swallow one kind of commit: it says that the commit is stored, and stores it
/// only with the next one, or before the next list.
#[derive(Clone, Debug)]
pub(crate) struct Points {
    id: StoreId,
    store: Arc<dyn Store>,
    log: Arc<Log>,
    flaws: Flaws,
    seen: Arc<Mutex<BTreeMap<String, Seen>>>,
    /// The number of loads so far.
    loads: Arc<AtomicUsize>,
}

impl Points {
    pub(crate) fn new(store: Arc<dyn Store>, log: &Arc<Log>, flaws: Flaws) -> Self {
        Self { id: StoreId::new(), store, log: Arc::clone(log), flaws, seen: Arc::default(), loads: Arc::default() }
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<String, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over a commit of an entry, and returns its kinds.
    fn kinds(&self, append: &Append) -> Vec<String> {
        let id = &append.head.id;
        let mut seen = self.seen();
        let seen = seen.entry(id.clone()).or_insert_with(|| Seen::new(id));
        let holder = append.lease.map(|_| append.by.clone());
        seen.kinds(&append.head, holder, append.parts.iter().map(|part| &**part))
    }

    /// Stores a commit together with the one that was swallowed before it.
    async fn store(&self, append: &Append, kinds: &[String]) -> Result<Revision, StoreError> {
        let mut append = append.clone();
        let swallowed = self.seen().get_mut(&append.head.id).and_then(|seen| seen.pending.take());
        if let Some(before) = swallowed {
            append.head.revision = before.head.revision;
            if !append.replaces {
                append.parts.splice(..0, before.parts);
                append.replaces = before.replaces;
            }
        }
        let is_swallowed = |commit: &String| commit.split(' ').next() == self.flaws.swallowed.as_deref();
        if kinds.iter().any(is_swallowed) {
            self.log.count_points();
            let revision = Revision::new(append.head.revision.get() + 1);
            self.seen().entry(append.head.id.clone()).and_modify(|seen| seen.pending = Some(append));
            return Ok(revision);
        }
        if self.flaws.is_blind
            && let Some(entry) = self.store.load(&append.head.id).await?
        {
            append.head.revision = entry.head.revision;
            append.by = entry.head.holder.map_or(append.by, |holder| holder.by);
        }
        self.store.append(&append).await
    }

    /// Stores all commits that were swallowed, so that a process sees in lists what it has stored.
    async fn store_pending(&self) -> Result<(), StoreError> {
        let pending: Vec<_> = self.seen().values_mut().filter_map(|seen| seen.pending.take()).collect();
        for append in pending {
            match self.store.append(&append).await {
                // Another process has changed the entry, so the commit is lost.
                Err(StoreError::Conflict { .. } | StoreError::Held { .. }) => {}
                stored => _ = stored?,
            }
        }
        Ok(())
    }
}

impl Store for Points {
    fn store_id(&self) -> StoreId {
        self.id
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            // Several loads may be under way.
            let load = self.loads.fetch_add(1, Ordering::Relaxed).to_string();
            self.log.add(&["load", id, &load]);
            let found = self.store.load(id).await?;
            let mut seen = Seen::new(id);
            if let Some(Entry { head, parts, .. }) = &found {
                let found = seen.kinds(
                    head,
                    head.holder.as_ref().map(|holder| holder.by.clone()),
                    parts.iter().map(|part| &**part),
                );
                self.log.add(&[&["found", &*load], &*words(&found)].concat());
            }
            let mut all = self.seen();
            seen.pending = all.remove(id).and_then(|before| before.pending);
            all.insert(id.to_owned(), seen);
            drop(all);
            Ok(found)
        })
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            let mut kinds = self.kinds(append);
            self.log.point(&[&["before"], &*words(&kinds)].concat());
            let revision = self.store(append, &kinds).await?;
            kinds.push(format!("at {}/{revision}", append.head.id));
            self.log.point(&[&["after"], &*words(&kinds)].concat());
            Ok(revision)
        })
    }

    fn post<'a>(&'a self, id: &'a str, post: &'a Post) -> BoxFuture<'a, Result<Posted, StoreError>> {
        Box::pin(async move {
            self.log.point(&["before", "post"]);
            let posted = self.store.post(id, post).await?;
            self.log.point(&["after", "post"]);
            Ok(posted)
        })
    }

    fn posts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<Post>, StoreError>> {
        self.store.posts(id)
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        Box::pin(async move {
            self.store_pending().await?;
            self.store.list(filter).await
        })
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        self.store.remove(id, after)
    }
}

fn words(commits: &[String]) -> Vec<&str> {
    commits.iter().map(String::as_str).collect()
}
