//! Random changes of a store, compared with a small model (S1 to S4).

use std::collections::BTreeMap;

use emitree_middleware::store::{Append, EntryHead, EntryStatus, Filter, MemoryStore, Revision, Store, StoreError};
use emitree_stores::SqliteStore;
use proptest::prelude::*;

/// One change, or a list. `back` counts how many revisions ago the author has read the entry.
#[derive(Clone, Debug)]
enum Step {
    Append { entry: usize, back: usize, status: usize, parts: usize, replaces: bool, hides: bool },
    Repeat { entry: usize, back: usize },
    Remove { entry: usize, back: usize },
    List { statuses: u8, after: usize, limit: usize },
    Reopen,
}

const IDS: [&str; 3] = ["a", "a/1", "b"];
const STATUSES: [EntryStatus; 5] =
    [EntryStatus::Running, EntryStatus::Waiting, EntryStatus::Paused, EntryStatus::Ended, EntryStatus::Failed];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Most authors have read the last revision.
    let entry_and_back = || (0..IDS.len(), prop_oneof![4 => Just(0), 1 => 1..4_usize]);
    let step = prop_oneof![
        6 => (entry_and_back(), 0..STATUSES.len(), 0..3_usize, any::<[bool; 2]>()).prop_map(
            |((entry, back), status, parts, [replaces, hides])| {
                Step::Append { entry, back, status, parts, replaces, hides }
            }
        ),
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
        let is_repeated = self.entries.contains_key(id) && self.last.get(id).is_some_and(|last| last.id == append.id);
        if is_repeated {
            assert_eq!(result.expect("a repeated append"), current);
        } else if append.head.revision == current {
            let revision = result.expect("an append for the current revision");
            let revisions = self.revisions.entry(id).or_default();
            assert!(revisions.iter().all(|before| *before < revision), "{revision} of {revisions:?}");
            revisions.push(revision);
            let mut head = append.head.clone();
            head.revision = revision;
            let (_, mut parts) = self.entries.remove(id).unwrap_or((head.clone(), Vec::new()));
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
            self.entries.insert(id, (head, parts));
            self.last.insert(id, append.clone());
        } else {
            assert_conflict(result, append.head.revision, current);
        }
    }

    async fn step(&mut self, store: &impl Store, n: usize, step: Step) {
        match step {
            Step::Append { entry, back, status, parts, replaces, hides } => {
                let id = IDS[entry];
                let mut head = EntryHead::new(id, "job");
                (head.status, head.revision) = (STATUSES[status], self.revision(id, back));
                let mut append = Append::new(head);
                (append.replaces, append.hides_older) = (replaces, hides);
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
                let heads = self.entries.values().map(|(head, _)| head.clone());
                let expected = heads.filter(|head| filter.statuses.contains(&head.status) && &*head.id > after);
                let expected: Vec<_> = expected.take(limit).collect();
                assert_eq!(store.list(&filter).await.expect("a list"), expected, "{filter:?}");
            }
        }
    }

    async fn assert_same(&self, store: &impl Store) {
        for id in IDS {
            let entry = store.load(id).await.expect("an entry");
            let found = entry.map(|entry| {
                let parts = entry.parts.iter().map(|part| String::from_utf8(part.to_vec()).expect("a text"));
                (entry.head, parts.collect())
            });
            assert_eq!(found, self.entries.get(id).cloned());
            if let Some((head, _)) = found {
                let older = store.older_parts(id, head.revision).await.expect("parts");
                let older: Vec<_> = older.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect();
                assert_eq!(older, self.older.get(id).cloned().unwrap_or_default());
            }
        }
    }
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
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
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
