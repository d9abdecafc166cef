//! Lists of heads (S4).

use emitree_middleware::store::{Append, EntryStatus, Filter, Revision, StoreError};
use futures_util::future::try_join_all;

use super::{Shared, head, load};

const STATUSES: [EntryStatus; 5] =
    [EntryStatus::Running, EntryStatus::Waiting, EntryStatus::Paused, EntryStatus::Ended, EntryStatus::Failed];

/// S4
pub(super) async fn a_list_has_the_heads_with_a_status_in_the_order_of_their_ids(
    store: Shared,
) -> Result<(), StoreError> {
    // In the order of bytes: upper case before lower case, and `é` behind all ASCII.
    let ids = ["A", "B", "a", "a b", "a/1", "a1", "b", "é"];
    for (n, id) in ids.into_iter().enumerate().rev() {
        store.append(&Append::new(head(id, STATUSES[n % 5], Revision::NONE))).await?;
    }
    let table: [(Filter, &[&str]); 9] = [
        (Filter::of(STATUSES), &ids),
        (Filter::of([]), &[]),
        (Filter::waiting(), &["B", "b"]),
        (Filter::unfinished(), &["A", "B", "a", "a1", "b", "é"]),
        (Filter::unfinished().limit(3), &["A", "B", "a"]),
        (Filter::unfinished().after("a").limit(2), &["a1", "b"]),
        (Filter::of(STATUSES).after("a!"), &["a/1", "a1", "b", "é"]),
        (Filter::of(STATUSES).limit(0), &[]),
        (Filter::of(STATUSES).after("é"), &[]),
    ];
    for (filter, expected) in table {
        let heads = store.list(&filter).await?;
        assert_eq!(heads.iter().map(|head| &*head.id).collect::<Vec<_>>(), expected, "{filter:?}");
        for head in heads {
            assert_eq!(store.load(&head.id).await?.map(|entry| entry.head), Some(head), "a list has the stored heads");
        }
    }
    Ok(())
}

/// S4
pub(super) async fn pages_have_each_of_3_000_entries_once_while_others_change(store: Shared) -> Result<(), StoreError> {
    let id = |n: usize| format!("entry-{n:04}");
    for chunk in (0..3_000).collect::<Vec<_>>().chunks(500) {
        let appends: Vec<_> =
            chunk.iter().map(|&n| Append::new(head(&id(n), STATUSES[n % 5], Revision::NONE))).collect();
        try_join_all(appends.iter().map(|append| store.append(append))).await?;
    }
    let mut expected: Vec<_> = (0..3_000).filter(|n| STATUSES[n % 5] == EntryStatus::Waiting).map(id).collect();
    let mut listed = Vec::new();
    let mut page = Filter::waiting().limit(70);
    let mut pages = 0;
    loop {
        let heads = store.list(&page).await?;
        let Some(last) = heads.last() else { break };
        assert!(heads.len() <= 70, "a page of at most 70 entries has {}", heads.len());
        page = page.after(&last.id);
        listed.extend(heads.into_iter().map(|head| head.id));
        // An entry that was passed starts to wait, and one that was not listed yet no longer waits.
        for (n, status) in [(pages * 5, EntryStatus::Waiting), (2_996 - pages * 5, EntryStatus::Ended)] {
            let entry = load(&store, &id(n)).await?;
            expected.retain(|waiting| *waiting != entry.head.id || listed.contains(waiting));
            store.append(&Append::new(head(&id(n), status, entry.head.revision))).await?;
        }
        pages += 1;
    }
    let first = listed.iter().zip(&expected).find(|(listed, expected)| listed != expected);
    assert_eq!((first, listed.len()), (None, expected.len()), "the listed and the expected id that differ first");
    Ok(())
}
