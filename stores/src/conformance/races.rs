//! Several tasks, and futures that are dropped.

use std::sync::Arc;

use emitree_middleware::store::{Append, EntryStatus, Revision, StoreError};
use futures_util::future::{FutureExt, try_join_all};
use serde_json::json;

use super::{Shared, assert_entry, head, load, running};

const TASKS: usize = 50;

/// S2
pub(super) async fn of_50_appends_for_one_revision_one_wins(store: Shared) -> Result<(), StoreError> {
    let mut revision = Revision::NONE;
    let mut parts = Vec::new();
    for _ in 0..10 {
        let appends = (0..TASKS).map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { (n, store.append(&running("a", revision, n.to_string())).await) })
        });
        let results = try_join_all(appends).await.map_err(|error| StoreError::failed("a task panicked", error))?;
        let won: Vec<_> = results.iter().filter_map(|(n, result)| Some((n, *result.as_ref().ok()?))).collect();
        let [(winner, after)] = won[..] else {
            assert_eq!(won.len(), 1, "exactly one append for revision {revision} wins: {results:?}");
            break;
        };
        for (_, result) in results.iter().filter(|(n, _)| n != winner) {
            let is_conflict = matches!(result, Err(StoreError::Conflict { current, .. }) if *current == after);
            assert!(is_conflict, "the others learn the revision {after} of the winner: {result:?}");
        }
        parts.push(winner.to_string());
        revision = after;
        assert_entry(&store, "a", revision, &parts.iter().map(String::as_bytes).collect::<Vec<_>>()).await?;
    }
    Ok(())
}

/// S1, S3
pub(super) async fn an_append_whose_future_was_dropped_is_whole_or_absent(store: Shared) -> Result<(), StoreError> {
    let mut revision = Revision::NONE;
    let mut count = 0;
    for n in 0..100 {
        let part = vec![b'x'; n * 1_000];
        let dropped = running("a", revision, part.clone()).part(part);
        // Not polled at all, or once.
        let mut future = store.append(&dropped);
        if n % 3 > 0 {
            let _: Option<_> = (&mut future).now_or_never();
        }
        drop(future);
        if n % 2 == 0 {
            revision = store.append(&dropped).await?;
            count += 2;
        } else {
            // Exactly one of the two is applied: the append that was dropped, or the next one.
            match store.append(&running("a", revision, "next")).await {
                Ok(next) => (revision, count) = (next, count + 1),
                Err(StoreError::Conflict { current, .. }) => (revision, count) = (current, count + 2),
                Err(other) => return Err(other),
            }
        }
        let entry = load(&store, "a").await?;
        assert_eq!((entry.head.revision, entry.parts.len()), (revision, count));
    }
    Ok(())
}

/// S1
pub(super) async fn readers_receive_whole_appends(store: Shared) -> Result<(), StoreError> {
    let writer = {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let mut revision = Revision::NONE;
            for n in 1..=50 {
                let mut head = head("a", EntryStatus::Running, revision);
                head.meta.insert("parts".to_owned(), json!(3 * n));
                let append = Append::new(head).part("1").part("2").part("3");
                revision = store.append(&append).await?;
            }
            Ok::<_, StoreError>(())
        })
    };
    while !writer.is_finished() {
        if let Some(entry) = store.load("a").await? {
            assert_eq!(entry.head.meta["parts"], entry.parts.len(), "a head and its parts are of one append");
        }
        tokio::task::yield_now().await;
    }
    writer.await.map_err(|error| StoreError::failed("a task panicked", error))?
}
