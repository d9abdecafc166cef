//! One batch of requests: what is stored for it, and the replies.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;

use super::state::{is_renewal_due, length, other_holder};
use super::writer::Waiting;
use super::{Change, Claim, Holder, Inner, Older, Revision, StoreError, pieces};
use crate::shared::panic::caught;
use crate::store::{Append, Entry};

/// An entry that was stored for a batch. If a claim was stored, but not the change of the owner, it has the error for
/// the commits.
struct Written {
    revision: Revision,
    refused: Option<StoreError>,
}

impl Inner {
    /// Serves all requests of a batch.
    pub(super) async fn serve(self: &Arc<Self>, mut batch: Waiting) {
        let refreshes = std::mem::take(&mut batch.refreshes);
        if !refreshes.is_empty() {
            let revision = self.refresh().await;
            refreshes.into_iter().for_each(|reply| _ = reply.send(revision.clone()));
        }
        if batch.writes() {
            let written = self.write(&batch).await;
            self.reply(batch, written);
        }
    }

    fn reply(self: &Arc<Self>, batch: Waiting, written: Result<Written, StoreError>) {
        let (revision, refused) = match written {
            Ok(Written { revision, refused }) => (Ok(revision), refused),
            Err(error) => (Err(error.clone()), Some(error)),
        };
        if let Some(error) = refused.as_ref().filter(|_| batch.commits.is_empty() && batch.claims.is_empty()) {
            tracing::warn!(entry = self.id, %error, "an entry could not be stored, and nobody waits for it");
        }
        if revision.is_ok() {
            // Count the claims before they are handed over (invariant 4).
            self.state.lock().claims += batch.claims.len();
        }
        for reply in batch.claims {
            // A claim whose receiver is gone is dropped here, and released.
            drop(reply.send(revision.clone().map(|_| Claim::new(Arc::clone(self)))));
        }
        for reply in batch.commits {
            _ = reply.send(refused.clone().map_or_else(|| revision.clone(), Err));
        }
    }

    /// Stores the claims, the change of the owner, and the renewal or the release of the lease, as one append.
    async fn write(&self, batch: &Waiting) -> Result<Written, StoreError> {
        let claims = !batch.claims.is_empty();
        let mut refused = None;
        ignoring_conflicts(self.settle().await)?;
        loop {
            self.check_claim()?;
            if let Some(entry) = self.look().await? {
                refused = Some(self.reload(&entry)?);
            }
            if refused.is_some() && !claims {
                break;
            }
            let whole = {
                let state = self.state.lock();
                state.is_whole_due(!claims && !state.is_claimed() && state.is_held(&self.by))
            };
            let change = match self.change(whole) {
                Err(error) if claims => return Err(error),
                // The lease is renewed or released nevertheless.
                Err(error) => {
                    refused = Some(error);
                    None
                }
                Ok(change) => change,
            };
            let Some(append) = self.plan(batch, change) else { break };
            self.state.lock().pending = Some(Arc::new(append));
            match self.settle().await {
                // Another process was faster: look again.
                Err(StoreError::Conflict { .. }) => {}
                result => {
                    result?;
                    break;
                }
            }
        }
        Ok(Written { revision: self.state.lock().head.revision, refused })
    }

    fn check_claim(&self) -> Result<(), StoreError> {
        let lost = self.state.lock().lost.clone();
        lost.map_or(Ok(()), Err)
    }

    /// Returns the append for a batch, or `None` if there is nothing to store.
    fn plan(&self, batch: &Waiting, change: Option<Change>) -> Option<Append> {
        let state = self.state.lock();
        let held = state.is_held(&self.by);
        let claimed = state.is_claimed() || !batch.claims.is_empty();
        let renews = claimed && (batch.renews || is_renewal_due(&state.head, self.lease));
        if change.is_none() && held == claimed && !renews {
            return None;
        }
        let mut head = state.head.clone();
        drop(state);
        head.holder = claimed.then(|| Holder { by: self.by.clone(), until: SystemTime::now() + self.lease });
        let Some(change) = change else { return Some(Append::new(head)) };
        (head.status, head.meta) = (change.status, change.meta);
        head.list_questions(change.questions);
        let mut append = Append::new(head);
        append.parts = change.parts.into_iter().flat_map(pieces::cut).collect();
        append.replaces = matches!(change.older, Older::HiddenOnce | Older::Removed);
        append.hides_older = matches!(change.older, Older::Hidden | Older::HiddenOnce);
        if change.older != Older::Stay {
            append.head.whole_bytes = length(&append.parts);
        }
        Some(append)
    }

    /// Makes the append that is pending, if there is one, until its outcome is known (invariant 2).
    async fn settle(&self) -> Result<(), StoreError> {
        let Some(append) = self.state.lock().pending.clone() else { return Ok(()) };
        let mut result = self.store.append(&append).await;
        if matches!(result, Err(StoreError::Failed { .. })) {
            // A lost reply is found at once. Further tries would let the batch wait for a lock several times.
            result = self.store.append(&append).await;
        }
        let lost = self.note(&append, &result);
        if lost { Err(self.lose().await) } else { result.map(drop) }
    }

    /// Takes over the outcome of an append. Returns `true` if this process has lost its claim.
    fn note(&self, append: &Append, result: &Result<Revision, StoreError>) -> bool {
        let mut state = self.state.lock();
        state.renew_at = Instant::now() + self.lease / 3;
        let held = state.is_held(&self.by);
        match result {
            Err(StoreError::Failed { .. }) => return false,
            Ok(revision) => state.stored(append, *revision),
            Err(StoreError::Conflict { .. }) => state.is_stale = true,
            // The owner does not return the change again.
            Err(_) => state.needs_whole = true,
        }
        state.pending = None;
        held && state.is_stale
    }

    /// Reports that another process has taken the claim.
    async fn lose(&self) -> StoreError {
        // The error is the same if the entry cannot be read.
        let entry = self.store.load(&self.id).await.ok().flatten();
        let to = entry.and_then(|entry| entry.head.holder);
        let error = StoreError::Lost { id: self.id.clone(), to: to.clone(), at: SystemTime::now() };
        let mut state = self.state.lock();
        state.head.holder = to;
        // If the last run has ended meanwhile, nobody has a claim to lose.
        let claimed = state.claims > 0;
        state.lost = claimed.then(|| error.clone());
        drop(state);
        if let Some(owner) = self.owner.upgrade().filter(|_| claimed) {
            caught(|| owner.lost(&error)).ok();
        }
        error
    }

    /// Loads the entry if another process may have changed it, and returns it if it has.
    async fn look(&self) -> Result<Option<Entry>, StoreError> {
        let is_current = {
            let state = self.state.lock();
            !state.is_stale && other_holder(&state.head, &self.by).is_none()
        };
        if is_current {
            return Ok(None);
        }
        let moved = self.load_moved().await?;
        let state = self.state.lock();
        let head = moved.as_ref().map_or(&state.head, |entry| &entry.head);
        match other_holder(head, &self.by).cloned() {
            Some(holder) => Err(StoreError::Held { id: self.id.clone(), holder }),
            None => Ok(moved),
        }
    }

    /// Loads the entry, and returns it if another process has changed it.
    async fn load_moved(&self) -> Result<Option<Entry>, StoreError> {
        let entry = self.store.load(&self.id).await?;
        let current = entry.as_ref().map_or(Revision::NONE, |entry| entry.head.revision);
        let mut state = self.state.lock();
        let after = state.head.revision;
        state.is_stale = current != after;
        match entry {
            _ if current == after => Ok(None),
            Some(entry) => Ok(Some(entry)),
            None => Err(StoreError::Conflict { id: self.id.clone(), after, current }),
        }
    }

    /// Reads the entry again, unless this process holds it.
    async fn refresh(&self) -> Result<Revision, StoreError> {
        ignoring_conflicts(self.settle().await)?;
        self.check_claim()?;
        let held = self.state.lock().is_held(&self.by);
        if !held && let Some(entry) = self.load_moved().await? {
            self.reload(&entry)?;
        }
        Ok(self.state.lock().head.revision)
    }

    /// Lets the owner take over an entry that has moved. Returns the error for commits of changes that it has replaced.
    fn reload(&self, entry: &Entry) -> Result<StoreError, StoreError> {
        let after = self.state.lock().head.revision;
        if let Some(owner) = self.owner.upgrade() {
            let reloaded = caught(|| owner.reload(entry));
            reloaded.map_err(|panic| self.panicked("reloaded", panic))??;
        }
        self.state.lock().read(entry.head.clone(), &entry.parts);
        Ok(StoreError::Conflict { id: self.id.clone(), after, current: entry.head.revision })
    }

    fn change(&self, whole: bool) -> Result<Option<Change>, StoreError> {
        let Some(owner) = self.owner.upgrade() else { return Ok(None) };
        caught(|| owner.change(whole)).unwrap_or_else(|panic| {
            // The owner may believe that it has returned the change.
            self.state.lock().needs_whole = true;
            Err(self.panicked("stored", panic))
        })
    }

    fn panicked(&self, done: &str, panic: String) -> StoreError {
        StoreError::failed(format!("the entry `{}` cannot be {done}: its owner has panicked", self.id), panic)
    }
}

/// Drops a conflict: the entry is loaded next.
fn ignoring_conflicts(result: Result<(), StoreError>) -> Result<(), StoreError> {
    match result {
        Err(StoreError::Conflict { .. }) => Ok(()),
        result => result,
    }
}
