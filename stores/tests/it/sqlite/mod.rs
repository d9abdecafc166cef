//! The store in a SQLite file (S1 to S6).

pub(crate) mod failures;
mod values;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use emitree_middleware::store::{Append, EntryHead, Filter, Revision, Store};
use emitree_stores::{SqliteStore, conformance};
use futures_util::future::{FutureExt, try_join_all};
use tempfile::TempDir;

use super::in_turn::InTurn;
use super::repeats;

async fn open(path: impl AsRef<Path>) -> SqliteStore {
    SqliteStore::open(path).await.expect("a store")
}

fn append(id: &str, after: Revision) -> Append {
    let mut head = EntryHead::new(id, "job");
    head.revision = after;
    Append::new(head).part(format!("after {after}"))
}

/// Returns a path in a folder that no test has used.
fn new_path(folder: &TempDir) -> std::path::PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    folder.path().join(format!("{}.db", NEXT.fetch_add(1, Ordering::Relaxed)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_in_a_file_keeps_the_contract() {
    let folder = tempfile::tempdir().expect("a folder");
    // In the long form, 1,000 leases end while they are renewed, half of them in the test below.
    for _ in 0..repeats(5) {
        conformance(async || open(new_path(&folder)).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_connections_to_one_file_keep_the_contract_together() {
    let folder = tempfile::tempdir().expect("a folder");
    for _ in 0..repeats(5) {
        conformance(async || {
            let path = new_path(&folder);
            InTurn::new([open(&path).await, open(&path).await])
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stores_that_open_a_new_file_at_once_share_its_entries() {
    let folder = tempfile::tempdir().expect("a folder");
    for _ in 0..10 {
        let path = new_path(&folder);
        let stores = (0..8).map(|n| {
            let path = path.clone();
            tokio::spawn(async move {
                let store = open(path).await;
                store.append(&append(&n.to_string(), Revision::NONE)).await.expect("stored");
                store
            })
        });
        let stores = try_join_all(stores).await.expect("no panic");
        for store in stores {
            assert_eq!(store.list(&Filter::unfinished()).await.expect("a list").len(), 8);
        }
    }
}

/// S6
#[tokio::test]
async fn appends_that_were_sent_are_made_although_their_futures_and_the_store_are_dropped() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = new_path(&folder);
    let store = open(&path).await;
    let appends: Vec<_> = (0..100).map(|n| append(&format!("{n:02}"), Revision::NONE)).collect();
    let mut futures: Vec<_> = appends.iter().map(|append| store.append(append)).collect();
    for future in &mut futures {
        assert!(future.now_or_never().is_none(), "the thread has not answered");
    }
    drop(futures);
    // A request of this store is handled after them.
    assert_eq!(store.list(&Filter::unfinished()).await.expect("a list").len(), 100);
    drop(store);
    assert_eq!(open(&path).await.list(&Filter::unfinished()).await.expect("a list").len(), 100);
}

#[tokio::test]
async fn a_name_that_is_special_for_sqlite_is_the_name_of_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in [":memory:", "file:a.db?mode=memory"] {
        let path = folder.path().join(name);
        open(&path).await.append(&append("a", Revision::NONE)).await.expect("stored");
        assert!(path.is_file(), "{name}");
        assert!(open(&path).await.load("a").await.expect("loaded").is_some(), "{name}");
    }
    let error = SqliteStore::open("").await.expect_err("an empty path").to_string();
    assert_eq!(error, "`` is not a path of a file");
}
