//! The claim of an entry, and its one writer, above any store (S7 to S10).
//!
//! 1. Only the writer, a task, calls the store and the owner. It calls them one after another, without a lock.
//! 2. An append is in `State::pending` from before its first poll until its outcome is known. A writer settles it before
//!    it does anything else, so a change that the owner has returned is stored once, or replaced by a reload.
//! 3. A journal has at most one writer: `State::has_writer` is set when it is spawned, and cleared under the lock under
//!    which it finds nothing to do, or when it is dropped. What waits is in `State`, so the next writer finds it.
//! 4. Each append that is made while a run has a claim renews the lease. `State::claims` counts claims from before they
//!    are handed over, and a claim that nobody receives is dropped, so no count is lost.

mod claim;
mod lease;
mod open;
mod pieces;
mod state;
mod write;
mod writer;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use self::state::State;
use self::writer::Waiting;
use super::{Entry, EntryHead, EntryStatus, Holder, Lengths, OpenQuestion, Post, Posted, Revision, Store, StoreError};

pub use claim::Claim;
pub use lease::Lease;
pub use open::OpenEntries;
pub use pieces::joined_parts;

/// How often a process looks for posts to an entry that it holds.
const LOOK: Duration = Duration::from_secs(1);
/// How long a claim waits before it is tried again.
const SHORTEST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The owner of an entry: the value in memory that a [`Journal`] stores, such as a conversation or a job.
///
/// The journal calls one method at a time, in its writer, and holds no lock of its own meanwhile.
pub trait Journaled: Send + Sync + 'static {
    /// Returns the difference to the last change that was returned, or everything if `whole` is `true`. Returns `None`
    /// if there is nothing to store. The owner decides whether everything hides or replaces the parts before
    /// ([`Change::older`]), and may return everything without being asked.
    ///
    /// A change that was returned is not asked for again: the journal repeats its append until it is stored. If it
    /// cannot be stored, the journal asks for everything, or calls [`reload`](Self::reload).
    ///
    /// # Errors
    ///
    /// The error is returned to the commits that wait. The next commit asks again. A panic counts as an error.
    fn change(&self, whole: bool) -> Result<Option<Change>, StoreError>;

    /// Takes over an entry that another process has changed while this process had no claim. It replaces the entry that
    /// was read before, and the changes to it that were not stored.
    ///
    /// # Errors
    ///
    /// The error is returned to the claims and commits that wait. The next one calls this again.
    fn reload(&self, entry: &Entry) -> Result<(), StoreError>;

    /// Takes over what other processes have [sent](Store::post), in the order in which it was sent. The next
    /// [`change`](Self::change) has it. What the owner knows already, or what does not fit, is dropped. Returns the ids of
    /// the posts that it has taken over or dropped; the others wait.
    fn take(&self, posts: &[Post]) -> Vec<Uuid>;

    /// Aborts the runs that have a claim, because another process has claimed or removed the entry. Called once for
    /// each loss. `error` is [`StoreError::Lost`].
    fn lost(&self, error: &StoreError);

    /// Returns when workers take the entry if it is released now, after a number of [attempts](EntryHead::attempts). Called
    /// if the entry has a queue. By default, they do not take it.
    fn rest(&self, attempts: u32) -> Rest {
        Rest { due: None, attempts }
    }
}

/// When workers take an entry that nobody holds. Returned by [`Journaled::rest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// In how long workers take it: [`Append::due`](super::Append::due).
    pub due: Option<Duration>,
    /// Its [attempts](EntryHead::attempts) from now on.
    pub attempts: u32,
}

/// The shortest and the longest time until workers come back to what has failed.
const COMES_BACK: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(300)];

impl Rest {
    /// Returns the time until workers come back to what has failed after a number of attempts: 1 s, 4 s, 16 s, … 5 min.
    #[must_use]
    pub fn backoff(attempts: u32) -> Duration {
        let [first, longest] = COMES_BACK;
        longest.min(first * 4_u32.pow(attempts.clamp(1, 10) - 1))
    }
}

/// A change of an entry, which its owner returns from [`Journaled::change`].
#[derive(Clone, PartialEq)]
pub struct Change {
    /// The new status.
    pub status: EntryStatus,
    /// The questions that are open now. The head lists the first 50, and the number of others.
    pub questions: Vec<OpenQuestion>,
    /// The new data to list.
    pub meta: Map<String, Value>,
    /// The parts to add, of any length. A long part is cut when it is stored, and [`joined_parts`] joins it again.
    pub parts: Vec<Bytes>,
    /// What happens to the parts before. A change that has everything hides or replaces them.
    pub older: Older,
    /// `true` if the work has got on: its [attempts](EntryHead::attempts) are counted from 0 again.
    pub gets_on: bool,
    /// The queue of the entry from now on, unless it is `None`.
    pub queue: Option<String>,
}

/// What a [`Change`] does to the parts before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Older {
    /// The parts are added to them.
    Stay,
    /// They are hidden ([`Append::hides_older`](super::Append::hides_older)).
    Hidden,
    /// They are hidden, and those that are hidden already are removed.
    HiddenOnce,
    /// All of them are removed, also those that are hidden.
    Removed,
}

/// Shows the lengths of the parts.
impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("status", &self.status)
            .field("questions", &self.questions)
            .field("meta", &self.meta)
            .field("parts", &Lengths(&self.parts))
            .field("older", &self.older)
            .field("gets_on", &self.gets_on)
            .field("queue", &self.queue)
            .finish()
    }
}

/// The claim and the writer of one entry of a [`Store`], for code that keeps its own kind of entry. Clones share both.
///
/// [`claim`](Self::claim) makes this process the holder of the entry for a time, its [`Lease`].
/// [`commit`](Self::commit) stores the changes of the entry's owner. One task of the journal, the *writer*, makes all
/// appends, one after another: commits that wait at the same time are one append. While a run has a claim, the writer
/// renews the lease every third of it, by an append that also has the changes that wait, and looks for
/// [posts](Store::post) when the store [wakes](Store::wakes) it, and each second.
///
/// The writer runs in the tokio runtime in which it was first needed, and ends when there is no claim and no request.
/// If its runtime is dropped, the next request starts another.
///
/// The owner is asked for everything, which hides or replaces all parts, once it has added more bytes than it last wrote as a whole,
/// and more than 8 MiB, or 64 KiB if the append releases the entry. So the bytes written grow linearly with the changes.
///
/// # Losing the claim
///
/// A process that does not renew its lease, for example because it is stopped, may lose the claim. Its next append
/// conflicts. Then [`Journaled::lost`] is called, and claims and commits return [`StoreError::Lost`] until the last
/// claim is dropped. The next claim reads the entry again.
///
/// # Failures
///
/// If the store fails, the outcome of an append is unknown. The writer repeats the same append once. If that fails too,
/// it returns the error to the requests that wait, and repeats the append before the next request.
///
/// # Panics
///
/// The writer needs a tokio runtime with a clock ([`enable_time`](tokio::runtime::Builder::enable_time)).
#[derive(Clone)]
pub struct Journal(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    id: String,
    lease: Duration,
    /// For how long a claim waits for another process.
    wait: Duration,
    owner: Weak<dyn Journaled>,
    state: Mutex<State>,
    wake: Notify,
}

impl Journal {
    /// Creates the journal of an entry that was loaded, or that is [new](EntryHead::new). `stored_bytes` is the length of
    /// all its parts.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        head: EntryHead,
        stored_bytes: usize,
        lease: &Lease,
        owner: Weak<dyn Journaled>,
    ) -> Self {
        let id = head.id.clone();
        let state = Mutex::new(State::new(lease.holder(), head, stored_bytes));
        let wait = lease.waits();
        Self(Arc::new(Inner { store, id, lease: lease.time, wait, owner, state, wake: Notify::new() }))
    }

    /// Goes on under the name of a worker that has [taken](Store::take) the entry for a lease, so that the next claim of this
    /// journal takes over what the worker holds. `at` is when the store had returned it. This reads the entry first, unless
    /// it was read since, and returns [`StoreError::Conflict`] if another process has changed it since it was taken.
    ///
    /// # Errors
    ///
    /// As for [`refresh`](Self::refresh); also returns [`StoreError::Held`] while runs of this journal have a claim.
    pub async fn adopt(&self, head: &EntryHead, lease: &Lease, at: Instant) -> Result<(), StoreError> {
        let Some(holder) = head.holder.clone() else { return Ok(()) };
        {
            let mut state = self.0.state.lock();
            if state.claims > 0 {
                return Err(StoreError::Held { id: head.id.clone(), holder });
            }
            (state.by, state.is_stale) = (holder.by, state.head.revision != head.revision);
            // The time at which it was taken, by the clock of the store.
            state.read_clock(holder.until - lease.time, at);
        }
        let current = self.refresh().await?;
        if current != head.revision {
            return Err(StoreError::Conflict { id: head.id.clone(), after: head.revision, current });
        }
        self.0.state.lock().adopted = Some(current);
        Ok(())
    }

    /// Gives an entry back that was [adopted](Self::adopt), and that no run has claimed: its worker goes on holding it.
    pub(crate) fn disown(&self) {
        let mut state = self.0.state.lock();
        if state.claims == 0 && state.adopted.take().is_some() {
            (state.head.holder, state.is_stale) = (None, true);
        }
    }

    /// Returns the id of the entry.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Returns the revision of the entry that this journal has last read or stored.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.0.state.lock().head.revision
    }

    /// Returns the queue of the entry when this journal has last read or stored it.
    #[must_use]
    pub fn queue(&self) -> Option<String> {
        self.0.state.lock().head.queue.clone()
    }

    /// Returns the holder of the entry when this journal has last read or stored it.
    #[must_use]
    pub fn holder(&self) -> Option<Holder> {
        self.0.state.lock().head.holder.clone()
    }

    /// Returns the time by the [clock of the store](Store::now), as of the last claim; never more than it is. Timers that are
    /// stored in an entry begin and end by it, because other machines go on with them.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.0.state.lock().now()
    }

    /// Returns a time of this machine's clock as a time by the clock of the store ([`now`](Self::now)).
    #[must_use]
    pub fn store_time(&self, at: SystemTime) -> SystemTime {
        let here = SystemTime::now();
        let there = self.now();
        match at.duration_since(here) {
            Ok(left) => there.checked_add(left).unwrap_or(at),
            Err(passed) => there.checked_sub(passed.duration()).unwrap_or(at),
        }
    }

    /// Claims the entry for a run. The append that sets the holder also has the changes of the owner. Several runs of
    /// this journal share the claim.
    ///
    /// If another process has changed the entry since it was read, it is loaded, [`reload`](Journaled::reload) is
    /// called, and the claim is tried again. A lease of another process that has run out is taken over.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Held`] if another process holds the entry, [`StoreError::Lost`] if runs of this journal
    /// that have lost their claim have not ended yet, [`StoreError::Conflict`] if the entry was removed, and the errors
    /// of the store and of the owner.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the entry may be claimed, and is released again.
    pub async fn claim(&self) -> Result<Claim, StoreError> {
        self.0.request(|waiting, reply| waiting.claims.push(reply)).await
    }

    /// Claims the entry as [`claim`](Self::claim) does. While another process holds it, waits until its lease has run out,
    /// but no longer than [`Lease::wait`].
    ///
    /// # Errors
    ///
    /// As for [`claim`](Self::claim).
    ///
    /// # Cancel safety
    ///
    /// As for [`claim`](Self::claim).
    pub async fn claim_when_free(&self) -> Result<Claim, StoreError> {
        let until = Instant::now() + self.0.wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.claim().await {
                Err(StoreError::Held { holder, .. }) if !left.is_zero() => {
                    // The clock of the store may be another one.
                    let held = holder.until.duration_since(SystemTime::now()).unwrap_or_default();
                    sleep(left.min(held.clamp(SHORTEST_WAIT, LONGEST_WAIT))).await;
                }
                result => return result,
            }
        }
    }

    /// Stores all changes that were made before this call, and returns the revision. Appends nothing if there are none.
    ///
    /// # Errors
    ///
    /// If runs of this journal have the claim:
    ///
    /// - [`StoreError::Lost`] if another process has claimed or removed the entry.
    ///
    /// Otherwise:
    ///
    /// - [`StoreError::Held`] if another process holds the entry. Nothing is stored, and the owner has
    ///   not changed. A change that it has returned meanwhile is stored with the next ones, or replaced by a reload.
    /// - [`StoreError::Conflict`] if another process has changed the entry. [`reload`](Journaled::reload) was called:
    ///   make the change again. If the entry was removed, the revision `current` is [`Revision::NONE`].
    ///
    /// Also returns the errors of the store and of the owner.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after its first poll, the changes are stored nevertheless.
    pub async fn commit(&self) -> Result<Revision, StoreError> {
        self.0.request(|waiting, reply| waiting.commits.push(reply)).await
    }

    /// Stores all changes as [`commit`](Self::commit) does. If a run of this journal has the claim, this also renews the
    /// lease, even if there are no changes. So a claim that was lost is noticed before an effect that must not be
    /// repeated.
    ///
    /// # Errors
    ///
    /// As for [`commit`](Self::commit).
    ///
    /// # Cancel safety
    ///
    /// As for [`commit`](Self::commit).
    pub async fn confirm(&self) -> Result<Revision, StoreError> {
        let push = |waiting: &mut Waiting, reply| {
            waiting.commits.push(reply);
            waiting.renews = true;
        };
        self.0.request(push).await
    }

    /// Sends a post to the entry, also if another process holds it. If runs of this journal have the claim, the owner has
    /// [taken](Journaled::take) it when this returns; otherwise, the next process that changes the entry does.
    ///
    /// # Errors
    ///
    /// As for [`Store::post`]. A post whose outcome is unknown is repeated once.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the post may be sent.
    pub async fn post(&self, post: &Post) -> Result<Posted, StoreError> {
        let mut posted = self.0.store.post(&self.0.id, post).await;
        if matches!(posted, Err(StoreError::Failed { .. })) {
            posted = self.0.store.post(&self.0.id, post).await;
        }
        if posted.is_ok() && self.is_claimed() {
            let push = |waiting: &mut Waiting, reply| {
                waiting.commits.push(reply);
                waiting.looks = true;
            };
            if let Err(error) = self.0.request(push).await {
                tracing::debug!(entry = self.0.id, %error, "a post waits for the next process that holds the entry");
            }
        }
        posted
    }

    /// Sends a post as [`post`](Self::post) does. If no other process holds the entry, the owner has
    /// [taken](Journaled::take) it when this returns, and the store has the change.
    ///
    /// # Errors
    ///
    /// As for [`post`](Self::post). A post that was sent is no error, also if the store fails afterwards.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the post may be sent.
    pub async fn post_and_take(&self, post: &Post) -> Result<Posted, StoreError> {
        let posted = self.post(post).await?;
        if posted == Posted::Kept && !self.is_claimed() {
            let taken = match self.refresh().await {
                Ok(_) if self.holder().is_none() => self.commit().await,
                refreshed => refreshed,
            };
            if let Err(error) = taken {
                tracing::debug!(entry = self.0.id, %error, "a post waits for the next process that changes the entry");
            }
        }
        Ok(posted)
    }

    /// Returns `true` if runs of this journal have a claim that was not lost.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        self.0.state.lock().is_claimed()
    }

    /// Stores all changes with the next append, and after a time at the latest, for changes that nobody waits for. Without
    /// a claim, the next commit stores them.
    pub fn commit_within(&self, time: Duration) {
        let at = Instant::now() + time;
        let mut state = self.0.state.lock();
        if state.commit_at.is_none_or(|before| before > at) {
            state.commit_at = Some(at);
            drop(state);
            self.0.wake_writer();
        }
    }

    /// Reads the entry again if this process has no claim, and calls [`reload`](Journaled::reload) if it has changed, and
    /// [`take`](Journaled::take) if posts wait that no process takes. Returns its revision.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Conflict`] if the entry was removed, and the errors of [`claim`](Self::claim) except
    /// `Held`.
    pub async fn refresh(&self) -> Result<Revision, StoreError> {
        self.0.request(|waiting, reply| waiting.refreshes.push(reply)).await
    }
}

impl Inner {
    /// Reads the clock of the store. The store's clock has gone on when the time arrives, so no timer ends early.
    async fn read_clock(&self) -> Result<(), StoreError> {
        let now = self.store.now().await?;
        self.state.lock().read_clock(now, Instant::now());
        Ok(())
    }

    /// Returns how often posts are looked for.
    fn look_each(&self) -> Duration {
        LOOK.min(self.lease / 3)
    }
}

/// Shows the id, the revision and the holder.
impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let revision = self.revision();
        let holder = self.holder();
        let mut shown = f.debug_struct("Journal");
        shown.field("id", &self.0.id).field("revision", &revision).field("holder", &holder).finish_non_exhaustive()
    }
}
