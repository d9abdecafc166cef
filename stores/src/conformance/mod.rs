//! Tests of the contract of stores (S1 to S5, F1 to F5).

mod changes;
mod lease_races;
mod lists;
mod post_races;
mod posts;
mod races;
mod work;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use emitree_middleware::store::{Append, Entry, EntryHead, EntryStatus, OpenQuestion, Revision, Store, StoreError};
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
    work::while_an_entry_is_held_only_its_holder_changes_it,
    work::an_entry_whose_lease_is_over_is_held_by_nobody,
    work::the_clock_of_the_store_ends_its_leases,
    work::workers_take_what_is_due_in_the_order_of_their_queues,
    work::attempts_are_counted_until_an_append_sets_them,
    work::each_of_100_entries_is_taken_by_one_of_8_workers,
    work::workers_are_listed_for_their_leases,
    posts::posts_wait_in_their_order_and_each_of_them_once,
    posts::of_posts_with_one_key_the_first_one_is_kept,
    posts::a_post_to_a_held_entry_waits_for_its_holder,
    posts::a_post_to_a_free_entry_changes_it_and_makes_it_due,
    posts::a_post_that_breaks_a_limit_is_refused,
    posts::a_release_that_leaves_posts_is_not_the_last_change,
    posts::a_removed_entry_forgets_its_posts,
    posts::an_entry_whose_lease_is_over_is_due_for_its_posts,
    post_races::no_release_misses_a_post,
    post_races::posts_of_8_senders_are_taken_once_by_3_workers,
    lease_races::as_a_lease_ends_it_is_renewed_or_the_entry_is_taken,
];

/// Tests that a store keeps the contract of [`Store`]: conflicts, repeated and dropped appends, limits, pages of 3,000
/// entries, 50 tasks that change one entry, leases, 8 workers that take entries, posts, 300 releases that race
/// against posts, and 100 leases that end while they are renewed.
///
/// `make` returns an empty store, and is called once for each case. Call the function in a tokio runtime with a clock
/// and several threads, so that the tasks race.
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
    (head.queue, head.attempts) = (Some("orders \"3\"".to_owned()), 7);
    head.questions = vec![OpenQuestion {
        id: format!("{id}/1/0/pay"),
        kind: "approval".to_owned(),
        deadline: Some(UNIX_EPOCH + Duration::from_secs(9)),
    }];
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
