//! Files that cannot be used, are damaged, full, read-only or locked.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Duration;

use emitree_middleware::store::{Append, EntryHead, Filter, Post, Revision, Store, StoreError};
use emitree_stores::SqliteStore;
use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use super::{append, new_path, open};

/// Returns the message of a failure, and the message of its cause.
fn messages(error: &StoreError) -> (String, String) {
    (error.to_string(), error.source().map(ToString::to_string).unwrap_or_default())
}

fn assert_failed(error: &StoreError, path: &Path, message: &str, cause: &str) {
    assert!(matches!(error, StoreError::Failed { .. }), "{error:?}");
    let (found, found_cause) = messages(error);
    assert_eq!(found, format!("`{}` {message}", path.display()));
    assert!(found_cause.contains(cause), "{found_cause}");
}

async fn refused(path: &Path) -> StoreError {
    SqliteStore::open(path).await.expect_err("the file must be refused")
}

#[tokio::test]
async fn a_file_that_is_no_store_is_refused_and_stays_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text");
    fs::write(&text, "no database\n".repeat(1_000)).expect("written");
    let other = folder.path().join("other.db");
    Connection::open(&other).and_then(|db| db.execute_batch("CREATE TABLE song (title TEXT)")).expect("a database");
    let newer = folder.path().join("newer.db");
    drop(open(&newer).await);
    let set_version = || {
        let db = Connection::open(&newer)?;
        db.execute_batch("PRAGMA user_version = 6; PRAGMA journal_mode = DELETE")
    };
    // A store that was dropped closes its file in its thread.
    while set_version().is_err_and(|error| error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let table = [
        (&text, "cannot be opened: it is not a SQLite database; name another file", "file is not a database"),
        (&other, "cannot be opened", "it is a database of another program: name another file"),
        (
            &newer,
            "cannot be opened",
            "the file has format 6, and this version reads format 5: use the version of emitree that has written it",
        ),
    ];
    for (path, message, cause) in table {
        let before = fs::read(path).expect("read");
        assert_failed(&refused(path).await, path, message, cause);
        assert_eq!(fs::read(path).expect("read"), before, "{message}");
    }
    let missing = folder.path().join("missing/agents.db");
    let message = "cannot be opened: create its folder, and allow this process to write there";
    assert_failed(&refused(&missing).await, &missing, message, "unable to open database file");
    let path = new_path(&folder);
    let error = SqliteStore::open_with(&path, "PRAGMA x; nonsense").await.expect_err("SQL that is none");
    assert_failed(&error, &path, "cannot be opened", "near \"nonsense\": syntax error");
}

/// S6
#[tokio::test]
async fn after_its_file_was_deleted_or_replaced_a_store_changes_and_reads_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let delete = |path: &Path| fs::remove_file(path).expect("removed");
    let replace = |path: &Path| {
        // Another file, also if its number is given again.
        let copy = path.with_extension("copy");
        fs::copy(path, &copy).expect("copied");
        fs::rename(copy, path).expect("renamed");
    };
    for damage in [&delete as &dyn Fn(&Path), &replace] {
        let path = new_path(&folder);
        let store = open(&path).await;
        let revision = store.append(&append("a", Revision::NONE)).await.expect("stored");
        damage(&path);
        let errors = [
            store.append(&append("a", revision)).await.expect_err("nobody would find it"),
            store.load("a").await.expect_err("nobody else reads it"),
        ];
        for error in errors {
            assert_failed(&error, &path, "cannot be used: open it again", "was deleted or replaced");
        }
        open(&path).await.append(&append("b", Revision::NONE)).await.expect("a file of its own");
    }
}

/// Changes of the tables after which the entry `a` is damaged, and the beginnings of the errors.
pub(crate) const DAMAGES: [(&str, &str); 4] = [
    ("DELETE FROM part WHERE bytes = 'second'", "the stored entry `a` is damaged: it has 2 of its 3 parts"),
    (
        "UPDATE part SET bytes = 'secoud' WHERE bytes = 'second'",
        "the stored entry `a` is damaged: its part 1 has the checksum 1f29daf3, and was stored with b61f1169",
    ),
    (
        "UPDATE entry SET head = replace(head, 'job', 'jab') WHERE id = 'a'",
        "the stored entry `a` is damaged: its head has the checksum ",
    ),
    ("UPDATE entry SET id = 'a' WHERE id = 'x'", "the stored entry `a` is damaged: its head belongs to the entry `x`"),
];

/// S5
#[tokio::test]
async fn an_entry_that_is_damaged_is_an_error_and_others_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    for (damage, expected) in DAMAGES {
        let path = new_path(&folder);
        let store = open(&path).await;
        let id = if damage.contains("'x'") { "x" } else { "a" };
        store.append(&append(id, Revision::NONE).part("second").part("third")).await.expect("stored");
        store.append(&append("b", Revision::NONE)).await.expect("stored");
        let sql = ["second", "secoud"]
            .into_iter()
            .fold(damage.to_owned(), |sql, text| sql.replace(&format!("'{text}'"), &format!("CAST('{text}' AS BLOB)")));
        let changed = Connection::open(&path).and_then(|db| db.execute(&sql, [])).expect("a damage");
        assert_eq!(changed, 1, "{damage}");
        let error = store.load("a").await.expect_err("damaged").to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(store.load("b").await.expect("loaded").is_some());
        if !damage.contains("part") {
            assert_eq!(store.list(&Filter::unfinished()).await.expect_err("damaged").to_string(), error);
        }
    }
}

/// Changes of the tables after which the posts of the entry `a` are damaged, and the errors without the ids of posts.
pub(crate) const POST_DAMAGES: [(&str, &str); 3] = [
    ("DELETE FROM post WHERE key = 'second'", "it has 2 of its 3 posts that wait"),
    (
        "UPDATE post SET body = 'secoud' WHERE key = 'second'",
        " has the checksum 1f29daf3, and was stored with b61f1169",
    ),
    ("UPDATE post SET id = 'short' WHERE key = 'second'", "the id of a post cannot be read: "),
];

/// Appends an entry with three posts, and another one with one.
pub(crate) async fn post_to_two(store: &impl Store) {
    for id in ["a", "b"] {
        store.append(&append(id, Revision::NONE)).await.expect("stored");
    }
    for body in ["first", "second", "third"] {
        store.post("a", &Post::new(body).key(body)).await.expect("kept");
    }
    store.post("b", &Post::new("other")).await.expect("kept");
}

/// Asserts that the posts of the entry `a` are damaged, and that all else is read.
pub(crate) async fn assert_damaged_posts(store: &impl Store, expected: &str) {
    let error = store.posts("a").await.expect_err("damaged");
    assert!(matches!(error, StoreError::Damaged { .. }) && error.to_string().contains(expected), "{error}");
    assert_eq!(store.posts("b").await.expect("posts").len(), 1);
    assert_eq!(store.load("a").await.expect("loaded").expect("an entry").head.posts, 3);
    if !expected.contains("of its 3") {
        // A damaged body is not given to the sender of another post either.
        let error = store.post("a", &Post::new("late").key("second")).await.expect_err("damaged");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// S5
#[tokio::test]
async fn a_post_that_is_damaged_is_an_error_and_the_entry_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    for (damage, expected) in POST_DAMAGES {
        let path = new_path(&folder);
        let store = open(&path).await;
        post_to_two(&store).await;
        let sql = damage.replace("'secoud'", "CAST('secoud' AS BLOB)").replace("'short'", "CAST('short' AS BLOB)");
        let changed = Connection::open(&path).and_then(|db| db.execute(&sql, [])).expect("a damage");
        assert_eq!(changed, 1, "{damage}");
        assert_damaged_posts(&store, expected).await;
    }
}

/// S5
#[tokio::test]
async fn an_entry_whose_status_is_unknown_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = new_path(&folder);
    let store = open(&path).await;
    store.append(&append("a", Revision::NONE)).await.expect("stored");
    Connection::open(&path).and_then(|db| db.execute("UPDATE entry SET status = 'gone'", [])).expect("a damage");
    let error = store.load("a").await.expect_err("damaged").to_string();
    assert!(error.starts_with("the stored entry `a` is damaged: its status cannot be read: "), "{error}");
}

/// S5, S11
#[tokio::test]
async fn a_hidden_part_that_is_damaged_is_an_error_and_the_others_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let damages = [
        ("DELETE FROM part WHERE number = 1", "of its older parts, it has 1 of its 2 parts"),
        ("UPDATE part SET bytes = x'00' WHERE number = 2", "of its older parts, its part 1 has the checksum "),
    ];
    for (damage, expected) in damages {
        let path = new_path(&folder);
        let store = open(&path).await;
        let first = store.append(&append("a", Revision::NONE).part("second")).await.expect("stored");
        let second = store.append(&append("a", first).hiding()).await.expect("stored");
        assert_eq!(store.older_parts("a", second).await.expect("two parts").len(), 2);
        let changed = Connection::open(&path).and_then(|db| db.execute(damage, [])).expect("a damage");
        assert_eq!(changed, 1, "{damage}");
        let error = store.older_parts("a", second).await.expect_err("damaged").to_string();
        assert!(error.starts_with(&format!("the stored entry `a` is damaged: {expected}")), "{error}");
        assert_eq!(store.load("a").await.expect("loaded").expect("an entry").parts.len(), 1);
    }
}

#[tokio::test]
async fn a_full_disk_is_an_error_and_smaller_changes_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = new_path(&folder);
    let store = SqliteStore::open_with(&path, "PRAGMA max_page_count = 40").await.expect("a store");
    let first = store.append(&append("a", Revision::NONE)).await.expect("stored");
    let (small, large) = (append("b", Revision::NONE), append("a", first).part(vec![0; 400_000]));
    // Both may be in one transaction: only the large append fails.
    let (failed, stored) = tokio::join!(store.append(&large), store.append(&small));
    let message = "cannot be written: free space on its disk, or raise its size limit";
    assert_failed(&failed.expect_err("no room"), &path, message, "database or disk is full");
    stored.expect("stored");
    let entry = store.load("a").await.expect("loaded").expect("an entry");
    assert_eq!((entry.head.revision, entry.parts.len()), (first, 1));
    drop(store);

    // With room again, the same append is made.
    let store = open(&path).await;
    store.append(&large).await.expect("stored");
    assert_eq!(store.load("a").await.expect("loaded").expect("an entry").parts.len(), 3);
}

#[tokio::test]
async fn a_file_that_is_read_only_can_be_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = new_path(&folder);
    let first = open(&path).await.append(&append("a", Revision::NONE)).await.expect("stored");
    let store = SqliteStore::open_with(&path, "PRAGMA query_only = ON").await.expect("a store");
    let error = store.append(&append("a", first)).await.expect_err("read-only");
    let message = "cannot be written: allow this process to write the file and its folder";
    assert_failed(&error, &path, message, "attempt to write a readonly database");
    assert_eq!(store.load("a").await.expect("loaded").expect("an entry").head.revision, first);
}

/// The thread of the store waits for the lock: this takes 5 s.
#[tokio::test]
async fn a_file_that_is_locked_for_longer_than_5_s_is_an_error_for_all_changes_that_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = new_path(&folder);
    let store = open(&path).await;
    let mut other = Connection::open(&path).expect("a connection");
    let lock = other.transaction_with_behavior(TransactionBehavior::Immediate).expect("a lock");
    let appends: Vec<_> = (0..10).map(|n| append(&n.to_string(), Revision::NONE)).collect();
    let began = std::time::Instant::now();
    let results = futures_util::future::join_all(appends.iter().map(|append| store.append(append))).await;
    let message = "cannot be written: another process has locked it for more than 5 s; end its transaction";
    for result in results {
        assert_failed(&result.expect_err("locked"), &path, message, "database is locked");
    }
    // The first may have been taken alone, and the others together after it.
    assert!(began.elapsed().as_secs() < 20, "the changes did not wait in turn: {:?}", began.elapsed());
    // Readers do not wait, and the next change goes on.
    assert!(store.load("0").await.expect("loaded").is_none());
    drop(lock);
    store.append(&appends[0]).await.expect("stored");
}

#[tokio::test]
async fn a_change_that_is_refused_is_no_failure_of_the_others_in_its_transaction() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(new_path(&folder)).await;
    let first = store.append(&append("a", Revision::NONE)).await.expect("stored");
    let (stale, good) = (append("a", Revision::NONE), append("a", first));
    let invalid = Append::new(EntryHead::new("", "job"));
    let (stale, good, invalid) = tokio::join!(store.append(&stale), store.append(&good), store.append(&invalid));
    assert!(matches!(stale, Err(StoreError::Conflict { current, .. }) if current == first), "{stale:?}");
    assert!(matches!(invalid, Err(StoreError::Invalid { .. })), "{invalid:?}");
    good.expect("stored");
}
