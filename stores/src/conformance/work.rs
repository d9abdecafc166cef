//! Leases, and workers that take entries (F1).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use emitree_middleware::store::{Append, EntryHead, EntryStatus, Filter, Revision, StoreError, Take};
use futures_util::future::try_join_all;

use super::{Shared, assert_conflict, assert_entry, load, running};

pub(super) const LONG: Duration = Duration::from_secs(600);
pub(super) const SHORT: Duration = Duration::from_millis(50);

/// Appends an entry of a queue.
pub(super) fn queued(id: &str, queue: &str) -> Append {
    let mut head = EntryHead::new(id, "job");
    (head.status, head.queue) = (EntryStatus::Queued, Some(queue.to_owned()));
    Append::new(head)
}

pub(super) fn take<const N: usize>(by: &str, queues: [&str; N]) -> Take {
    Take::new(by, LONG, queues).most(10)
}

pub(super) async fn taken(store: &Shared, take: &Take) -> Result<Vec<String>, StoreError> {
    Ok(store.take(take).await?.into_iter().map(|head| head.id).collect())
}

pub(super) async fn holder(store: &Shared, id: &str) -> Result<Option<String>, StoreError> {
    Ok(load(store, id).await?.head.holder.map(|holder| holder.by))
}

/// Waits until nobody holds an entry.
pub(super) async fn released(store: &Shared, id: &str) -> Result<(), StoreError> {
    while holder(store, id).await?.is_some() {
        tokio::time::sleep(SHORT / 10).await;
    }
    Ok(())
}

pub(super) fn assert_held<T: std::fmt::Debug>(result: &Result<T, StoreError>, by: &str) {
    let holder = match result {
        Err(StoreError::Held { holder, .. }) => Some(&*holder.by),
        _ => None,
    };
    assert_eq!(holder, Some(by), "a change of an entry that `{by}` holds: {result:?}");
}

/// F6
pub(super) async fn the_clock_of_the_store_ends_its_leases(store: Shared) -> Result<(), StoreError> {
    let before = store.now().await?;
    store.append(&running("a", Revision::NONE, "1").by("a").holding(LONG)).await?;
    let after = store.now().await?;
    let until = load(&store, "a").await?.head.holder.map(|holder| holder.until);
    // A store may round times to milliseconds.
    let rounds = Duration::from_millis(1);
    let is_by_clock = until.is_some_and(|until| (before + LONG - rounds..=after + LONG + rounds).contains(&until));
    assert!(is_by_clock, "the lease from {before:?} to {after:?} ends at {until:?}");
    Ok(())
}

/// S3, F1
pub(super) async fn while_an_entry_is_held_only_its_holder_changes_it(store: Shared) -> Result<(), StoreError> {
    let first = running("a", Revision::NONE, "1").by("a").holding(LONG);
    let mut revision = store.append(&first).await?;
    assert_eq!(holder(&store, "a").await?.as_deref(), Some("a"));
    let listed = store.list(&Filter::of([EntryStatus::Running])).await?;
    assert_eq!(listed[0].holder.as_ref().map(|holder| &*holder.by), Some("a"), "a list has the holder");
    for other in ["b", ""] {
        assert_held(&store.append(&running("a", revision, "no").by(other)).await, "a");
        assert_held(&store.append(&running("a", Revision::NONE, "no").by(other)).await, "a");
        assert_held(&store.append(&running("a", revision, "no").by(other).replacing()).await, "a");
    }
    assert_eq!(store.append(&first).await?, revision, "an append that is repeated");
    revision = store.append(&running("a", revision, "2").by("a").holding(LONG)).await?;
    assert_held(&store.append(&running("a", revision, "no").by("b").holding(LONG)).await, "a");
    revision = store.append(&running("a", revision, "3").by("a")).await?;
    assert_eq!(holder(&store, "a").await?, None, "an append without a lease releases the entry");
    revision = store.append(&running("a", revision, "4").by("b").holding(LONG)).await?;
    assert_held(&store.append(&running("a", revision, "no").by("a")).await, "b");
    assert_entry(&store, "a", revision, &[b"1", b"2", b"3", b"4"]).await?;
    let nameless = store.append(&running("b", Revision::NONE, "1").holding(LONG)).await;
    assert!(matches!(nameless, Err(StoreError::Invalid { .. })), "a lease without a name: {nameless:?}");
    Ok(())
}

/// S3, F1
pub(super) async fn an_entry_whose_lease_is_over_is_held_by_nobody(store: Shared) -> Result<(), StoreError> {
    let first = store.append(&running("a", Revision::NONE, "1").by("a").holding(SHORT)).await?;
    released(&store, "a").await?;
    assert_eq!(store.list(&Filter::unfinished()).await?[0].holder, None, "a list has no holder");
    // A process that nobody has replaced goes on.
    let second = store.append(&running("a", first, "2").by("a").holding(SHORT)).await?;
    released(&store, "a").await?;
    let third = store.append(&running("a", second, "3").by("b").holding(LONG)).await?;
    assert_held(&store.append(&running("a", second, "no").by("a").holding(LONG)).await, "b");
    let fourth = store.append(&running("a", third, "4").by("b")).await?;
    assert_conflict(&store.append(&running("a", second, "no").by("a")).await, second, fourth);
    assert_entry(&store, "a", fourth, &[b"1", b"2", b"3", b"4"]).await
}

/// F1
pub(super) async fn workers_take_what_is_due_in_the_order_of_their_queues(store: Shared) -> Result<(), StoreError> {
    for (id, queue) in [("b", "first"), ("a", "first"), ("c", "second"), ("d", "third")] {
        store.append(&queued(id, queue).due(Duration::ZERO)).await?;
        // So that the entries are due one after another.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    store.append(&queued("later", "first").due(LONG)).await?;
    store.append(&queued("never", "first")).await?;
    store.append(&running("no queue", Revision::NONE, "1").due(Duration::ZERO)).await?;
    store.append(&queued("held", "first").due(Duration::ZERO).by("x").holding(LONG)).await?;
    let first = store.append(&queued("soon", "fourth").due(SHORT)).await?;

    assert_eq!(taken(&store, &take("w", ["second", "first"]).most(2)).await?, ["c", "b"], "queue by queue");
    assert_eq!(taken(&store, &take("w", ["second", "first"]).most(0)).await?, [""; 0], "at most 0");
    assert_eq!(taken(&store, &take("v", ["second", "first", "none"])).await?, ["a"], "what nobody holds");
    assert_eq!(taken(&store, &take("v", [])).await?, [""; 0], "no queues");
    let mut entry = load(&store, "a").await?;
    assert_eq!(holder(&store, "a").await?.as_deref(), Some("v"));
    assert_held(&store.append(&Append::new(entry.head.clone()).by("w")).await, "v");
    entry.head.revision = store.append(&Append::new(entry.head.clone()).by("v").holding(SHORT)).await?;
    released(&store, "a").await?;
    let renewal = Append::new(entry.head.clone()).by("v").holding(SHORT);
    store.append(&renewal).await?;
    released(&store, "a").await?;
    assert_eq!(taken(&store, &take("w", ["first"])).await?, ["a"], "an entry is due when its lease is over");
    assert_held(&store.append(&renewal).await, "w");
    let stale = Append::new(entry.head.clone()).by("v");
    assert_held(&store.append(&stale).await, "w");
    entry = load(&store, "a").await?;
    store.append(&Append::new(entry.head.clone()).by("w")).await?;
    assert!(matches!(store.append(&stale).await, Err(StoreError::Conflict { .. })), "to take is a change");
    assert_eq!(taken(&store, &take("w", ["first"])).await?, [""; 0], "released, and never due");

    let mut soon = Vec::new();
    while soon.is_empty() {
        soon = store.take(&take("w", ["fourth"])).await?;
        tokio::time::sleep(SHORT / 10).await;
    }
    assert_eq!((&*soon[0].id, soon[0].queue.as_deref()), ("soon", Some("fourth")));
    assert!(soon[0].revision > first);
    let entry = load(&store, "soon").await?;
    assert_eq!(entry.head.revision, soon[0].revision);
    assert_eq!((entry.head.status, soon[0].status), (EntryStatus::Queued, EntryStatus::Queued));
    Ok(())
}

/// F3, F7
pub(super) async fn attempts_are_counted_until_an_append_sets_them(store: Shared) -> Result<(), StoreError> {
    let first = queued("a", "q").due(Duration::ZERO).part("1");
    store.append(&first).await?;
    let mut head = only(&store).await?;
    assert_eq!(head.attempts, 1);
    assert_eq!(store.append(&first).await?, head.revision, "an append is found again after its entry was taken");
    head.revision = store.append(&Append::new(head.clone()).by("w").due(Duration::ZERO)).await?;
    assert_eq!(load(&store, "a").await?.head.attempts, 1);
    let mut head = only(&store).await?;
    assert_eq!(head.attempts, 2);
    head.attempts = 0;
    store.append(&Append::new(head).by("w").due(Duration::ZERO)).await?;
    assert_eq!(store.list(&Filter::unfinished()).await?[0].attempts, 0);
    assert_eq!(only(&store).await?.attempts, 1);
    Ok(())
}

/// Takes the only entry of the queue `q`.
async fn only(store: &Shared) -> Result<EntryHead, StoreError> {
    let mut taken = store.take(&take("w", ["q"])).await?;
    assert_eq!(taken.len(), 1, "{taken:?}");
    Ok(taken.remove(0))
}

/// F1
pub(super) async fn each_of_100_entries_is_taken_by_one_of_8_workers(store: Shared) -> Result<(), StoreError> {
    let ids: Vec<_> = (0..100).map(|n| format!("{n:03}")).collect();
    for id in &ids {
        store.append(&queued(id, "q").due(Duration::ZERO)).await?;
    }
    let workers = (0..8).map(|n| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let take = take(&format!("w{n}"), ["q"]).most(1 + n);
            let mut all = Vec::new();
            // One take may skip entries that other workers are about to take.
            for _ in 0..100 {
                all.extend(store.take(&take).await?.into_iter().map(|head| (head.id, head.holder)));
            }
            Ok::<_, StoreError>(all)
        })
    });
    let mut by_id: BTreeMap<String, usize> = BTreeMap::new();
    for taken in try_join_all(workers).await.map_err(|error| StoreError::failed("a task panicked", error))? {
        for (id, holder) in taken? {
            *by_id.entry(id.clone()).or_default() += 1;
            assert_eq!(load(&store, &id).await?.head.holder, holder);
        }
    }
    assert_eq!(by_id, ids.into_iter().map(|id| (id, 1)).collect(), "each entry is taken once");
    Ok(())
}

/// F9
pub(super) async fn workers_are_listed_for_their_leases(store: Shared) -> Result<(), StoreError> {
    assert_eq!(store.workers().await?, []);
    store.take(&take("b", ["q", "r"]).most(0)).await?;
    store.take(&Take::new("a", SHORT, ["s"])).await?;
    let listed = store.workers().await?;
    let names: Vec<_> = listed.iter().map(|worker| (&*worker.by, worker.queues.join(" "))).collect();
    // The short lease may be over already.
    assert!(names.ends_with(&[("b", "q r".to_owned())]), "{names:?}");
    while store.workers().await?.len() > 1 {
        tokio::time::sleep(SHORT / 10).await;
    }
    store.take(&take("b", ["t"]).most(0)).await?;
    assert_eq!(store.workers().await?[0].queues, ["t"], "the queues of the last call");
    store.take(&Take::new("b", Duration::ZERO, ["t"]).most(0)).await?;
    assert_eq!(store.workers().await?, [], "a lease of zero ends the listing");
    Ok(())
}
