//! The tests of the contract notice a store with a defect.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use emitree_middleware::store::{
    Append, Entry, EntryHead, Filter, MemoryStore, Post, Posted, Revision, Store, StoreError, StoreId, Take, WorkerHead,
};
use emitree_stores::conformance;
use futures_util::future::BoxFuture;
use uuid::Uuid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    OneIdForAll,
    AppendsTwice,
    IgnoresTheRevision,
    IgnoresReplaces,
    HidesNothing,
    MixesOlderParts,
    KeepsWhatIsReplaced,
    ReturnsPartsTwice,
    LosesAPart,
    LosesTheHolder,
    LosesTheQueue,
    IgnoresTheHolder,
    TakesTooMuch,
    TakesTheLastQueueFirst,
    CountsNoAttempts,
    TakesWithoutAChange,
    ListsNoWorkers,
    HasAnotherClock,
    AllowsAnyId,
    AllowsLargeParts,
    RemovesAnything,
    SortsByRevision,
    IgnoresTheLimit,
    ListsTheCursorAgain,
    NeverAppliesADroppedAppendWhole,
    PostsTwice,
    PostsAgainWhatWasTaken,
    ReversesPosts,
    TakesNoPosts,
    TakesAllPosts,
    CountsNoPosts,
    IgnoresKeys,
    ForgetsTheKeysOfWhatWasTaken,
    ChecksTheKeyBeforeTheId,
    PostsToNoEntry,
    PostsToAnyQueue,
    AllowsLongPosts,
    AllowsManyPosts,
    ChangesWhatIsHeld,
    KeepsTheStatus,
    TellsTheRevisionOfLeftPosts,
    KeepsPostsOfRemovedEntries,
    WakesNobody,
    MissesPostsOfARace,
    RenewsInTwoSteps,
}

/// A store with one defect.
#[derive(Debug)]
struct Defective {
    defect: Defect,
    inner: MemoryStore,
    /// The posts of entries that were removed.
    removed: Mutex<Vec<(String, Post)>>,
    /// The entries that no worker is told of.
    asleep: Mutex<BTreeSet<String>>,
}

impl Defective {
    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    async fn current(&self, id: &str) -> Revision {
        self.inner.load(id).await.ok().flatten().map_or(Revision::NONE, |entry| entry.head.revision)
    }

    async fn changed(&self, append: &Append) -> Append {
        let mut append = append.clone();
        match self.defect {
            Defect::AppendsTwice if append.parts.len() == 1 => {
                append.id = Append::new(append.head.clone()).id;
                append.head.revision = self.current(&append.head.id).await;
            }
            Defect::IgnoresTheRevision => append.head.revision = self.current(&append.head.id).await,
            Defect::IgnoresReplaces => append.replaces = false,
            Defect::HidesNothing => append.hides_older = false,
            Defect::KeepsWhatIsReplaced if append.replaces => (append.replaces, append.hides_older) = (false, true),
            Defect::LosesAPart if append.parts.len() > 2 => drop(append.parts.pop()),
            Defect::LosesTheHolder => append.lease = None,
            Defect::LosesTheQueue => append.head.queue = None,
            Defect::TakesNoPosts => append.takes.clear(),
            Defect::TakesAllPosts if !append.takes.is_empty() => append.takes = self.waiting(&append.head.id).await,
            Defect::IgnoresTheHolder => {
                let entry = self.inner.load(&append.head.id).await.ok().flatten();
                append.by = entry.and_then(|entry| entry.head.holder).map_or(append.by, |holder| holder.by);
            }
            Defect::AllowsAnyId if append.head.id.is_empty() => append.head.id = "empty".to_owned(),
            Defect::AllowsLargeParts => append.parts.iter_mut().for_each(|part| part.truncate(512 * 1024)),
            _ => {}
        }
        append
    }

    /// Returns the ids of the posts that wait.
    async fn waiting(&self, id: &str) -> Vec<Uuid> {
        self.inner.posts(id).await.unwrap_or_default().iter().map(|post| post.id).collect()
    }

    /// Makes an append, and then does what it must not.
    async fn append_and_more(&self, append: &Append) -> Result<Revision, StoreError> {
        let id = &append.head.id;
        let before = self.waiting(id).await;
        if self.has(Defect::MissesPostsOfARace) {
            tokio::task::yield_now().await;
        }
        let revision = self.inner.append(&self.changed(append).await).await?;
        let after = self.waiting(id).await;
        match self.defect {
            Defect::TellsTheRevisionOfLeftPosts => return Ok(self.current(id).await),
            Defect::MissesPostsOfARace if append.lease.is_none() && after.iter().any(|id| !before.contains(id)) => {
                self.asleep.lock().expect("a lock").insert(id.clone());
            }
            Defect::KeepsPostsOfRemovedEntries if append.head.revision == Revision::NONE => {
                let posts = self.removed.lock().expect("a lock").clone();
                for (_, post) in posts.iter().filter(|(of, _)| of == id) {
                    self.inner.post(id, post).await?;
                }
            }
            _ => {}
        }
        Ok(revision)
    }

    /// Checks the holder and the revision, and then holds the entry, also if it was taken in between.
    async fn renew_in_two_steps(&self, append: &Append) -> Result<Revision, StoreError> {
        let id = &append.head.id;
        let head = async || self.inner.load(id).await.map(|entry| entry.map(|entry| entry.head));
        let mut late = append.clone();
        if let Some(found) = head().await?
            && found.revision == append.head.revision
            && found.holder.is_none_or(|holder| holder.by == append.by)
        {
            // Longer than the leases of the test.
            tokio::time::sleep(Duration::from_millis(5)).await;
            if let Some(found) = head().await? {
                late.head.revision = found.revision;
                late.by = found.holder.map_or(late.by, |holder| holder.by);
            }
        }
        self.inner.append(&late).await
    }

    fn changed_post(&self, post: &Post) -> Post {
        let mut post = post.clone();
        match self.defect {
            Defect::PostsToAnyQueue => post.queue = None,
            Defect::AllowsLongPosts => post.body.truncate(512 * 1024),
            _ => {}
        }
        post
    }

    /// Sends a post, and then does what it must not.
    async fn post_and_more(&self, id: &str, post: &Post) -> Result<Posted, StoreError> {
        let waiting = self.inner.posts(id).await?;
        let was_waiting = waiting.iter().any(|waiting| waiting.id == post.id);
        let known = waiting.into_iter().find(|waiting| waiting.key.is_some() && waiting.key == post.key);
        if let Some(known) = known.filter(|_| self.has(Defect::ChecksTheKeyBeforeTheId)) {
            return Ok(Posted::Refused(known));
        }
        let before = self.inner.load(id).await?.map(|entry| entry.head);
        let posted = match self.inner.post(id, post).await {
            Err(StoreError::Conflict { .. }) if self.has(Defect::PostsToNoEntry) => Posted::Kept,
            Err(StoreError::Full { .. }) if self.has(Defect::AllowsManyPosts) => Posted::Kept,
            result => result?,
        };
        let is_taken = !self.waiting(id).await.contains(&post.id);
        let again = match (self.defect, &posted) {
            (Defect::PostsTwice, Posted::Kept) => was_waiting,
            (Defect::PostsAgainWhatWasTaken, Posted::Kept) => is_taken,
            (Defect::IgnoresKeys, Posted::Refused(_)) => true,
            (Defect::ForgetsTheKeysOfWhatWasTaken, Posted::Refused(first)) => first.body.is_empty(),
            _ => false,
        };
        if again {
            return self.inner.post(id, &Post::new(post.body.clone())).await;
        }
        let after = self.inner.load(id).await?.map(|entry| entry.head);
        let (Some(mut head), Some(after)) = (before, after) else { return Ok(posted) };
        head.revision = after.revision;
        match self.defect {
            Defect::ChangesWhatIsHeld if head.holder.is_some() => {
                let by = head.holder.clone().map(|holder| holder.by).unwrap_or_default();
                self.inner.append(&Append::new(head).by(by).holding(Duration::from_secs(600))).await?;
            }
            Defect::KeepsTheStatus if head.status != after.status => _ = self.inner.append(&Append::new(head)).await?,
            _ => {}
        }
        Ok(posted)
    }
}

impl Store for Defective {
    fn store_id(&self) -> StoreId {
        static SHARED: std::sync::LazyLock<StoreId> = std::sync::LazyLock::new(StoreId::new);
        if self.has(Defect::OneIdForAll) { *SHARED } else { self.inner.store_id() }
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            let mut entry = self.inner.load(id).await?;
            if let Some(entry) = entry.as_mut().filter(|_| self.has(Defect::CountsNoPosts)) {
                entry.head.posts = 0;
            }
            Ok(entry)
        })
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            if self.has(Defect::NeverAppliesADroppedAppendWhole) {
                let mut half = append.clone();
                half.parts.truncate(1);
                if append.parts.len() == 2 && append.parts[0].len() > 1_000 {
                    self.inner.append(&half).await?;
                    tokio::task::yield_now().await;
                }
            }
            if self.has(Defect::RenewsInTwoSteps) && append.lease.is_some() {
                return self.renew_in_two_steps(append).await;
            }
            self.append_and_more(append).await
        })
    }

    fn older_parts<'a>(&'a self, id: &'a str, before: Revision) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        Box::pin(async move {
            let before = if self.has(Defect::ReturnsPartsTwice) { self.current(id).await } else { before };
            let mut older = self.inner.older_parts(id, before).await?;
            if self.has(Defect::MixesOlderParts) {
                older.reverse();
            }
            Ok(older)
        })
    }

    fn post<'a>(&'a self, id: &'a str, post: &'a Post) -> BoxFuture<'a, Result<Posted, StoreError>> {
        Box::pin(async move {
            let post = self.changed_post(post);
            self.post_and_more(id, &post).await
        })
    }

    fn posts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<Post>, StoreError>> {
        Box::pin(async move {
            let mut posts = self.inner.posts(id).await?;
            if self.has(Defect::ReversesPosts) {
                posts.reverse();
            }
            Ok(posts)
        })
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        Box::pin(async move {
            let mut filter = filter.clone();
            match self.defect {
                Defect::IgnoresTheLimit => filter.limit = None,
                Defect::ListsTheCursorAgain => filter.after = filter.after.map(|id| id[..id.len() - 1].to_owned()),
                _ => {}
            }
            let mut heads = self.inner.list(&filter).await?;
            if self.has(Defect::SortsByRevision) {
                heads.sort_by_key(|head| head.revision);
            }
            Ok(heads)
        })
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        Box::pin(async move {
            let mut take = take.clone();
            match self.defect {
                Defect::TakesTooMuch => take.most += 1,
                Defect::TakesTheLastQueueFirst => take.queues.reverse(),
                _ => {}
            }
            let mut heads = self.inner.take(&take).await?;
            heads.retain(|head| !self.asleep.lock().expect("a lock").remove(&head.id));
            heads.retain(|head| head.posts == 0 || !self.has(Defect::WakesNobody));
            for head in &mut heads {
                match self.defect {
                    Defect::CountsNoAttempts => head.attempts = 1,
                    Defect::TakesWithoutAChange => head.revision = Revision::new(head.revision.get() - 1),
                    _ => {}
                }
            }
            Ok(heads)
        })
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerHead>, StoreError>> {
        Box::pin(async {
            let workers = self.inner.workers().await?;
            Ok(workers.into_iter().filter(|_| !self.has(Defect::ListsNoWorkers)).collect())
        })
    }

    fn now(&self) -> BoxFuture<'_, Result<SystemTime, StoreError>> {
        Box::pin(async {
            let ahead = Duration::from_secs(if self.has(Defect::HasAnotherClock) { 3_600 } else { 0 });
            Ok(self.inner.now().await? + ahead)
        })
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let after = if self.has(Defect::RemovesAnything) { self.current(id).await } else { after };
            let posts = self.inner.posts(id).await?;
            self.removed.lock().expect("a lock").extend(posts.into_iter().map(|post| (id.to_owned(), post)));
            self.inner.remove(id, after).await
        })
    }
}

/// Returns the message with which the conformance of a store with a defect panics.
fn panic_of(defect: Defect) -> Option<String> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime");
    let make = async || {
        let inner = MemoryStore::new();
        Arc::new(Defective { defect, inner, removed: Mutex::default(), asleep: Mutex::default() })
    };
    let result = catch_unwind(AssertUnwindSafe(|| runtime.block_on(conformance(make))));
    result.err().map(emitree_emitter::panic_text)
}

#[test]
fn a_store_with_a_defect_does_not_conform() {
    use Defect as D;
    let table = [
        (D::OneIdForAll, "two stores have two ids"),
        (D::AppendsTwice, ""),
        (D::IgnoresTheRevision, "a change for revision"),
        (D::IgnoresReplaces, "the parts of `a`"),
        (D::HidesNothing, "the parts of `a`"),
        (D::MixesOlderParts, "the older parts of `a`"),
        (D::KeepsWhatIsReplaced, "the older parts of `a`"),
        (D::ReturnsPartsTwice, "Ok([b"),
        (D::LosesAPart, ""),
        (D::LosesTheHolder, ""),
        (D::LosesTheQueue, ""),
        (D::IgnoresTheHolder, "that `a` holds"),
        (D::TakesTooMuch, ""),
        (D::TakesTheLastQueueFirst, "queue by queue"),
        (D::CountsNoAttempts, ""),
        (D::TakesWithoutAChange, ""),
        (D::ListsNoWorkers, ""),
        (D::HasAnotherClock, "the lease from"),
        (D::AllowsAnyId, "an empty id must be refused"),
        (D::AllowsLargeParts, "a long part must be refused"),
        (D::RemovesAnything, "a change for revision"),
        (D::SortsByRevision, "Filter"),
        (D::IgnoresTheLimit, "Filter"),
        (D::ListsTheCursorAgain, ""),
        (D::NeverAppliesADroppedAppendWhole, ""),
        (D::PostsTwice, "the posts that wait in `a`"),
        (D::PostsAgainWhatWasTaken, "the posts that wait in `a`"),
        (D::ReversesPosts, "the posts that wait in `a`"),
        (D::TakesNoPosts, "the posts that wait in `a`"),
        (D::TakesAllPosts, "the posts that wait in `a`"),
        (D::CountsNoPosts, "the number of posts that wait in `a`"),
        (D::IgnoresKeys, "it waits"),
        (D::ForgetsTheKeysOfWhatWasTaken, "it was taken"),
        (D::ChecksTheKeyBeforeTheId, "the post Post"),
        (D::PostsToNoEntry, "a change for revision 0 of 0"),
        (D::PostsToAnyQueue, ""),
        (D::AllowsLongPosts, "a long body must be refused"),
        (D::AllowsManyPosts, "1000 posts wait"),
        (D::ChangesWhatIsHeld, ""),
        (D::KeepsTheStatus, "Paused"),
        (D::TellsTheRevisionOfLeftPosts, "of the release"),
        (D::KeepsPostsOfRemovedEntries, "the posts that wait in `a`"),
        (D::WakesNobody, "right: [\"b\"]"),
        (D::MissesPostsOfARace, "releases that left posts of which no worker is told"),
        (D::RenewsInTwoSteps, "of a renewal and a take one wins round"),
    ];
    for (defect, expected) in table {
        let message = panic_of(defect).unwrap_or_else(|| panic!("nothing noticed {defect:?}"));
        assert!(message.contains(expected), "{defect:?}: {message}");
    }
    assert_eq!(panic_of(D::None), None);
}
