//! Tests of the contract of stores (S1 to S5).

mod changes;
mod lists;
mod races;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use emitree_middleware::store::{
    Append, Entry, EntryHead, EntryStatus, Holder, OpenQuestion, Revision, Store, StoreError,
};
use futures_util::future::BoxFuture;
use serde_json::json;

type Shared = Arc<dyn Store>;
type Case = fn(Shared) -> BoxFuture<'static, Result<(), StoreError>>;

/// Lists cases with their names.
macro_rules! cases {
    ($($module:ident::$case:ident),* $(,)?) => {
        &[$((stringify!($case), |store| Box::pin($module::$case(store)))),*]
    };
}

const CASES: &[(&str, Case)] = cases![
    changes::an_entry_is_read_as_it_was_appended,
    changes::parts_are_added_in_order_or_replace_all_before_them,
    changes::parts_that_are_hidden_are_returned_in_order_or_not_at_all,
    changes::a_change_for_another_revision_is_refused,
    changes::an_append_that_is_repeated_is_applied_once,
    changes::a_removed_entry_is_gone_and_its_revisions_never_come_back,
    changes::what_breaks_a_limit_is_refused_and_the_limits_themselves_are_allowed,
    lists::a_list_has_the_heads_with_a_status_in_the_order_of_their_ids,
    lists::pages_have_each_of_3_000_entries_once_while_others_change,
    races::of_50_appends_for_one_revision_one_wins,
    races::an_append_whose_future_was_dropped_is_whole_or_absent,
    races::readers_receive_whole_appends,
];

/// Tests that a store keeps the contract of [`Store`]: conflicts, repeated and dropped appends, limits, pages of 3,000
/// entries, and 50 tasks that change one entry.
///
/// `make` returns an empty store, and is called once for each case. Call the function in a tokio runtime with several
/// threads, so that the tasks race.
///
/// ```
/// use emitree_middleware::store::MemoryStore;
///
/// # #[tokio::main]
/// # async fn main() {
/// emitree_stores::conformance(async || MemoryStore::new()).await;
/// # }
/// ```
///
/// # Panics
///
/// Panics if the store breaks the contract, or returns an unexpected error. The message names the case.
#[expect(clippy::panic, reason = "this is a test")]
pub async fn conformance<S: Store>(make: impl AsyncFn() -> S) {
    for (name, case) in CASES {
        let store: Shared = Arc::new(make().await);
        if let Err(error) = case(store).await {
            panic!("{name}: {error}");
        }
    }
    assert_ne!(make().await.store_id(), make().await.store_id(), "two stores have two ids");
}

/// Returns a head that uses all fields.
fn full_head(id: &str) -> EntryHead {
    let mut head = EntryHead::new(id, "session");
    head.status = EntryStatus::Waiting;
    head.holder = Some(Holder { by: "worker \"3\"".to_owned(), until: UNIX_EPOCH + Duration::new(1_795_000_000, 1) });
    head.questions = vec![OpenQuestion { id: format!("{id}/1/0/pay"), kind: "approval".to_owned() }];
    head.whole_bytes = 1 << 40;
    head.meta.insert("größe".to_owned(), json!({"list": [1, null, 0.1, "\0"], "large": u64::MAX}));
    head
}

/// Returns a head without a holder, questions and meta.
fn head(id: &str, status: EntryStatus, revision: Revision) -> EntryHead {
    let mut head = EntryHead::new(id, "job");
    (head.status, head.revision) = (status, revision);
    head
}

/// Appends one part to an entry that is running.
fn running(id: &str, after: Revision, part: impl Into<Bytes>) -> Append {
    Append::new(head(id, EntryStatus::Running, after)).part(part)
}

/// Returns an entry that must exist.
async fn load(store: &Shared, id: &str) -> Result<Entry, StoreError> {
    store.load(id).await?.ok_or_else(|| StoreError::damaged(id, "it is gone"))
}

/// Asserts that an entry has a revision and these parts.
async fn assert_entry(store: &Shared, id: &str, revision: Revision, parts: &[&[u8]]) -> Result<(), StoreError> {
    let entry = load(store, id).await?;
    assert_eq!(entry.head.revision, revision, "the revision of `{id}`");
    let lengths: Vec<_> = parts.iter().map(|part| part.len()).collect();
    assert!(entry.parts == parts, "the parts of `{id}`: {entry:?} instead of parts of {lengths:?} bytes");
    Ok(())
}

/// Asserts that a change is refused because the entry has another revision.
fn assert_conflict<T: fmt::Debug>(result: &Result<T, StoreError>, after: Revision, current: Revision) {
    let revisions = match result {
        Err(StoreError::Conflict { after, current, .. }) => Some((*after, *current)),
        _ => None,
    };
    assert_eq!(revisions, Some((after, current)), "a change for revision {after} of {current}: {result:?}");
}
