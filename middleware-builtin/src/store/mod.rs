//! Stores of entries, such as sessions and jobs, that survive a kill: [`Store`], the store in memory, and the [`Journal`]
//! of an entry.

// The contract of a store is S1 to S5 and S11, and that of a journal S7 to S10.

mod append;
mod error;
mod filter;
mod head;
mod journal;
mod memory;
mod post;
mod take;
mod wakes;

use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use bytes::Bytes;
use futures_core::future::BoxFuture;

pub use append::{Append, LONGEST, MAX_PART_BYTES};
pub use error::StoreError;
pub use filter::Filter;
pub use head::{EntryHead, EntryStatus, Holder, MAX_HEAD_BYTES, MAX_ID_BYTES, OpenQuestion, Revision, check_id};
pub use journal::{Change, Claim, Journal, Journaled, Lease, Older, OpenEntries, Rest, joined_parts};
pub use memory::MemoryStore;
pub use post::{MAX_POSTS, Post, Posted};
pub use take::{Take, WorkerHead};
pub use wakes::{Wakes, Watch};

/// A store of entries, each of which has an id, a [head](EntryHead) and a list of parts. [`MemoryStore`] keeps them in
/// memory.
///
/// An entry is a conversation or a job. The head is listed; the parts are bytes that only the code above the store
/// reads. Each change of an entry is an [`Append`] to the revision that its author has read. If another author was
/// faster, the change is refused.
///
/// A process may hold an entry for a time: its lease. Then only it may change the entry, and others [post](Self::post) to
/// it. The clock of the store says when a lease is over, so it does not matter what the clocks of the processes say.
///
/// A store in a database implements the seven methods without a default, [`take`](Self::take) and
/// [`workers`](Self::workers) for workers, [`now`](Self::now) if it is on a server, and `older_parts` if it keeps parts that an
/// append [hides](Append::hides_older). One that learns of changes has [`wakes`](Self::wakes). `emitree_stores::conformance`
/// tests it. An `Arc` of a store is a store.
///
/// ```
/// use emitree_middleware::store::{Append, EntryHead, EntryStatus, Filter, MemoryStore, Revision, Store, StoreError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let store = MemoryStore::new();
/// let mut head = EntryHead::new("order-17", "session");
/// head.revision = store.append(&Append::new(head.clone()).part("the first message")).await?;
///
/// head.status = EntryStatus::Waiting;
/// let change = Append::new(head.clone()).part("the second message");
/// head.revision = store.append(&change).await?;
/// assert_eq!(store.append(&change).await?, head.revision, "an append that is repeated changes nothing");
///
/// let entry = store.load("order-17").await?.unwrap();
/// assert_eq!((entry.head, entry.parts.len()), (head.clone(), 2));
/// assert_eq!(store.list(&Filter::waiting().limit(50)).await?, [head]);
///
/// let too_late = Append::new(EntryHead::new("order-17", "session"));
/// assert!(matches!(store.append(&too_late).await, Err(StoreError::Conflict { after: Revision::NONE, .. })));
/// # Ok(())
/// # }
/// ```
///
/// # Concurrency
///
/// Each method is one atomic step: a reader receives an entry before or after an append, never between. Once a change
/// has returned `Ok`, each later call sees it.
///
/// # Cancel safety
///
/// If the future of an append or a removal is dropped, or if it fails with [`StoreError::Failed`], the store has the
/// whole change, or nothing of it, and may still apply it later. To find out, repeat the append with its
/// [id](Append::id): it is applied at most once, and returns its revision if it was.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Returns the id of this store, which its clones share. A store creates it with [`StoreId::new`], and keeps it.
    fn store_id(&self) -> StoreId;

    /// Returns the entry with an id, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// Return [`StoreError::Invalid`] for an id that [`check_id`] refuses, [`StoreError::Damaged`] if the entry is not
    /// as it was stored, and [`StoreError::Failed`] if it cannot be read.
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>>;

    /// Changes an entry: replaces its head, adds parts, hides or replaces parts, and returns the new revision. Creates the
    /// entry if the append is after [`Revision::NONE`].
    ///
    /// 1. An append that [`Append::check`] refuses is refused.
    /// 2. If it has the id of the entry's last append, nothing changes, and the entry's revision is returned, unless it has a
    ///    lease, and another process has [taken](Self::take) the entry since.
    /// 3. If another process than [`Append::by`] holds the entry, it is refused with [`StoreError::Held`].
    /// 4. If the revision of its head is not the entry's revision, it is refused with [`StoreError::Conflict`].
    /// 5. It is stored, and `by` holds the entry for [`Append::lease`], or nobody does. The new revision is greater than
    ///    each revision that an entry with this id has had, also if the entry was removed. If the head names no queue, the
    ///    entry keeps its own.
    /// 6. The [posts](Self::post) that it [takes](Append::takes) no longer wait. If it releases the entry, and others wait,
    ///    the entry has a newer revision than the one that is returned, so the next change is made by a process that
    ///    knows of them; if the entry has a queue, it is due at once.
    ///
    /// # Errors
    ///
    /// Return [`StoreError::Invalid`], [`StoreError::Held`] or [`StoreError::Conflict`] as above; the entry stays as it was. Return
    /// [`StoreError::Failed`] if the append could not be stored, or if it is unknown whether it was.
    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>>;

    /// Sends a post to an entry, also while another process holds it.
    ///
    /// 1. A post that [`Post::check`] refuses is refused.
    /// 2. If the entry has had a post with this id, nothing changes, and it is [`Posted::Kept`].
    /// 3. If the entry belongs to another queue than the post names, the post is refused with
    ///    [`Post::other_queue`].
    /// 4. If the entry has had another post with the same key, that one is returned.
    /// 5. If [`MAX_POSTS`] posts wait, it is refused with [`StoreError::Full`].
    /// 6. It waits, behind the others. An entry that nobody holds gets a new revision, and is due at once if it has a
    ///    queue. If the post names the queue, and the entry had ended, had failed or was paused, it is
    ///    [queued](EntryStatus::Queued).
    ///
    /// # Errors
    ///
    /// Return [`StoreError::Invalid`] and [`StoreError::Full`] as above, [`StoreError::Conflict`] if there is no entry, and
    /// [`StoreError::Failed`] if it is unknown whether the post was stored: repeat it with its id.
    fn post<'a>(&'a self, id: &'a str, post: &'a Post) -> BoxFuture<'a, Result<Posted, StoreError>>;

    /// Returns the posts that wait in an entry, the first ones first; none if there is no entry. They name no queue,
    /// because the entry has it.
    ///
    /// # Errors
    ///
    /// As for [`load`](Self::load).
    fn posts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<Post>, StoreError>>;

    /// Returns the parts that are hidden by the last append that [hides](Append::hides_older) or
    /// [replaces](Append::replaces) parts, in the order in which they were appended. `before` is the revision at which the
    /// caller has loaded the entry.
    ///
    /// A store may keep no such parts: then it removes them when they would be hidden, and this returns none. This is the
    /// default.
    ///
    /// # Errors
    ///
    /// Return [`StoreError::Conflict`] if there is no entry, or if an append after `before` has hidden or replaced parts:
    /// load the entry again. Otherwise as for [`load`](Self::load).
    fn older_parts<'a>(&'a self, id: &'a str, before: Revision) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        _ = (id, before);
        Box::pin(ready(Ok(Vec::new())))
    }

    /// Returns the heads of the entries that a filter selects, in the order of their ids, compared by UTF-8 bytes.
    ///
    /// An entry that the filter selects during all calls is in exactly one page.
    ///
    /// # Errors
    ///
    /// Return [`StoreError::Damaged`] if a head is not as it was stored, and [`StoreError::Failed`] if the entries
    /// cannot be listed.
    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>>;

    /// Lets a worker hold entries of its queues that are [due](Append::due), the first queue and the earliest ones first.
    /// An entry that is held is due when the lease is over. The worker is listed by [`workers`](Self::workers) for the
    /// lease; with a lease of zero, it is no longer listed.
    ///
    /// Each entry that is taken gets a new revision, and one more [attempt](EntryHead::attempts). The heads are returned
    /// as they are then. If several workers call this at once, each entry is taken by one of them, and none waits for the
    /// others.
    ///
    /// # Errors
    ///
    /// Return [`StoreError::Invalid`] for names that [`Take::check`] refuses, and [`StoreError::Failed`] if it is unknown
    /// what was taken: it is due again when the lease is over. By default, returns an error: the store has no queues.
    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        _ = take;
        Box::pin(ready(Err(no_queues())))
    }

    /// Returns the workers that have taken entries, or have tried to, for no longer than their leases ago, by their names.
    ///
    /// # Errors
    ///
    /// Return [`StoreError::Failed`] if they cannot be read. By default, returns an error: the store has no queues.
    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerHead>, StoreError>> {
        Box::pin(ready(Err(no_queues())))
    }

    /// Returns the time by the clock of the store, which says when leases, sleeps and deadlines are over. By default, that of
    /// this machine: a store that several machines share returns the time of its server.
    ///
    /// # Errors
    ///
    /// Return [`StoreError::Failed`] if it cannot be read.
    fn now(&self) -> BoxFuture<'_, Result<SystemTime, StoreError>> {
        Box::pin(ready(Ok(SystemTime::now())))
    }

    /// Returns the tasks of this process that wait for posts and for work: the store wakes the holder of an entry after a
    /// [post](Self::post), and the workers of a queue when an entry is due at once. A store on a server does so for the
    /// changes of all processes, and others for those of this one. By default, returns `None`: they look each second.
    fn wakes(&self) -> Option<&Wakes> {
        None
    }

    /// Removes an entry with its parts, also those that are hidden, and with its posts. Does nothing if there is no entry
    /// with this id.
    ///
    /// # Errors
    ///
    /// Return [`StoreError::Conflict`] if `after` is not the entry's revision, [`StoreError::Invalid`] for an id that
    /// [`check_id`] refuses, and [`StoreError::Failed`] as [`append`](Self::append) does.
    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>>;
}

fn no_queues() -> StoreError {
    StoreError::failed("the store has no queues", "`Store::take` and `Store::workers` are not implemented for it")
}

/// An entry of a [`Store`].
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The head, with the entry's id and revision.
    pub head: EntryHead,
    /// The parts, in the order in which they were appended.
    pub parts: Vec<Bytes>,
}

impl Entry {
    /// Creates an entry, for code that implements a store.
    #[must_use]
    pub fn new(head: EntryHead, parts: Vec<Bytes>) -> Self {
        Self { head, parts }
    }
}

/// Shows the lengths of the parts.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("head", &self.head).field("parts", &Lengths(&self.parts)).finish()
    }
}

/// Shows the lengths of parts, because their bytes may be secret.
struct Lengths<'a>(&'a [Bytes]);

impl fmt::Debug for Lengths<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(Bytes::len)).finish()
    }
}

/// Identifies a [`Store`] in this process. A store and its clones have one id, so code can find out that an entry is
/// already open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreId(u64);

impl StoreId {
    /// Creates an id that no other store of this process has.
    #[expect(clippy::new_without_default, reason = "a default value is not expected to be unique")]
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn store_id(&self) -> StoreId {
        (**self).store_id()
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        (**self).load(id)
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        (**self).append(append)
    }

    fn post<'a>(&'a self, id: &'a str, post: &'a Post) -> BoxFuture<'a, Result<Posted, StoreError>> {
        (**self).post(id, post)
    }

    fn posts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<Post>, StoreError>> {
        (**self).posts(id)
    }

    fn older_parts<'a>(&'a self, id: &'a str, before: Revision) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        (**self).older_parts(id, before)
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        (**self).list(filter)
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        (**self).take(take)
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerHead>, StoreError>> {
        (**self).workers()
    }

    fn now(&self) -> BoxFuture<'_, Result<SystemTime, StoreError>> {
        (**self).now()
    }

    fn wakes(&self) -> Option<&Wakes> {
        (**self).wakes()
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        (**self).remove(id, after)
    }
}
