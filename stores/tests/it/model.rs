//! Random changes of a store, compared with a small model (S1 to S4).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use emitree_middleware::store::{
    Append, EntryHead, EntryStatus, Filter, Holder, MemoryStore, Post, Posted, Revision, Store, StoreError, Take,
};
use emitree_stores::SqliteStore;
use proptest::prelude::*;

use super::place::Place;

/// One change, or a list. `back` counts how many revisions ago the author has read the entry.
#[derive(Clone, Debug)]
enum Step {
    Append {
        entry: usize,
        back: usize,
        status: usize,
        parts: usize,
        replaces: bool,
        hides: bool,
        by: usize,
        due: bool,
        takes: usize,
    },
    /// A post with a key from 1 on, or without one. `again` counts how many posts of the entry ago it was first sent.
    Post {
        entry: usize,
        key: usize,
        queue: bool,
        again: Option<usize>,
    },
    Take {
        by: usize,
        most: usize,
    },
    Repeat {
        entry: usize,
        back: usize,
    },
    Remove {
        entry: usize,
        back: usize,
    },
    List {
        statuses: u8,
        after: usize,
        limit: usize,
    },
    Reopen,
}

const IDS: [&str; 3] = ["a", "a/1", "b"];
/// The processes. Those from `HOLDING` on hold what they change.
const NAMES: [&str; 6] = ["", "a", "b", "c", "a", "b"];
const HOLDING: usize = 4;
const QUEUE: &str = "q";
const LEASE: Duration = Duration::from_secs(600);
const STATUSES: [EntryStatus; 6] = [
    EntryStatus::Queued,
    EntryStatus::Running,
    EntryStatus::Waiting,
    EntryStatus::Paused,
    EntryStatus::Ended,
    EntryStatus::Failed,
];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Most authors have read the last revision.
    let entry_and_back = || (0..IDS.len(), prop_oneof![4 => Just(0), 1 => 1..4_usize]);
    let step = prop_oneof![
        8 => (entry_and_back(), 0..STATUSES.len(), 0..3_usize, any::<[bool; 3]>(), 0..NAMES.len(), 0..4_usize).prop_map(
            |((entry, back), status, parts, [replaces, hides, due], by, takes)| {
                Step::Append { entry, back, status, parts, replaces, hides, by, due, takes }
            }
        ),
        4 => (0..IDS.len(), 0..3_usize, any::<bool>(), prop_oneof![3 => Just(None), 1 => (0..3_usize).prop_map(Some)])
            .prop_map(|(entry, key, queue, again)| Step::Post { entry, key, queue, again }),
        1 => (1..NAMES.len(), 0..3_usize).prop_map(|(by, most)| Step::Take { by, most }),
        2 => entry_and_back().prop_map(|(entry, back)| Step::Repeat { entry, back }),
        1 => entry_and_back().prop_map(|(entry, back)| Step::Remove { entry, back }),
        1 => (any::<u8>(), 0..=IDS.len(), 0..4_usize)
            .prop_map(|(statuses, after, limit)| Step::List { statuses, after, limit }),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..40)
}

#[derive(Default)]
struct Model {
    entries: BTreeMap<&'static str, (EntryHead, Vec<String>)>,
    /// The parts that are hidden.
    older: BTreeMap<&'static str, Vec<String>>,
    /// All appends for an entry, also those that were refused.
    appends: BTreeMap<&'static str, Vec<Append>>,
    /// The id of the append that made the revision of an entry.
    last: BTreeMap<&'static str, Append>,
    /// All posts for an entry, also those that were refused.
    sent: BTreeMap<&'static str, Vec<Post>>,
    /// The posts that an entry has, and the ids of those that were taken.
    posts: BTreeMap<&'static str, (Vec<Post>, BTreeSet<uuid::Uuid>)>,
    /// The entries that are due and not held, the first ones first.
    due: Vec<&'static str>,
    /// The revisions that an entry has had, and the first that it never has.
    revisions: BTreeMap<&'static str, Vec<Revision>>,
}

impl Model {
    fn current(&self, id: &str) -> Revision {
        self.entries.get(id).map_or(Revision::NONE, |(head, _)| head.revision)
    }

    /// Returns a revision of the past: the current one for 0.
    fn revision(&self, id: &str, back: usize) -> Revision {
        let past = self.revisions.get(id).map_or(&[][..], |revisions| revisions);
        if back == 0 { self.current(id) } else { past.iter().rev().nth(back).copied().unwrap_or(Revision::NONE) }
    }

    async fn append(&mut self, store: &impl Store, id: &'static str, append: &Append) {
        let (result, current) = (store.append(append).await, self.current(id));
        let is_taken = append.lease.is_some() && self.holder(id).is_some_and(|by| by != append.by);
        let is_last = self.entries.contains_key(id) && self.last.get(id).is_some_and(|last| last.id == append.id);
        let is_repeated = is_last && !is_taken;
        if is_repeated {
            assert_eq!(result.expect("a repeated append"), current);
        } else if let Some(by) = self.holder(id).filter(|by| *by != append.by) {
            match result {
                Err(StoreError::Held { holder, .. }) => assert_eq!(holder.by, by),
                other => panic!("the holder {by}: {other:?}"),
            }
        } else if append.head.revision == current {
            let revision = result.expect("an append for the current revision");
            self.has_revision(id, revision);
            let mut head = append.head.clone();
            head.revision = revision;
            head.holder = append.lease.map(|_| Holder { by: append.by.clone(), until: SystemTime::UNIX_EPOCH });
            self.due.retain(|due| *due != id);
            let (before, mut parts) = self.entries.remove(id).unwrap_or((head.clone(), Vec::new()));
            head.queue = head.queue.or(before.queue);
            let older = self.older.entry(id).or_default();
            if append.replaces {
                older.clear();
            }
            if append.hides_older {
                older.append(&mut parts);
            }
            if append.replaces {
                parts.clear();
            }
            parts.extend(append.parts.iter().map(|part| String::from_utf8(part.to_vec()).expect("a text")));
            let is_due = append.lease.is_none() && append.due.is_some();
            self.entries.insert(id, (head, parts));
            if is_due {
                self.is_due(id);
            }
            self.last.insert(id, append.clone());
            let (posts, taken) = self.posts.entry(id).or_default();
            taken.extend(posts.iter().map(|post| post.id).filter(|id| append.takes.contains(id)));
            if append.lease.is_none() && posts.len() > taken.len() {
                self.is_changed(store, id).await;
                self.is_due(id);
            }
        } else {
            assert_conflict(result, append.head.revision, current);
        }
    }

    /// Lets workers take an entry after the others, if it has a queue, and is not due already.
    fn is_due(&mut self, id: &'static str) {
        let has_queue = self.entries.get(id).is_some_and(|(head, _)| head.queue.is_some());
        if has_queue && !self.due.contains(&id) {
            self.due.push(id);
        }
    }

    /// Reads the revision that an entry has got by a post.
    async fn is_changed(&mut self, store: &impl Store, id: &'static str) {
        let revision = store.load(id).await.expect("a store").expect("an entry").head.revision;
        self.has_revision(id, revision);
        self.entries.get_mut(id).expect("an entry").0.revision = revision;
    }

    async fn post(&mut self, store: &impl Store, id: &'static str, post: &Post) {
        let result = store.post(id, post).await;
        let is_held = self.holder(id).is_some();
        let Some((head, _)) = self.entries.get_mut(id) else {
            return assert_conflict(result, Revision::NONE, Revision::NONE);
        };
        let (posts, taken) = self.posts.entry(id).or_default();
        if posts.iter().any(|known| known.id == post.id) {
            return assert_eq!(result.expect("a repeated post"), Posted::Kept);
        }
        // There is one queue.
        let first = posts.iter().find(|known| post.key.is_some() && known.key == post.key);
        if let Some(first) = first {
            let mut first = first.clone();
            first.queue = None;
            if taken.contains(&first.id) {
                first.body.clear();
            }
            return assert_eq!(result.expect("a post with a known key"), Posted::Refused(first));
        }
        assert_eq!(result.expect("a post"), Posted::Kept);
        posts.push(post.clone());
        head.queue = head.queue.take().or_else(|| post.queue.clone());
        if is_held {
            return;
        }
        let ends = [EntryStatus::Ended, EntryStatus::Failed, EntryStatus::Paused];
        if post.queue.is_some() && ends.contains(&head.status) {
            head.status = EntryStatus::Queued;
        }
        self.is_changed(store, id).await;
        self.is_due(id);
    }

    fn holder(&self, id: &str) -> Option<String> {
        Some(self.entries.get(id)?.0.holder.as_ref()?.by.clone())
    }

    fn has_revision(&mut self, id: &'static str, revision: Revision) {
        let revisions = self.revisions.entry(id).or_default();
        assert!(revisions.iter().all(|before| *before < revision), "{revision} of {revisions:?}");
        revisions.push(revision);
    }

    async fn take(&mut self, store: &impl Store, by: &str, most: usize) {
        let taken = store.take(&Take::new(by, LEASE, [QUEUE]).most(most)).await.expect("entries");
        let ids: Vec<_> = taken.iter().map(|head| &*head.id).collect();
        assert_eq!(ids, self.due[..most.min(self.due.len())]);
        for head in taken {
            let id = self.due.remove(0);
            self.has_revision(id, head.revision);
            let (before, _) = self.entries.get_mut(id).expect("an entry");
            before.revision = head.revision;
            before.attempts += 1;
            before.posts = self.posts.get(id).map_or(0, |(posts, taken)| (posts.len() - taken.len()) as u32);
            before.holder = Some(Holder { by: by.to_owned(), until: SystemTime::UNIX_EPOCH });
            assert_eq!(timeless(head), *before);
        }
    }

    async fn step(&mut self, store: &impl Store, n: usize, step: Step) {
        match step {
            Step::Take { by, most } => self.take(store, NAMES[by], most).await,
            Step::Post { entry, key, queue, again } => {
                let id = IDS[entry];
                let sent = self.sent.entry(id).or_default();
                let again = again.and_then(|again| sent.iter().rev().nth(again)).cloned();
                let post = again.unwrap_or_else(|| {
                    let mut post = Post::new(n.to_string());
                    post.key = (key > 0).then(|| key.to_string());
                    post.queue = queue.then(|| QUEUE.to_owned());
                    post
                });
                sent.push(post.clone());
                self.post(store, id, &post).await;
            }
            Step::Append { entry, back, status, parts, replaces, hides, by, due, takes } => {
                let id = IDS[entry];
                let mut head = EntryHead::new(id, "job");
                (head.status, head.revision) = (STATUSES[status], self.revision(id, back));
                head.queue = due.then(|| QUEUE.to_owned());
                head.attempts = self.entries.get(id).map_or(0, |(head, _)| head.attempts);
                let mut append = Append::new(head).by(NAMES[by]);
                (append.lease, append.due) = ((by >= HOLDING).then_some(LEASE), due.then_some(Duration::ZERO));
                (append.replaces, append.hides_older) = (replaces, hides);
                let sent = self.sent.get(id).map_or(&[][..], |sent| sent);
                append.takes = sent.iter().rev().take(takes).map(|post| post.id).collect();
                append = (0..parts).fold(append, |append, part| append.part(format!("{n}.{part}")));
                self.append(store, id, &append).await;
                self.appends.entry(id).or_default().push(append);
            }
            Step::Repeat { entry, back } => {
                let id = IDS[entry];
                let append = self.appends.get(id).and_then(|appends| appends.iter().rev().nth(back)).cloned();
                if let Some(append) = append {
                    self.append(store, id, &append).await;
                }
            }
            Step::Remove { entry, back } => {
                let (id, current, after) = (IDS[entry], self.current(IDS[entry]), self.revision(IDS[entry], back));
                let result = store.remove(id, after).await;
                if current == Revision::NONE || current == after {
                    result.expect("the removal");
                    self.entries.remove(id);
                    self.older.remove(id);
                    self.posts.remove(id);
                    self.due.retain(|due| *due != id);
                } else {
                    assert_conflict(result, after, current);
                }
            }
            Step::Reopen => {}
            Step::List { statuses, after, limit } => {
                let statuses = STATUSES.iter().enumerate().filter(|(n, _)| statuses & (1 << n) != 0);
                let mut filter = Filter::of(statuses.map(|(_, status)| *status)).limit(limit);
                filter.after = IDS.get(after).map(|id| (*id).to_owned());
                let after = filter.after.as_deref().unwrap_or("");
                let heads = self.entries.keys().filter_map(|id| Some(self.entry(id)?.0));
                let expected = heads.filter(|head| filter.statuses.contains(&head.status) && &*head.id > after);
                let expected: Vec<_> = expected.take(limit).collect();
                let found = store.list(&filter).await.expect("a list");
                assert_eq!(found.into_iter().map(timeless).collect::<Vec<_>>(), expected, "{filter:?}");
            }
        }
    }

    /// Returns the posts that wait in an entry, which name no queue.
    fn waiting(&self, id: &str) -> Vec<Post> {
        let Some((posts, taken)) = self.posts.get(id) else { return Vec::new() };
        let mut waiting: Vec<_> = posts.iter().filter(|post| !taken.contains(&post.id)).cloned().collect();
        waiting.iter_mut().for_each(|post| post.queue = None);
        waiting
    }

    /// Returns an entry with the number of its posts.
    fn entry(&self, id: &str) -> Option<(EntryHead, Vec<String>)> {
        let (mut head, parts) = self.entries.get(id).cloned()?;
        head.posts = self.waiting(id).len() as u32;
        Some((head, parts))
    }

    async fn assert_same(&self, store: &impl Store) {
        for id in IDS {
            let entry = store.load(id).await.expect("an entry");
            let found = entry.map(|entry| {
                let parts = entry.parts.iter().map(|part| String::from_utf8(part.to_vec()).expect("a text"));
                (timeless(entry.head), parts.collect())
            });
            assert_eq!(found, self.entry(id));
            let waiting = store.posts(id).await.expect("posts");
            assert_eq!(waiting, self.waiting(id));
            if let Some((head, _)) = found {
                let older = store.older_parts(id, head.revision).await.expect("parts");
                let older: Vec<_> = older.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect();
                assert_eq!(older, self.older.get(id).cloned().unwrap_or_default());
            }
        }
    }
}

/// Returns a head without the end of its lease.
fn timeless(mut head: EntryHead) -> EntryHead {
    head.holder.iter_mut().for_each(|holder| holder.until = SystemTime::UNIX_EPOCH);
    head
}

fn assert_conflict<T: std::fmt::Debug>(result: Result<T, StoreError>, after: Revision, current: Revision) {
    match result {
        Err(StoreError::Conflict { after: made_for, current: found, .. }) => {
            assert_eq!((made_for, found), (after, current));
        }
        other => panic!("a conflict with {current}: {other:?}"),
    }
}

/// Compares a store with the model after each step. `open` returns a store with the same entries each time.
async fn compare<S: Store>(open: impl AsyncFn() -> S, steps: Vec<Step>) {
    let (mut model, mut store) = (Model::default(), open().await);
    for (n, step) in steps.into_iter().enumerate() {
        match step {
            Step::Reopen => store = open().await,
            step => model.step(&store, n, step).await,
        }
        model.assert_same(&store).await;
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

proptest! {
    #[test]
    fn a_store_in_memory_is_as_the_model(steps in steps()) {
        let store = MemoryStore::new();
        runtime().block_on(compare(async || store.clone(), steps));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_store_in_a_file_is_as_the_model(steps in steps()) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("agents.db");
        let open = async || SqliteStore::open(&path).await.expect("a store");
        runtime().block_on(compare(open, steps));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn a_store_on_a_server_is_as_the_model(steps in steps()) {
        if let Some(place) = Place::server() {
            runtime().block_on(compare(async || place.open().await, steps));
        }
    }
}
