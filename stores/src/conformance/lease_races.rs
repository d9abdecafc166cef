//! A holder that renews its lease as it ends, against a worker that takes the entry (F1).

use std::sync::Arc;
use std::time::Duration;

use emitree_middleware::store::{Append, EntryHead, Revision, StoreError};

use super::work::{LONG, queued, take};
use super::{Shared, assert_entry, load};

/// The number of leases that end while they are renewed.
const ROUNDS: usize = 100;

/// F1, S3
pub(super) async fn as_a_lease_ends_it_is_renewed_or_the_entry_is_taken(store: Shared) -> Result<(), StoreError> {
    let mut revision = store.append(&queued("a", "q")).await?;
    let mut renewals = Vec::new();
    let mut takes = 0;
    let mut lease = Duration::from_millis(1);
    for round in 0..ROUNDS {
        let held = store.append(&after(revision).by("h").holding(lease)).await?;
        let renewal = after(held).part(round.to_string()).by("h").holding(LONG);
        let take = take("w", ["q"]);
        let mut taken = store.take(&take).await?;
        let renewal = {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.append(&renewal).await })
        };
        loop {
            // Once more after the renewal, which a worker must not take.
            let is_last = renewal.is_finished();
            taken.extend(store.take(&take).await?);
            if is_last {
                break;
            }
            tokio::task::yield_now().await;
        }
        let renewed = renewal.await.map_err(|error| StoreError::failed("a task panicked", error))?;
        let (by, at) = winner(round, &renewed, &taken);
        let found = load(&store, "a").await?.head;
        assert_eq!((found.holder.map(|holder| holder.by).as_deref(), found.revision), (Some(by), at), "round {round}");
        // However fast the store is, the next lease ends nearer to its renewal.
        if by == "h" {
            renewals.push(round.to_string());
            lease = lease * 3 / 4;
        } else {
            takes += 1;
            lease = lease * 5 / 4 + Duration::from_micros(1);
        }
        revision = store.append(&after(at).by(by)).await?;
    }
    assert!(takes > 0 && takes < ROUNDS, "{takes} of {ROUNDS} entries were taken, so no lease ended at its renewal");
    assert_entry(&store, "a", revision, &renewals.iter().map(String::as_bytes).collect::<Vec<_>>()).await
}

/// Changes the entry after a revision.
fn after(revision: Revision) -> Append {
    let mut append = queued("a", "q");
    append.head.revision = revision;
    append
}

/// Returns the process that holds the entry after a round, and the revision that it was told. The other one was told
/// that it does not.
#[expect(clippy::panic, reason = "this is a test")]
fn winner(round: usize, renewed: &Result<Revision, StoreError>, taken: &[EntryHead]) -> (&'static str, Revision) {
    match (renewed, taken) {
        (Ok(revision), []) => ("h", *revision),
        (Err(StoreError::Held { holder, .. }), [head]) if holder.by == "w" => ("w", head.revision),
        both => panic!("of a renewal and a take one wins round {round}: {both:?}"),
    }
}
