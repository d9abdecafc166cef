//! The claim of an entry: two stores stand for two processes (S7).

use std::sync::Arc;
use std::sync::Weak;

use emitree_middleware::store::{Change, Entry, EntryHead, Journal, Journaled, Lease, Post, Store, StoreError};
use emitree_stores::SqliteStore;
use uuid::Uuid;

use super::postgres::server;

/// An owner that has nothing to store.
struct Nothing;

impl Journaled for Nothing {
    fn change(&self, _: bool) -> Result<Option<Change>, StoreError> {
        Ok(None)
    }

    fn reload(&self, _: &Entry) -> Result<(), StoreError> {
        Ok(())
    }

    fn take(&self, posts: &[Post]) -> Vec<Uuid> {
        posts.iter().map(|post| post.id).collect()
    }

    fn lost(&self, error: &StoreError) {
        panic!("{error}");
    }
}

fn journal(store: &(impl Store + Clone), by: &str) -> Journal {
    let owner: Weak<dyn Journaled> = Weak::<Nothing>::new();
    Journal::new(Arc::new(store.clone()), EntryHead::new("a", "test"), 0, &Lease::new().by(by), owner)
}

/// Two journals claim an entry at the same time, again and again.
async fn race(one: impl Store + Clone, other: impl Store + Clone, races: usize) {
    let (a, b) = (journal(&one, "a"), journal(&other, "b"));
    let mut wins = [0, 0];
    for n in 0..races {
        let race = |journal: &Journal| {
            let journal = journal.clone();
            tokio::spawn(async move { journal.claim().await })
        };
        // Each begins every other race.
        let (first, second) = if n % 2 == 0 { (race(&a), race(&b)) } else { (race(&b), race(&a)) };
        let (first, second) = (first.await.expect("no panic"), second.await.expect("no panic"));
        let winner = one.load("a").await.expect("a store").expect("an entry").head.holder.expect("a holder");
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
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_1_000_races_of_two_connections_for_a_claim_one_wins_and_the_other_gets_holder_and_time() {
    let folder = tempfile::tempdir().expect("a folder");
    // The races need no disk.
    let open = || SqliteStore::open_with(folder.path().join("agents.db"), "PRAGMA synchronous = OFF");
    race(open().await.expect("a store"), open().await.expect("a store"), 1_000).await;
}

/// S7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_200_races_of_two_processes_on_a_server_for_a_claim_one_wins() {
    let Some(url) = server::shared() else { return };
    let connect = server::connect(&url);
    race(connect.clone().await.expect("a store"), connect.await.expect("a store"), 200).await;
}
