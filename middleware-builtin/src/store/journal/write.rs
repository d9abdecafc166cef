//! One batch of requests: what is stored for it, and the replies.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::state::length;
use super::writer::Waiting;
use super::{Change, Claim, Inner, Older, Rest, Revision, StoreError, pieces};
use crate::shared::panic::caught;
use crate::store::{Append, Entry, EntryHead};

/// An entry that was stored for a batch. If a claim was stored, but not the change of the owner, it has the error for
/// the commits.
struct Written {
    revision: Revision,
    refused: Option<StoreError>,
}

impl Inner {
    /// Serves all requests of a batch.
    pub(super) async fn serve(self: &Arc<Self>, mut batch: Waiting) {
        // Dropped without a lock, when the batch is served.
        let _owners = std::mem::take(&mut batch.owners);
        let refreshes = std::mem::take(&mut batch.refreshes);
        if !refreshes.is_empty() {
            let revision = self.refresh().await;
            refreshes.into_iter().for_each(|reply| _ = reply.send(revision.clone()));
        }
        if batch.looks {
            batch.looks = self.has_posts().await;
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
            let mut state = self.state.lock();
            if state.claims == 0 {
                state.look_at = Instant::now() + self.look_each();
            }
            state.claims += batch.claims.len();
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
        let reads_clock = {
            let state = self.state.lock();
            let has_timers = claims || state.head.queue.is_some();
            !state.knows_clock() || has_timers && !state.is_held() && state.adopted.is_none()
        };
        if reads_clock {
            self.read_clock().await?;
        }
        loop {
            self.check_claim()?;
            if let Some(entry) = self.look().await? {
                let moved = self.reload(&entry)?;
                // Another process has taken the entry since the worker took it.
                if self.state.lock().adopted.take().is_some() {
                    return Err(moved);
                }
                refused = Some(moved);
            }
            match self.take_posts(batch.looks).await {
                // The lease is renewed or released nevertheless.
                Err(error) if self.state.lock().is_held() => {
                    tracing::warn!(entry = self.id, %error, "the posts of an entry were not read, and are read again");
                }
                taken => taken?,
            }
            if refused.is_some() && !claims {
                break;
            }
            let whole = {
                let state = self.state.lock();
                state.is_whole_due(!claims && !state.is_claimed() && state.is_held())
            };
            let changed = self.change(whole);
            // A post is in the store until the change that has it is.
            let takes = changed.is_ok();
            let change = match changed {
                Err(error) if claims => return Err(error),
                // The lease is renewed or released nevertheless.
                Err(error) => {
                    refused = Some(error);
                    None
                }
                Ok(change) => change,
            };
            let Some(append) = self.plan(batch, change, takes) else { break };
            self.state.lock().pending = Some(Arc::new(append));
            match self.settle().await {
                // Another process was faster: look again.
                Err(StoreError::Conflict { .. } | StoreError::Held { .. }) => {}
                result => {
                    let revision = result?;
                    return Ok(Written { revision, refused });
                }
            }
        }
        Ok(Written { revision: self.state.lock().head.revision, refused })
    }

    fn check_claim(&self) -> Result<(), StoreError> {
        let lost = self.state.lock().lost.clone();
        lost.map_or(Ok(()), Err)
    }

    /// Returns the append for a batch, or `None` if there is nothing to store. `takes` is `true` if it takes the posts that
    /// the owner has taken over.
    fn plan(&self, batch: &Waiting, change: Option<Change>, takes: bool) -> Option<Append> {
        let state = self.state.lock();
        let held = state.is_held();
        let claimed = state.is_claimed() || !batch.claims.is_empty() || state.adopted.is_some();
        let renews = claimed && (batch.renews || state.renew_at <= Instant::now());
        let taking = if takes { &*state.taking } else { &[] };
        if change.is_none() && held == claimed && !renews && taking.is_empty() {
            return None;
        }
        let mut append = Append::new(state.head.clone()).by(&*state.by).taking(taking.iter().copied());
        drop(state);
        let has_queue = append.head.queue.is_some() || change.as_ref().is_some_and(|change| change.queue.is_some());
        if claimed {
            append.lease = Some(self.lease);
        } else if has_queue {
            let attempts = append.head.attempts;
            let rest = self.owner.upgrade().and_then(|owner| caught(|| owner.rest(attempts)).ok());
            // Without an owner, workers find out what there is to do.
            let rest = rest.unwrap_or(Rest { due: Some(Duration::ZERO), attempts });
            (append.due, append.head.attempts) = (rest.due, rest.attempts);
        }
        let Some(change) = change else { return Some(append) };
        let head = &mut append.head;
        (head.status, head.meta) = (change.status, change.meta);
        head.list_questions(change.questions);
        head.queue = change.queue.or(head.queue.take());
        if change.gets_on {
            head.attempts = 0;
        }
        append.parts = change.parts.into_iter().flat_map(pieces::cut).collect();
        append.replaces = matches!(change.older, Older::HiddenOnce | Older::Removed);
        append.hides_older = matches!(change.older, Older::Hidden | Older::HiddenOnce);
        if change.older != Older::Stay {
            append.head.whole_bytes = length(&append.parts);
        }
        Some(append)
    }

    /// Makes the append that is pending, if there is one, until its outcome is known (invariant 2). Returns the revision.
    async fn settle(&self) -> Result<Revision, StoreError> {
        let Some(append) = self.state.lock().pending.clone() else { return Ok(self.state.lock().head.revision) };
        let mut result = self.store.append(&append).await;
        if matches!(result, Err(StoreError::Failed { .. })) {
            // A lost reply is found at once. Further tries would let the batch wait for a lock several times.
            self.state.lock().is_uncertain = true;
            result = self.store.append(&append).await;
        }
        let lost = self.note(&append, &result);
        if lost { Err(self.lose().await) } else { result }
    }

    /// Takes over the outcome of an append. Returns `true` if this process has lost its claim.
    fn note(&self, append: &Append, result: &Result<Revision, StoreError>) -> bool {
        let mut state = self.state.lock();
        state.renew_at = Instant::now() + self.lease / 3;
        let held = state.is_held();
        match result {
            Err(StoreError::Failed { .. }) => {
                state.is_uncertain = true;
                return false;
            }
            Ok(revision) => state.stored(append, *revision),
            Err(StoreError::Conflict { .. }) => state.is_stale = true,
            // The owner has returned the change already.
            Err(StoreError::Held { .. }) => (state.is_stale, state.needs_whole) = (true, true),
            // The owner does not return the change again.
            Err(_) => state.needs_whole = true,
        }
        (state.pending, state.is_uncertain) = (None, false);
        held && result.is_err() && state.is_stale
    }

    /// Reports that another process has taken the claim.
    async fn lose(&self) -> StoreError {
        // The error is the same if the entry cannot be read.
        let entry = self.store.load(&self.id).await.ok().flatten();
        let to = entry.and_then(|entry| entry.head.holder);
        let error = StoreError::Lost { id: self.id.clone(), to: to.clone(), at: SystemTime::now() };
        let mut state = self.state.lock();
        (state.head.holder, state.adopted) = (to, None);
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
            !state.is_stale && state.other_holder().is_none()
        };
        if is_current {
            return Ok(None);
        }
        let moved = self.load_moved().await?;
        let state = self.state.lock();
        let holder = match &moved {
            Some(entry) => entry.head.holder.clone().filter(|holder| holder.by != state.by),
            None => state.other_holder().cloned(),
        };
        match holder {
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
        let is_new = |entry: &Entry| entry.head.posts > 0 && entry.head.holder.is_none() && state.head.posts == 0;
        // A repeated append may have returned the revision of a later post.
        let is_same = current == after && !entry.as_ref().is_some_and(is_new);
        state.is_stale = !is_same;
        match entry {
            Some(entry) if is_same => {
                let EntryHead { holder, attempts, posts, .. } = entry.head;
                (state.head.holder, state.head.attempts, state.head.posts) = (holder, attempts, posts);
                Ok(None)
            }
            None if is_same => Ok(None),
            Some(entry) => Ok(Some(entry)),
            None => Err(StoreError::Conflict { id: self.id.clone(), after, current }),
        }
    }

    /// Returns `true` if posts wait that the owner has not taken over.
    async fn has_posts(&self) -> bool {
        self.state.lock().look_at = Instant::now() + self.look_each();
        match self.store.posts(&self.id).await {
            Ok(posts) => {
                let state = self.state.lock();
                posts.iter().any(|post| !state.taking.contains(&post.id))
            }
            Err(error) => {
                tracing::debug!(entry = self.id, %error, "the posts of an entry cannot be read, and are read again");
                false
            }
        }
    }

    /// Lets the owner take over the posts that wait, if there are any: before the next change, so that this change knows
    /// of them. The next append takes them.
    async fn take_posts(&self, looks: bool) -> Result<(), StoreError> {
        if !looks && self.state.lock().head.posts == 0 {
            return Ok(());
        }
        let mut posts = self.store.posts(&self.id).await?;
        posts.retain(|post| !self.state.lock().taking.contains(&post.id));
        let Some(owner) = self.owner.upgrade().filter(|_| !posts.is_empty()) else { return Ok(()) };
        let taken = caught(|| owner.take(&posts)).map_err(|panic| self.panicked("changed", panic))?;
        self.state.lock().taking.extend(taken);
        Ok(())
    }

    /// Reads the entry again, unless this process holds it.
    async fn refresh(&self) -> Result<Revision, StoreError> {
        ignoring_conflicts(self.settle().await)?;
        self.check_claim()?;
        let is_current = {
            let state = self.state.lock();
            state.is_held() && !state.is_stale
        };
        if !is_current {
            if let Some(entry) = self.load_moved().await? {
                self.reload(&entry)?;
            }
            // The posts to a free entry come before the next change of this process.
            if self.state.lock().head.holder.is_none() {
                self.take_posts(false).await?;
            }
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
        let Some(owner) = self.owner.upgrade() else {
            // The owner is gone with the posts that it has taken over, so they wait for the next one.
            self.state.lock().taking.clear();
            return Ok(None);
        };
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

/// Drops the error that another process was faster: the entry is loaded next.
fn ignoring_conflicts(result: Result<Revision, StoreError>) -> Result<(), StoreError> {
    match result {
        Err(StoreError::Conflict { .. } | StoreError::Held { .. }) => Ok(()),
        result => result.map(drop),
    }
}
