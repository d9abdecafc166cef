//! Appends and removals, one after another.

use bytes::Bytes;
use emitree_middleware::store::{
    Append, EntryHead, EntryStatus, Filter, MAX_HEAD_BYTES, MAX_ID_BYTES, MAX_PART_BYTES, Revision, StoreError,
};
use serde_json::{Value, json};

use super::{Shared, assert_conflict, assert_entry, full_head, head, load, running};

/// S1
pub(super) async fn an_entry_is_read_as_it_was_appended(store: Shared) -> Result<(), StoreError> {
    assert_eq!(store.store_id(), store.store_id(), "a store keeps its id");
    assert_eq!(store.load("order-17").await?, None);
    let every_byte: Vec<u8> = (0..=255).collect();
    let parts = [Bytes::from_static(b""), Bytes::from(every_byte), Bytes::from_static("größe".as_bytes())];
    let mut expected = full_head("order-17/1 — größe");
    let append = parts.iter().fold(Append::new(expected.clone()), |append, part| append.part(part.clone()));
    expected.revision = store.append(&append).await?;
    assert!(expected.revision > Revision::NONE, "the revision of a stored entry is greater than 0");

    let entry = load(&store, &expected.id).await?;
    assert_eq!((&entry.head, &*entry.parts), (&expected, &parts[..]));
    assert_eq!(store.list(&Filter::waiting()).await?, [expected.clone()]);

    // A head replaces the whole head before it, except for the queue, and the parts stay.
    let mut bare = head(&expected.id, EntryStatus::Ended, expected.revision);
    bare.revision = store.append(&Append::new(bare.clone())).await?;
    bare.queue.clone_from(&expected.queue);
    let entry = load(&store, &expected.id).await?;
    assert_eq!((entry.head, &*entry.parts), (bare, &parts[..]));
    assert_eq!(store.list(&Filter::waiting()).await?, []);
    Ok(())
}

/// S1
pub(super) async fn parts_are_added_in_order_or_replace_all_before_them(store: Shared) -> Result<(), StoreError> {
    let other = store.append(&running("b", Revision::NONE, "other")).await?;
    let first = store.append(&running("a", Revision::NONE, "1").part("2")).await?;
    let second = store.append(&running("a", first, "3")).await?;
    assert_entry(&store, "a", second, &[b"1", b"2", b"3"]).await?;
    let third = store.append(&running("a", second, "4").part("5").replacing()).await?;
    assert_entry(&store, "a", third, &[b"4", b"5"]).await?;
    let fourth = store.append(&running("a", third, "6")).await?;
    assert_entry(&store, "a", fourth, &[b"4", b"5", b"6"]).await?;
    let fifth = store.append(&Append::new(head("a", EntryStatus::Running, fourth)).replacing()).await?;
    assert_entry(&store, "a", fifth, &[]).await?;
    assert_entry(&store, "b", other, &[b"other"]).await
}

/// Asserts that the hidden parts of an entry are these. A store may keep none.
async fn assert_older(store: &Shared, id: &str, loaded: Revision, parts: &[&[u8]]) -> Result<(), StoreError> {
    let older = store.older_parts(id, loaded).await?;
    assert!(older.is_empty() || older == parts, "the older parts of `{id}`: {older:?} instead of {parts:?}");
    Ok(())
}

/// S11
pub(super) async fn parts_that_are_hidden_are_returned_in_order_or_not_at_all(store: Shared) -> Result<(), StoreError> {
    let other = store.append(&running("b", Revision::NONE, "other").hiding()).await?;
    let first = store.append(&running("a", Revision::NONE, "1").part("2")).await?;
    assert_older(&store, "a", first, &[]).await?;
    let second = store.append(&running("a", first, "3").part("4").hiding()).await?;
    assert_entry(&store, "a", second, &[b"3", b"4"]).await?;
    assert_older(&store, "a", second, &[b"1", b"2"]).await?;
    // Who has loaded the entry before does not get parts twice, and who loads it later gets the same.
    let stale = store.older_parts("a", first).await;
    assert!(
        matches!(&stale, Err(StoreError::Conflict { .. })) || matches!(&stale, Ok(parts) if parts.is_empty()),
        "{stale:?}"
    );
    let third = store.append(&running("a", second, "5")).await?;
    assert_entry(&store, "a", third, &[b"3", b"4", b"5"]).await?;
    for loaded in [second, third] {
        assert_older(&store, "a", loaded, &[b"1", b"2"]).await?;
    }
    let fourth = store.append(&Append::new(head("a", EntryStatus::Running, third)).hiding()).await?;
    assert_entry(&store, "a", fourth, &[]).await?;
    assert_older(&store, "a", fourth, &[b"1", b"2", b"3", b"4", b"5"]).await?;
    let fifth = store.append(&running("a", fourth, "6")).await?;
    assert_entry(&store, "a", fifth, &[b"6"]).await?;
    // Both flags remove what is hidden already, and a replacing append removes all.
    let sixth = store.append(&running("a", fifth, "7").hiding().replacing()).await?;
    assert_entry(&store, "a", sixth, &[b"7"]).await?;
    assert_older(&store, "a", sixth, &[b"6"]).await?;
    let seventh = store.append(&running("a", sixth, "8").replacing()).await?;
    assert_entry(&store, "a", seventh, &[b"8"]).await?;
    assert_eq!(store.older_parts("a", seventh).await?, Vec::<Bytes>::new(), "they were replaced");

    let eighth = store.append(&running("a", seventh, "9").hiding()).await?;
    store.remove("a", eighth).await?;
    let again = store.append(&running("a", Revision::NONE, "new").hiding()).await?;
    assert_entry(&store, "a", again, &[b"new"]).await?;
    assert_eq!(store.older_parts("a", again).await?, Vec::<Bytes>::new(), "they were removed with the entry");
    assert_entry(&store, "b", other, &[b"other"]).await
}

/// S2
pub(super) async fn a_change_for_another_revision_is_refused(store: Shared) -> Result<(), StoreError> {
    let first = store.append(&running("a", Revision::NONE, "1")).await?;
    let second = store.append(&running("a", first, "2")).await?;
    assert!(second > first, "revisions grow");
    for stale in [Revision::NONE, first, Revision::new(second.get() + 1)] {
        assert_conflict(&store.append(&running("a", stale, "3").replacing()).await, stale, second);
        assert_conflict(&store.remove("a", stale).await, stale, second);
    }
    assert_conflict(&store.append(&running("b", first, "1")).await, first, Revision::NONE);
    assert_eq!(store.load("b").await?, None);
    assert_entry(&store, "a", second, &[b"1", b"2"]).await
}

/// S3
pub(super) async fn an_append_that_is_repeated_is_applied_once(store: Shared) -> Result<(), StoreError> {
    let create = running("a", Revision::NONE, "1");
    let first = store.append(&create).await?;
    assert_eq!(store.append(&create).await?, first);
    let add = running("a", first, "2");
    let replace = running("a", first, "2").replacing();
    let second = store.append(&add).await?;
    assert_eq!(store.append(&add).await?, second);
    assert_entry(&store, "a", second, &[b"1", b"2"]).await?;
    // An append with another id is not the same append, and neither is one that others have followed.
    assert_conflict(&store.append(&replace).await, first, second);
    assert_conflict(&store.append(&create).await, Revision::NONE, second);
    assert_entry(&store, "a", second, &[b"1", b"2"]).await
}

/// S2
pub(super) async fn a_removed_entry_is_gone_and_its_revisions_never_come_back(store: Shared) -> Result<(), StoreError> {
    let first = store.append(&running("a", Revision::NONE, "1")).await?;
    let second = store.append(&running("a", first, "2")).await?;
    let other = store.append(&running("b", Revision::NONE, "other")).await?;
    store.remove("a", second).await?;
    store.remove("a", second).await?;
    assert_eq!(store.load("a").await?, None);
    assert_conflict(&store.append(&running("a", second, "3")).await, second, Revision::NONE);
    store.remove("b", other).await?;
    assert_eq!(store.list(&Filter::unfinished()).await?, []);

    let again = store.append(&running("a", Revision::NONE, "new")).await?;
    assert!(again > second, "revision {again} of an entry that was made again comes after {second}");
    assert_conflict(&store.append(&running("a", second, "3")).await, second, again);
    assert_entry(&store, "a", again, &[b"new"]).await
}

/// S5
pub(super) async fn what_breaks_a_limit_is_refused_and_the_limits_themselves_are_allowed(
    store: Shared,
) -> Result<(), StoreError> {
    let refused = |result: Result<Revision, StoreError>, what: &str| {
        assert!(matches!(result, Err(StoreError::Invalid { .. })), "{what} must be refused: {result:?}");
    };
    let long = "é".repeat(MAX_ID_BYTES / 2);
    for (what, id) in [("an empty id", ""), ("a long id", &format!("{long}x")), ("a control character", "a\nb")] {
        refused(store.append(&running(id, Revision::NONE, "1")).await, what);
        refused(store.load(id).await.map(|_| Revision::NONE), what);
        refused(store.remove(id, Revision::NONE).await.map(|()| Revision::NONE), what);
    }
    let part = vec![b'x'; MAX_PART_BYTES];
    let too_long = [part.clone(), vec![b'y']].concat();
    refused(store.append(&running("a", Revision::NONE, "1").part(too_long)).await, "a long part");
    let deep = (0..200).fold(json!(1), |value, _| json!([value]));
    refused(store.append(&Append::new(with_meta("a", deep))).await, "a deep value");
    // The JSON around the text has fewer than 1,000 bytes.
    let text = |bytes: usize| Value::String("x".repeat(bytes));
    refused(store.append(&Append::new(with_meta("a", text(MAX_HEAD_BYTES)))).await, "a large head");
    assert_eq!(store.list(&Filter::unfinished()).await?, []);

    let head = with_meta(&long, text(MAX_HEAD_BYTES - MAX_ID_BYTES - 1_000));
    let append = (0..3).fold(Append::new(head), |append, _| append.part(part.clone()));
    let revision = store.append(&append).await?;
    assert_entry(&store, &long, revision, &[&part, &part, &part]).await
}

fn with_meta(id: &str, value: Value) -> EntryHead {
    let mut head = EntryHead::new(id, "session");
    head.meta.insert("value".to_owned(), value);
    head
}
