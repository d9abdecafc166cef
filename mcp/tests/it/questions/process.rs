//! A store as one process sees it, which can be killed at a commit.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use emitree_middleware::store::{
    Append, Entry, EntryHead, Filter, MemoryStore, Post, Posted, Revision, Store, StoreError, StoreId,
};
use futures_core::future::BoxFuture;
use tokio::sync::Notify;

/// The commit at which a process is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kill {
    Never,
    /// Before the commit is stored.
    Before(usize),
    /// After the commit was stored, before the process knows.
    After(usize),
}

/// A store as one process sees it. It takes sessions over from the processes before, which are dead.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    id: StoreId,
    store: MemoryStore,
    kill: Kill,
    commits: Arc<AtomicUsize>,
    is_killed: Arc<Notify>,
    /// The names of this process as a holder.
    names: Arc<Mutex<BTreeSet<String>>>,
}

impl Process {
    pub(crate) fn of(store: &MemoryStore) -> Self {
        Self::killed_at(store, Kill::Never)
    }

    pub(crate) fn killed_at(store: &MemoryStore, kill: Kill) -> Self {
        Self {
            id: StoreId::new(),
            store: store.clone(),
            kill,
            commits: Arc::default(),
            is_killed: Arc::default(),
            names: Arc::default(),
        }
    }

    /// Waits until the process is killed.
    pub(crate) async fn killed(&self) {
        self.is_killed.notified().await;
    }

    /// Ends the lease of a process before. Returns `true` if there was one.
    async fn end_lease(&self, entry: &Entry) -> Result<bool, StoreError> {
        let holder = entry.head.holder.as_ref().map(|holder| holder.by.clone());
        let Some(dead) = holder.filter(|by| !self.names.lock().expect("a lock").contains(by)) else { return Ok(false) };
        self.store.append(&Append::new(entry.head.clone()).by(dead)).await?;
        Ok(true)
    }

    /// Counts a change of the store, and makes it, unless the process is killed before it.
    async fn change<T>(&self, change: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, StoreError> {
        let number = self.commits.fetch_add(1, Ordering::SeqCst);
        match self.kill {
            Kill::Before(at) if number >= at => self.die().await,
            Kill::After(at) if number > at => self.die().await,
            _ => {}
        }
        let stored = change.await;
        if self.kill == Kill::After(number) {
            self.die().await;
        }
        stored
    }

    async fn die(&self) {
        self.is_killed.notify_one();
        pending::<()>().await;
    }
}

impl Store for Process {
    fn store_id(&self) -> StoreId {
        self.id
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            match self.store.load(id).await? {
                Some(entry) if self.end_lease(&entry).await? => self.store.load(id).await,
                entry => Ok(entry),
            }
        })
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            self.names.lock().expect("a lock").insert(append.by.clone());
            self.change(self.store.append(append)).await
        })
    }

    fn post<'a>(&'a self, id: &'a str, post: &'a Post) -> BoxFuture<'a, Result<Posted, StoreError>> {
        Box::pin(self.change(self.store.post(id, post)))
    }

    fn posts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<Post>, StoreError>> {
        self.store.posts(id)
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        self.store.list(filter)
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        self.store.remove(id, after)
    }
}
