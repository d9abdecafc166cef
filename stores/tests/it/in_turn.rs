//! Two stores that stand for two processes.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use emitree_middleware::store::{
    Append, Entry, EntryHead, Filter, Post, Posted, Revision, Store, StoreError, StoreId, Take, WorkerHead,
};
use futures_util::future::BoxFuture;

/// Uses two stores of the same entries in turn.
#[derive(Debug)]
pub(crate) struct InTurn<S> {
    stores: [S; 2],
    calls: AtomicUsize,
}

impl<S> InTurn<S> {
    pub(crate) fn new(stores: [S; 2]) -> Self {
        Self { stores, calls: AtomicUsize::new(0) }
    }

    fn next(&self) -> &S {
        &self.stores[self.calls.fetch_add(1, Ordering::Relaxed) % 2]
    }
}

impl<S: Store> Store for InTurn<S> {
    fn store_id(&self) -> StoreId {
        self.stores[0].store_id()
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        self.next().load(id)
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        self.next().append(append)
    }

    fn older_parts<'a>(&'a self, id: &'a str, before: Revision) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        self.next().older_parts(id, before)
    }

    fn post<'a>(&'a self, id: &'a str, post: &'a Post) -> BoxFuture<'a, Result<Posted, StoreError>> {
        self.next().post(id, post)
    }

    fn posts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<Post>, StoreError>> {
        self.next().posts(id)
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        self.next().list(filter)
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        self.next().take(take)
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerHead>, StoreError>> {
        self.next().workers()
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        self.next().remove(id, after)
    }
}
