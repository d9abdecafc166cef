//! The claim and the one writer of an entry (S7 to S10). Two journals of one entry stand for two processes.

use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use emitree_middleware::store::{
    Append, Change, Entry, EntryHead, EntryStatus, Filter, Journal, Journaled, Lease, MAX_PART_BYTES, MemoryStore,
    Older, Post, Posted, Revision, Store, StoreError, StoreId, joined_parts,
};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use serde_json::{Map, Value};
use tokio::sync::Notify;
use uuid::Uuid;

const ID: &str = "order-17";
const LEASE: Duration = Duration::from_secs(30);

/// Lines in memory, of which a journal stores the new ones.
#[derive(Default)]
struct Notes {
    journal: OnceLock<Journal>,
    lines: Mutex<(Vec<String>, usize)>,
    meta: Mutex<Map<String, Value>>,
    /// The error or the panic of the next changes.
    faults: Mutex<VecDeque<Option<StoreError>>>,
    losses: Mutex<Vec<StoreError>>,
    lost: Notify,
}

impl Notes {
    async fn open(store: &Arc<Watched>, by: &str) -> Arc<Self> {
        let entry = store.load(ID).await.expect("a store");
        let entry = entry.unwrap_or_else(|| Entry::new(EntryHead::new(ID, "notes"), Vec::new()));
        let notes = Arc::new(Self::default());
        notes.reload(&entry).expect("lines");
        let (bytes, lease) = (entry.parts.iter().map(Bytes::len).sum(), Lease::new().by(by).time(LEASE));
        let owner: std::sync::Weak<dyn Journaled> = Arc::<Self>::downgrade(&notes);
        _ = notes.journal.set(Journal::new(Arc::<Watched>::clone(store), entry.head, bytes, &lease, owner));
        notes
    }

    fn journal(&self) -> &Journal {
        self.journal.get().expect("set when opened")
    }

    fn add(&self, line: impl Into<String>) {
        self.lines.lock().expect("a lock").0.push(line.into());
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("a lock").0.clone()
    }

    async fn add_and_commit(&self, line: impl Into<String>) -> Result<Revision, StoreError> {
        self.add(line);
        self.journal().commit().await
    }

    fn losses(&self) -> usize {
        self.losses.lock().expect("a lock").len()
    }
}

impl Journaled for Notes {
    fn change(&self, whole: bool) -> Result<Option<Change>, StoreError> {
        let fault = self.faults.lock().expect("a lock").pop_front();
        match fault {
            Some(Some(error)) => return Err(error),
            Some(None) => {
                // It believes that it has returned the change.
                let mut lines = self.lines.lock().expect("a lock");
                lines.1 = lines.0.len();
                drop(lines);
                panic!("no ink");
            }
            None => {}
        }
        let mut lines = self.lines.lock().expect("a lock");
        let (lines, stored) = &mut *lines;
        let from = if whole { 0 } else { *stored };
        let parts: Vec<_> = lines[from..].iter().map(|line| Bytes::from(line.clone())).collect();
        let changed = lines.len() > *stored || whole;
        *stored = lines.len();
        let meta = self.meta.lock().expect("a lock").clone();
        let older = if whole { Older::Removed } else { Older::Stay };
        let (status, questions) = (EntryStatus::Running, Vec::new());
        Ok(changed.then_some(Change { status, questions, meta, parts, older, gets_on: false, queue: None }))
    }

    fn reload(&self, entry: &Entry) -> Result<(), StoreError> {
        let parts = joined_parts(entry)?;
        let lines: Vec<_> = parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect();
        let stored = lines.len();
        *self.lines.lock().expect("a lock") = (lines, stored);
        Ok(())
    }

    fn take(&self, posts: &[Post]) -> Vec<Uuid> {
        posts.iter().for_each(|post| self.add(String::from_utf8_lossy(&post.body)));
        posts.iter().map(|post| post.id).collect()
    }

    fn lost(&self, error: &StoreError) {
        self.losses.lock().expect("a lock").push(error.clone());
        self.lost.notify_one();
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Nothing is stored.
    Fails,
    /// The append is stored, and its reply is lost.
    LosesReply,
    /// The append is stored, and never returns.
    Hangs,
}

/// A store in memory that records its appends, and fails as it is told.
#[derive(Debug, Default)]
struct Watched {
    store: MemoryStore,
    appends: Mutex<Vec<Append>>,
    faults: Mutex<VecDeque<Fault>>,
    hangs: Notify,
    appended: Notify,
}

impl Watched {
    fn new() -> Arc<Self> {
        Arc::default()
    }

    fn fails(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().expect("a lock").extend(faults);
    }

    /// Returns the number of appends that were tried since the last call.
    fn tried(&self) -> usize {
        std::mem::take(&mut *self.appends.lock().expect("a lock")).len()
    }

    async fn entry(&self) -> Entry {
        self.store.load(ID).await.expect("a store").expect("an entry")
    }

    async fn lines(&self) -> Vec<String> {
        let parts = joined_parts(&self.entry().await).expect("parts");
        parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect()
    }

    /// Changes the entry as another process does, once the lease of its holder is over.
    async fn change(&self, change: impl FnOnce(Append) -> Append) {
        let mut head = self.entry().await.head;
        if let Some(holder) = head.holder.take() {
            head.revision = self.store.append(&Append::new(head.clone()).by(holder.by)).await.expect("the holder");
        }
        let append = change(Append::new(head).part("of another process"));
        self.store.append(&append).await.expect("the current revision");
    }
}

impl Store for Watched {
    fn store_id(&self) -> StoreId {
        self.store.store_id()
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        self.store.load(id)
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            self.appends.lock().expect("a lock").push(append.clone());
            let fault = self.faults.lock().expect("a lock").pop_front();
            // Another task may run between the decision of a writer and its append.
            tokio::task::yield_now().await;
            let failed = Err(StoreError::failed("the disk is away", "unplugged"));
            if fault == Some(Fault::Fails) {
                return failed;
            }
            let result = self.store.append(append).await;
            self.appended.notify_one();
            match fault {
                Some(Fault::Hangs) => {
                    self.hangs.notify_one();
                    pending().await
                }
                Some(_) => failed,
                None => result,
            }
        })
    }

    fn post<'a>(&'a self, id: &'a str, post: &'a Post) -> BoxFuture<'a, Result<Posted, StoreError>> {
        self.store.post(id, post)
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

fn held_by_another(append: Append) -> Append {
    append.by("other").holding(LEASE)
}

/// Lets the other tasks run until they wait.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// S7
#[tokio::test]
async fn one_journal_holds_an_entry_and_another_gets_the_holder_and_the_time() {
    let store = Watched::new();
    let (a, b) = (Notes::open(&store, "a").await, Notes::open(&store, "b").await);
    a.add("1");
    let claim = a.journal().claim().await.expect("a free entry");
    let by = a.journal().holder().expect("the claim's holder").by;
    let holder = store.entry().await.head.holder.expect("a holder");
    assert!(holder.by.starts_with("a ") && holder.by == by && holder.until > SystemTime::now(), "{holder:?}");

    for error in [b.journal().claim().await.err(), b.add_and_commit("b").await.err()] {
        let error = error.expect("a has it");
        assert!(matches!(&error, StoreError::Held { holder: of, .. } if *of == holder), "{error:?}");
        let until = error.to_string();
        let until = until.strip_prefix(&format!("the entry `order-17` is held by `{}` until 20", holder.by));
        assert!(until.is_some_and(|until| until.ends_with('Z')), "{error}");
    }
    assert_eq!(b.lines(), ["b"], "the change of b waits");

    a.add("2");
    let revision = claim.release().await.expect("the claim");
    assert_eq!((store.entry().await.head.holder, store.entry().await.head.revision), (None, revision));
    // No lease has to run out.
    let claim = b.journal().claim().await.expect("a free entry");
    assert_eq!(b.lines(), ["1", "2"]);
    drop(claim);
}

/// S7
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_1_000_races_for_a_claim_one_wins_and_the_other_gets_holder_and_time() {
    let store = Watched::new();
    let (a, b) = (Notes::open(&store, "a").await, Notes::open(&store, "b").await);
    let mut wins = [0, 0];
    for n in 0..1_000 {
        let race = |notes: &Arc<Notes>| {
            let notes = Arc::clone(notes);
            tokio::spawn(async move { notes.journal().claim().await })
        };
        // Each begins every other race.
        let (first, second) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let (first, second) = (race(first), race(second));
        let (first, second) = (first.await.expect("no panic"), second.await.expect("no panic"));
        let winner = store.entry().await.head.holder.expect("a holder");
        let (claim, held) = match (first, second) {
            (Ok(claim), Err(held)) | (Err(held), Ok(claim)) => (claim, held),
            both => panic!("exactly one wins race {n}: {both:?}"),
        };
        assert!(matches!(&held, StoreError::Held { holder, .. } if *holder == winner), "{held:?}, not {winner:?}");
        wins[usize::from(winner.by.starts_with("b "))] += 1;
        claim.release().await.expect("the claim");
    }
    assert!(wins.iter().all(|wins| *wins > 0), "{wins:?}");
}

/// S7
#[tokio::test]
async fn a_lease_that_has_run_out_is_taken_over_and_the_entry_is_read_again() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    a.add_and_commit("1").await.expect("a free entry");
    store.change(|append| append.by("other").holding(Duration::ZERO)).await;
    let claim = a.journal().claim().await.expect("a lease that has run out");
    assert_eq!(a.lines(), ["1", "of another process"]);
    claim.release().await.expect("the claim");
}

/// S7
#[tokio::test]
async fn a_lost_claim_is_noticed_at_the_next_commit_and_nothing_more_is_stored() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    let claims = [a.journal().claim().await.expect("free"), a.journal().claim().await.expect("shared")];
    store.change(held_by_another).await;
    let commits = join_all(["2", "3"].map(|line| a.add_and_commit(line))).await;
    for lost in commits.into_iter().chain([a.add_and_commit("4").await]) {
        let error = lost.expect_err("lost");
        assert!(matches!(&error, StoreError::Lost { to: Some(to), .. } if to.by == "other"), "{error:?}");
        assert!(error.to_string().starts_with("the entry `order-17` lost its claim to `other` at 20"), "{error}");
    }
    assert_eq!((store.lines().await, a.losses()), (vec!["of another process".to_owned()], 1));

    // A run of this process has to end first.
    let [first, second] = claims;
    assert!(matches!(first.release().await, Err(StoreError::Lost { .. })));
    assert!(matches!(a.journal().claim().await, Err(StoreError::Lost { .. })));
    drop(second);
    assert!(matches!(a.journal().claim().await, Err(StoreError::Held { .. })));
    store.change(|append| append).await;
    let claim = a.journal().claim().await.expect("a free entry");
    assert_eq!((a.lines().len(), a.losses()), (2, 1));
    store.change(held_by_another).await;
    assert!(matches!(claim.release().await, Err(StoreError::Lost { .. })));
    assert_eq!(a.losses(), 1, "no run is left to abort");
}

/// S7
#[tokio::test(start_paused = true)]
async fn a_lost_claim_is_noticed_by_the_renewal_of_the_lease() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    let _claim = a.journal().claim().await.expect("a free entry");
    store.store.remove(ID, a.journal().revision()).await.expect("the current revision");
    a.lost.notified().await;
    let losses = a.losses.lock().expect("a lock").clone();
    assert!(matches!(&losses[..], [StoreError::Lost { to: None, .. }]), "{losses:?}");
    assert_eq!(store.load(ID).await.expect("a store"), None);
    // The writer has ended, although the run still has its claim.
    store.tried();
    tokio::time::sleep(LEASE).await;
    assert_eq!(store.tried(), 0);
}

/// S8
#[tokio::test]
async fn commits_that_wait_are_one_append_and_a_commit_without_a_change_is_none() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    let revisions = join_all((0..10).map(|n| a.add_and_commit(n.to_string()))).await;
    let first = *revisions[0].as_ref().expect("a revision");
    assert!(revisions.iter().all(|revision| revision.as_ref().is_ok_and(|of| *of == first)), "{revisions:?}");
    assert_eq!((store.tried(), store.lines().await.len()), (1, 10));
    assert_eq!(a.journal().commit().await.expect("a revision"), first);
    assert_eq!((store.tried(), a.journal().revision(), a.journal().holder()), (0, first, None));
}

/// S8
#[tokio::test]
async fn a_commit_that_is_dropped_is_stored() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    assert!(a.add_and_commit("1").now_or_never().is_none());
    settle().await;
    assert_eq!(store.lines().await, ["1"]);
    // Begun, but not over.
    a.add("2");
    let mut commit = Box::pin(a.journal().commit());
    poll_fn(|cx| Poll::Ready(_ = commit.as_mut().poll(cx))).await;
    tokio::task::yield_now().await;
    drop(commit);
    a.add_and_commit("3").await.expect("no conflict with itself");
    assert_eq!(store.lines().await, ["1", "2", "3"]);
}

/// S8
#[tokio::test]
async fn an_append_whose_outcome_is_unknown_is_repeated_until_it_is_known() {
    for fault in [Fault::Fails, Fault::LosesReply] {
        for claims in [false, true] {
            let store = Watched::new();
            let a = Notes::open(&store, "a").await;
            let claim = if claims { Some(a.journal().claim().await.expect("a free entry")) } else { None };
            store.fails([fault]);
            a.add_and_commit("1").await.expect("the second try is stored");
            // The writer gives up after two tries, and begins the next commit with the same append.
            store.fails([fault; 2]);
            let failed = a.add_and_commit("2").await.expect_err("the disk is away");
            assert_eq!(failed.to_string(), "the disk is away");
            store.tried();
            a.add_and_commit("3").await.expect("the disk is back");
            assert_eq!((store.tried(), store.lines().await), (2, ["1", "2", "3"].map(str::to_owned).to_vec()));
            drop(claim);
            settle().await;
            assert_eq!((store.entry().await.head.holder, a.losses()), (None, 0));
        }
    }
}

/// S8
#[tokio::test]
async fn a_claim_whose_outcome_is_unknown_is_released_by_the_next_commit() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    store.fails([Fault::LosesReply; 2]);
    assert!(matches!(a.journal().claim().await, Err(StoreError::Failed { .. })));
    assert_ne!(store.entry().await.head.holder, None);
    a.add_and_commit("1").await.expect("the disk is back");
    assert_eq!((store.entry().await.head.holder, store.lines().await), (None, vec!["1".to_owned()]));
}

/// S8
#[tokio::test]
async fn an_append_whose_reply_was_lost_and_that_others_have_followed_is_a_conflict_and_read_again() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    a.add_and_commit("1").await.expect("a free entry");
    store.fails([Fault::LosesReply; 2]);
    a.add_and_commit("2").await.expect_err("the disk is away");
    store.change(|append| append).await;
    let conflict = a.add_and_commit("3").await.expect_err("moved");
    let current = store.entry().await.head.revision;
    assert!(matches!(conflict, StoreError::Conflict { current: of, .. } if of == current), "{conflict:?}");
    assert_eq!(a.lines(), ["1", "2", "of another process"]);
}

/// S8
#[test]
fn a_runtime_that_is_dropped_in_the_middle_loses_no_change() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let store = Watched::new();
    let first = runtime();
    let a = first.block_on(async {
        let a = Notes::open(&store, "a").await;
        store.fails([Fault::Hangs]);
        let commit = tokio::spawn({
            let a = Arc::clone(&a);
            async move { a.add_and_commit("1").await }
        });
        store.hangs.notified().await;
        a.add("2");
        drop(commit);
        a
    });
    drop(first);
    let revision = runtime().block_on(a.journal().commit()).expect("another writer");
    let (entry, lines) = runtime().block_on(async { (store.entry().await, store.lines().await) });
    assert_eq!((entry.head.revision, lines), (revision, vec!["1".to_owned(), "2".to_owned()]));

    // A commit of another runtime that waits meanwhile starts another writer.
    let first = runtime();
    store.fails([Fault::Hangs]);
    a.add("3");
    first.spawn({
        let a = Arc::clone(&a);
        async move { a.journal().commit().await }
    });
    first.block_on(store.hangs.notified());
    let mut commit = pin!(a.add_and_commit("4"));
    let second = runtime();
    let polled = second.block_on(poll_fn(|cx| Poll::Ready(commit.as_mut().poll(cx))));
    assert!(polled.is_pending());
    drop(first);
    second.block_on(commit).expect("another writer");
    assert_eq!(second.block_on(store.lines()).len(), 4);

    // Outside a runtime, nobody waits for ever.
    let error = a.add_and_commit("5").now_or_never().expect("at once").expect_err("no runtime");
    assert_eq!(error.to_string(), "the entry `order-17` cannot be stored");
    runtime().block_on(a.journal().commit()).expect("another writer");
    assert_eq!(runtime().block_on(store.lines()), ["1", "2", "3", "4", "5"]);
}

/// S8
#[tokio::test]
async fn an_owner_that_fails_or_panics_is_the_error_of_the_commits_and_the_next_one_goes_on() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    let claim = a.journal().claim().await.expect("a free entry");
    let failure = StoreError::failed("the notes cannot be written", "no ink");
    a.faults.lock().expect("a lock").extend([Some(failure), None]);
    for expected in ["the notes cannot be written", "the entry `order-17` cannot be stored: its owner has panicked"] {
        assert_eq!(a.add_and_commit(expected).await.expect_err("no ink").to_string(), expected);
    }
    a.faults.lock().expect("a lock").push_back(None);
    claim.release().await.expect_err("no ink");
    assert_eq!(store.entry().await.head.holder, None, "released nevertheless");
    a.journal().commit().await.expect("ink");
    assert_eq!(store.lines().await, a.lines());
}

/// S8
#[tokio::test]
async fn a_change_that_a_store_refuses_is_replaced_by_everything() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    a.add_and_commit("1").await.expect("a free entry");
    a.meta.lock().expect("a lock").insert("title".to_owned(), "x".repeat(70_000).into());
    assert!(matches!(a.add_and_commit("2").await, Err(StoreError::Invalid { .. })));
    a.meta.lock().expect("a lock").clear();
    a.journal().commit().await.expect("a valid head");
    assert_eq!(store.lines().await, ["1", "2"]);
}

/// S8
#[tokio::test]
async fn a_commit_without_a_claim_reads_an_entry_that_has_moved_and_is_made_again() {
    let store = Watched::new();
    let (a, b) = (Notes::open(&store, "a").await, Notes::open(&store, "b").await);
    a.add_and_commit("1").await.expect("a free entry");
    assert!(matches!(b.add_and_commit("b").await, Err(StoreError::Conflict { after: Revision::NONE, .. })));
    assert_eq!(b.lines(), ["1"]);
    b.add_and_commit("b").await.expect("read again");
    assert_eq!((store.lines().await, store.entry().await.head.holder), (vec!["1".to_owned(), "b".to_owned()], None));

    // A reader asks for the entry as it is stored, and a removed entry is an error.
    assert_eq!(a.lines(), ["1"]);
    assert_eq!(a.journal().refresh().await.expect("an entry"), b.journal().revision());
    assert_eq!((a.lines(), a.journal().revision()), (b.lines(), b.journal().revision()));
    store.remove(ID, a.journal().revision()).await.expect("the current revision");
    let removed = [
        a.journal().refresh().await.map(drop),
        a.add_and_commit("2").await.map(drop),
        b.journal().claim().await.map(drop),
    ];
    for error in removed {
        let error = error.expect_err("removed");
        assert!(matches!(error, StoreError::Conflict { current: Revision::NONE, .. }), "{error:?}");
    }
}

/// S9
#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_every_third_of_it_with_the_changes_that_wait_until_it_is_released() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    let began = tokio::time::Instant::now();
    let claim = a.journal().claim().await.expect("a free entry");
    store.appended.notified().await;
    for third in 1..=5 {
        a.add(third.to_string());
        store.appended.notified().await;
        assert_eq!(began.elapsed().as_secs(), third * 10);
        assert_eq!(store.lines().await.len() as u64, third);
    }
    // A store that fails meanwhile is asked again at the next third.
    store.fails([Fault::Fails; 2]);
    store.appended.notified().await;
    assert_eq!(began.elapsed().as_secs(), 70);
    store.tried();
    claim.release().await.expect("the claim");
    tokio::time::sleep(LEASE).await;
    assert_eq!(store.tried(), 1, "the release");
}

/// S9
#[tokio::test]
async fn the_last_claim_releases_the_entry_in_the_append_of_its_changes() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    let (first, second) = tokio::join!(a.journal().claim(), a.journal().claim());
    let (first, second) = (first.expect("free"), second.expect("shared"));
    assert_eq!(store.tried(), 1);
    a.add("1");
    first.release().await.expect("the claim");
    assert_ne!(store.entry().await.head.holder, None, "the second run has it");
    a.add("2");
    second.release().await.expect("the claim");
    assert_eq!((store.tried(), store.entry().await.head.holder, store.lines().await.len()), (2, None, 2));
}

/// S9
#[tokio::test]
async fn a_claim_that_is_dropped_is_released_also_one_that_nobody_has_received() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    drop(a.journal().claim().await.expect("a free entry"));
    settle().await;
    assert_eq!(store.entry().await.head.holder, None);
    assert!(a.journal().claim().now_or_never().is_none());
    settle().await;
    assert_eq!((store.entry().await.head.holder, store.tried()), (None, 4));
}

/// S10
#[tokio::test]
async fn parts_are_replaced_when_more_was_added_than_the_whole_had_also_after_they_were_read_again() {
    let store = Watched::new();
    let written = async |changes: usize| {
        let mut a = Notes::open(&store, "a").await;
        for n in 0..changes {
            if n % 10 == 0 {
                a = Notes::open(&store, "a").await;
            }
            // Three lines stand for a state that replaces the one before.
            let kept = a.lines().len().saturating_sub(3);
            a.lines.lock().expect("a lock").0.drain(..kept);
            let stored = a.lines().len();
            a.lines.lock().expect("a lock").1 = stored;
            a.add_and_commit("x".repeat(100_000)).await.expect("a free entry");
        }
        let appends = std::mem::take(&mut *store.appends.lock().expect("a lock"));
        let bytes: usize = appends.iter().flat_map(|append| &append.parts).map(Bytes::len).sum();
        let replaced = appends.iter().filter(|append| append.replaces).count();
        let stored: usize = store.entry().await.parts.iter().map(Bytes::len).sum();
        assert!(stored < 3 * 8 * 1024 * 1024, "{stored} bytes are stored after {changes} changes");
        (bytes, replaced)
    };
    let (few, _) = written(100).await;
    let (many, replaced) = written(1_000).await;
    assert!(replaced > 5 && many <= 11 * few, "{few} bytes for 100 changes, {many} for 1,000; {replaced} replaced");
}

#[tokio::test]
async fn a_line_of_any_length_is_stored() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    for bytes in [0, MAX_PART_BYTES, 3 * MAX_PART_BYTES + 1] {
        a.add_and_commit("x".repeat(bytes)).await.expect("parts");
    }
    assert_eq!(store.lines().await, a.lines());
}

/// S7, S8: three journals of one entry, with lost replies and a store that fails at random.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_line_whose_commit_has_returned_is_stored_once_and_between_claim_and_release_nobody_else_adds() {
    for seed in 0..20 {
        let store = Watched::new();
        let mut random = fastrand::Rng::with_seed(seed);
        let faults = [Fault::Fails, Fault::LosesReply];
        let workers = (0..3).map(|worker| {
            let (store, mut random) = (Arc::clone(&store), random.fork());
            tokio::spawn(async move {
                let notes = Notes::open(&store, &worker.to_string()).await;
                let mut known = Vec::new();
                for n in 0..60 {
                    if random.u8(0..4) == 0 {
                        store.fails((0..random.u8(1..4)).map(|_| faults[random.usize(0..2)]));
                    }
                    let line = format!("{worker}/{n}");
                    match notes.journal().claim().await {
                        Err(_) => tokio::task::yield_now().await,
                        Ok(claim) if random.bool() => {
                            notes.add(&line);
                            if claim.release().await.is_ok() {
                                known.push(line);
                            }
                        }
                        Ok(_claim) => {
                            if notes.add_and_commit(&line).await.is_ok() {
                                known.push(line);
                            }
                        }
                    }
                }
                (known, notes.losses())
            })
        });
        let results: Vec<_> = join_all(workers).await.into_iter().map(|result| result.expect("no panic")).collect();
        let lines = store.lines().await;
        for (known, losses) in results {
            assert_eq!(losses, 0, "no lease has run out, seed {seed}");
            for line in known {
                assert_eq!(lines.iter().filter(|stored| **stored == line).count(), 1, "{line} of seed {seed}");
            }
        }
        let mut once = lines.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), lines.len(), "a line is stored twice, seed {seed}: {lines:?}");
    }
}

/// S7
#[tokio::test(start_paused = true)]
async fn a_claim_that_waits_gets_the_entry_when_it_is_free_and_the_holder_after_one_lease() {
    let store = Watched::new();
    let (first, second) = (Notes::open(&store, "first").await, Notes::open(&store, "second").await);
    let claim = first.journal().claim().await.expect("free");
    let began = tokio::time::Instant::now();
    let held = second.journal().claim_when_free().await.expect_err("held");
    assert!(matches!(&held, StoreError::Held { holder, .. } if holder.by.starts_with("first ")), "{held}");
    assert!((LEASE..LEASE + LEASE / 3).contains(&began.elapsed()), "{:?}", began.elapsed());

    let (waits, released) = tokio::join!(second.journal().claim_when_free(), claim.release());
    released.expect("released");
    drop(waits.expect("free"));
}

/// F4
#[tokio::test(start_paused = true)]
async fn a_holder_takes_what_others_post_within_a_second_and_once() {
    let store = Watched::new();
    let (a, b) = (Notes::open(&store, "a").await, Notes::open(&store, "b").await);
    let claim = a.journal().claim().await.expect("a free entry");
    let post = Post::new("from b");
    assert_eq!(b.journal().post(&post).await.expect("a post"), Posted::Kept);
    assert_eq!(b.journal().post(&post).await.expect("repeated"), Posted::Kept);
    assert_eq!(store.entry().await.head.posts, 1);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!((store.entry().await.head.posts, store.lines().await), (0, vec!["from b".to_owned()]));

    let revision = a.journal().revision();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(a.journal().revision(), revision, "to look for posts changes nothing");
    claim.release().await.expect("the claim");
    assert_eq!(store.lines().await, ["from b"]);
}

/// F4
#[tokio::test(start_paused = true)]
async fn a_post_stays_in_the_store_until_the_change_that_has_it_is_there() {
    let store = Watched::new();
    let (a, b) = (Notes::open(&store, "a").await, Notes::open(&store, "b").await);
    let claim = a.journal().claim().await.expect("a free entry");
    let failure = StoreError::failed("the notes cannot be written", "no ink");
    a.faults.lock().expect("a lock").push_back(Some(failure));
    b.journal().post(&Post::new("from b")).await.expect("a post");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(a.lines(), ["from b"]);
    assert_eq!((store.entry().await.head.posts, store.lines().await), (1, Vec::new()));
    // The next append has it.
    a.journal().confirm().await.expect("ink");
    assert_eq!((store.entry().await.head.posts, store.lines().await), (0, a.lines()));
    claim.release().await.expect("ink");
}

/// F4
#[tokio::test]
async fn a_post_whose_owner_is_gone_before_its_change_is_stored_waits_for_the_next_one() {
    let store = Watched::new();
    let (a, b) = (Notes::open(&store, "a").await, Notes::open(&store, "b").await);
    a.add_and_commit("1").await.expect("a free entry");
    b.journal().post(&Post::new("from b")).await.expect("a post");
    a.journal().refresh().await.expect("a store");
    assert_eq!(a.lines(), ["1", "from b"]);
    let journal = a.journal().clone();
    drop(a);
    journal.commit().await.expect("nothing to store");
    assert_eq!((store.entry().await.head.posts, store.lines().await), (1, vec!["1".to_owned()]));
    let next = Notes::open(&store, "c").await;
    next.journal().refresh().await.expect("a store");
    next.journal().commit().await.expect("a free entry");
    assert_eq!((store.entry().await.head.posts, store.lines().await), (0, vec!["1".to_owned(), "from b".to_owned()]));
}

/// F4
#[tokio::test]
async fn the_holder_has_taken_its_own_post_when_it_returns() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    let claim = a.journal().claim().await.expect("a free entry");
    assert_eq!(a.journal().post(&Post::new("own").key("one")).await.expect("a post"), Posted::Kept);
    assert_eq!((a.lines(), store.lines().await), (vec!["own".to_owned()], vec!["own".to_owned()]));
    let second = a.journal().post(&Post::new("late").key("one")).await.expect("a post");
    assert!(matches!(second, Posted::Refused(first) if first.body.is_empty()), "it was taken");
    claim.release().await.expect("the claim");
}

/// F4
#[tokio::test]
async fn a_claim_and_a_commit_take_what_was_posted_before_them() {
    let store = Watched::new();
    let (a, b) = (Notes::open(&store, "a").await, Notes::open(&store, "b").await);
    a.add_and_commit("1").await.expect("a free entry");
    b.journal().post(&Post::new("2")).await.expect("a post");
    let claim = a.journal().claim().await.expect("a free entry");
    assert_eq!((a.lines(), store.lines().await), (a.lines(), vec!["1".to_owned(), "2".to_owned()]));
    claim.release().await.expect("the claim");

    b.journal().post(&Post::new("3")).await.expect("a post");
    a.add("lost");
    let conflict = a.journal().commit().await;
    assert!(matches!(conflict, Err(StoreError::Conflict { .. })), "{conflict:?}");
    a.add_and_commit("4").await.expect("a free entry");
    assert_eq!(store.lines().await, ["1", "2", "3", "4"]);
}

/// F4
#[tokio::test]
async fn what_is_posted_while_a_release_has_an_unknown_outcome_is_not_passed_over() {
    let store = Watched::new();
    let a = Notes::open(&store, "a").await;
    let claim = a.journal().claim().await.expect("a free entry");
    store.fails([Fault::LosesReply, Fault::Fails]);
    a.add("1");
    assert!(matches!(claim.release().await, Err(StoreError::Failed { .. })));
    store.post(ID, &Post::new("2")).await.expect("a post");
    // The repeated release returns the revision that the post has made.
    let conflict = a.add_and_commit("lost").await;
    assert!(matches!(conflict, Err(StoreError::Conflict { .. })), "{conflict:?}");
    a.add_and_commit("3").await.expect("a free entry");
    assert_eq!(store.lines().await, ["1", "2", "3"]);
}

/// F4
#[tokio::test]
async fn of_1_000_posts_against_claims_and_releases_each_is_taken_once_and_in_order() {
    let store = Watched::new();
    let (a, b) = (Notes::open(&store, "a").await, Notes::open(&store, "b").await);
    a.add_and_commit("begin").await.expect("a free entry");
    let posts = tokio::spawn(async move {
        for n in 0..1_000 {
            b.journal().post(&Post::new(n.to_string())).await.expect("a post");
            tokio::task::yield_now().await;
        }
    });
    while !posts.is_finished() {
        let claim = a.journal().claim().await.expect("a free entry");
        tokio::task::yield_now().await;
        claim.release().await.expect("the claim");
    }
    posts.await.expect("no panic");
    a.journal().claim().await.expect("a free entry").release().await.expect("the claim");
    let expected: Vec<_> = ["begin".to_owned()].into_iter().chain((0..1_000).map(|n| n.to_string())).collect();
    assert_eq!(store.lines().await, expected);
}
