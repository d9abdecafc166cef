//! A process that keeps sessions in a store that it shares with other processes, and that can be killed.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use emitree_middleware::store::{
    Append, Entry, EntryHead, Filter, MemoryStore, Post, Posted, Revision, Store, StoreError, StoreId, Take, Wakes,
    WorkerHead,
};
use futures_core::future::BoxFuture;
use tokio::sync::{Notify, watch};

/// Where a process is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kill {
    Never,
    /// Before the append with this number is stored.
    Before(usize),
    /// After the append with this number was stored, before anybody knows.
    After(usize),
}

/// A store as one process sees it.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    id: StoreId,
    store: MemoryStore,
    kill: Kill,
    appends: Arc<AtomicUsize>,
    is_killed: Arc<Notify>,
    /// The names of this process as a holder.
    names: Arc<Mutex<BTreeSet<String>>>,
    /// `true` if the leases of the processes before have run out.
    takes_over: bool,
    is_frozen: watch::Sender<bool>,
    /// The number of the first append that fails.
    fails_from: Arc<AtomicUsize>,
    /// The bytes of all parts that were appended.
    bytes: Arc<AtomicUsize>,
    /// The bytes and the records of those that were added to others.
    added: Arc<[AtomicUsize; 2]>,
    /// `true` if appends are stored, and the process is told that they are not.
    loses_replies: Arc<AtomicBool>,
}

impl Process {
    pub(crate) fn of(store: &MemoryStore) -> Self {
        Self {
            id: StoreId::new(),
            store: store.clone(),
            kill: Kill::Never,
            appends: Arc::default(),
            is_killed: Arc::default(),
            names: Arc::default(),
            takes_over: false,
            is_frozen: watch::Sender::new(false),
            fails_from: Arc::new(AtomicUsize::new(usize::MAX)),
            bytes: Arc::default(),
            added: Arc::default(),
            loses_replies: Arc::default(),
        }
    }

    pub(crate) fn killed_at(store: &MemoryStore, kill: Kill) -> Self {
        Self { takes_over: true, ..Self::killed_beside(store, kill) }
    }

    /// A process that is killed while others live.
    pub(crate) fn killed_beside(store: &MemoryStore, kill: Kill) -> Self {
        Self { kill, ..Self::of(store) }
    }

    /// The number of appends and posts so far.
    pub(crate) fn appends(&self) -> usize {
        self.appends.load(Ordering::SeqCst)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }

    /// The bytes and the records that were added, snapshots not counted.
    pub(crate) fn added(&self) -> [usize; 2] {
        [0, 1].map(|at| self.added[at].load(Ordering::SeqCst))
    }

    /// Stops the process before its next append, until it is thawed.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        self.is_frozen.send_replace(is_frozen);
    }

    /// Lets appends from a number on fail, as a full disk does.
    pub(crate) fn fail_from(&self, number: usize) {
        self.fails_from.store(number, Ordering::SeqCst);
    }

    /// Lets appends be stored, although the process is told that they are not.
    pub(crate) fn lose_replies(&self, loses: bool) {
        self.loses_replies.store(loses, Ordering::SeqCst);
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

    /// Counts a change of the store, and makes it, unless the process is killed before it, or the store fails.
    async fn change<T>(&self, change: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, StoreError> {
        let number = self.appends.fetch_add(1, Ordering::SeqCst);
        match self.kill {
            Kill::Before(at) if number >= at => self.die().await,
            Kill::After(at) if number > at => self.die().await,
            _ => {}
        }
        self.is_frozen.subscribe().wait_for(|is_frozen| !is_frozen).await.expect("the sender lives");
        if number >= self.fails_from.load(Ordering::SeqCst) {
            return Err(StoreError::failed("`agents.db` cannot be written", "disk full"));
        }
        let stored = change.await;
        if self.kill == Kill::After(number) {
            self.die().await;
        }
        if self.loses_replies.load(Ordering::SeqCst) {
            return Err(StoreError::failed("`agents.db` cannot be reached", "no reply"));
        }
        stored
    }

    /// Counts the bytes of an append.
    fn count(&self, append: &Append) {
        let bytes = append.parts.iter().map(|part| part.len()).sum();
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        if !append.replaces {
            let lines = append.parts.iter().map(|part| 1 + part.iter().filter(|byte| **byte == b'\n').count()).sum();
            self.added[0].fetch_add(bytes, Ordering::SeqCst);
            self.added[1].fetch_add(lines, Ordering::SeqCst);
        }
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
                Some(entry) if self.takes_over && self.end_lease(&entry).await? => self.store.load(id).await,
                entry => Ok(entry),
            }
        })
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        self.names.lock().expect("a lock").insert(take.by.clone());
        self.store.take(take)
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerHead>, StoreError>> {
        self.store.workers()
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            self.names.lock().expect("a lock").insert(append.by.clone());
            let stored = async {
                self.count(append);
                self.store.append(append).await
            };
            self.change(Box::pin(stored)).await
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

    fn wakes(&self) -> Option<&Wakes> {
        self.store.wakes()
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        self.store.remove(id, after)
    }
}
