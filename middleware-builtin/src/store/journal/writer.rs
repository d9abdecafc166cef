//! The task that writes an entry.

use std::future::pending;
use std::mem;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::{Claim, Inner, Journaled, Revision, StoreError};
use crate::store::Watch;

pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// The requests that wait for the writer.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) claims: Vec<Reply<Claim>>,
    pub(super) commits: Vec<Reply<Revision>>,
    pub(super) refreshes: Vec<Reply<Revision>>,
    /// The owner of a claim that was given up, so that it lives until the batch is served.
    pub(super) owners: Vec<Arc<dyn Journaled>>,
    /// Set when the last claim was given up.
    pub(super) releases: bool,
    /// Set when it is time to store the changes that nobody waits for.
    pub(super) is_due: bool,
    /// Set when the lease has to be renewed: it is time, or a commit has to notice a claim that was lost.
    pub(super) renews: bool,
    /// Set when it is time to look for posts.
    pub(super) looks: bool,
}

impl Waiting {
    /// Returns `true` if the entry may have to be stored.
    pub(super) fn writes(&self) -> bool {
        self.releases || self.is_due || self.renews || self.looks || !self.claims.is_empty() || !self.commits.is_empty()
    }
}

impl Inner {
    /// Sends a request to the writer, and waits for its reply. If the writer ends without a reply, another writer gets
    /// one more request.
    pub(super) async fn request<T>(self: &Arc<Self>, push: impl Fn(&mut Waiting, Reply<T>)) -> Result<T, StoreError> {
        for _ in 0..2 {
            let (reply, result) = oneshot::channel();
            push(&mut self.state.lock().waiting, reply);
            self.wake_writer();
            if let Ok(result) = result.await {
                return result;
            }
        }
        let message = format!("the entry `{}` cannot be stored", self.id);
        Err(StoreError::failed(message, "its tokio runtime is missing or was dropped, or its store has panicked"))
    }

    /// Wakes the writer, or spawns it if there is none. Outside a runtime, what waits is dropped.
    pub(super) fn wake_writer(self: &Arc<Self>) {
        if mem::replace(&mut self.state.lock().has_writer, true) {
            self.wake.notify_one();
            return;
        }
        let writer = Writer { journal: Arc::clone(self), posts: None, has_ended: false };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(writer.serve());
        }
    }
}

/// The writer. If it is dropped before it has ended, the requests that wait are dropped too (invariant 3).
struct Writer {
    journal: Arc<Inner>,
    /// Wakes it for posts while a run has a claim.
    posts: Option<Watch>,
    has_ended: bool,
}

impl Writer {
    async fn serve(mut self) {
        while let Some(batch) = self.next().await {
            self.journal.serve(batch).await;
        }
    }

    /// Waits for requests and posts, or until the lease has to be renewed or changes have to be stored. Returns `None` if
    /// there is no claim and no request.
    async fn next(&mut self) -> Option<Waiting> {
        let journal = &self.journal;
        loop {
            let until = {
                let mut state = journal.state.lock();
                if state.waiting.writes() || !state.waiting.refreshes.is_empty() {
                    if state.waiting.writes() {
                        state.commit_at = None;
                    }
                    return Some(mem::take(&mut state.waiting));
                }
                if !state.is_claimed() {
                    state.has_writer = false;
                    self.has_ended = true;
                    return None;
                }
                let until = state.renew_at.min(state.look_at);
                state.commit_at.map_or(until, |at| at.min(until))
            };
            if self.posts.is_none() {
                self.posts = journal.store.wakes().map(|wakes| wakes.watch_posts(&journal.id));
            }
            let posted = async {
                match &self.posts {
                    Some(posts) => posts.woken().await,
                    None => pending().await,
                }
            };
            let posted = pin!(posted);
            let asked = pin!(journal.wake.notified());
            let woken = timeout_at(until, select(asked, posted)).await.map(|first| matches!(first, Either::Right(_)));
            let mut state = journal.state.lock();
            match woken {
                Ok(is_posted) => state.waiting.looks |= is_posted,
                Err(_) => {
                    state.waiting.is_due = state.commit_at.is_some_and(|at| at <= until);
                    state.waiting.renews |= state.renew_at <= until;
                    state.waiting.looks |= state.look_at <= until;
                }
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut state = self.journal.state.lock();
        state.has_writer = false;
        let dropped = mem::take(&mut state.waiting);
        drop(state);
        // The tasks that wait are woken without the lock.
        drop(dropped);
    }
}
