//! Opens a file: its format, its tables, and how it is written.

#[cfg(unix)]
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

use emitree_middleware::store::StoreError;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::failure::{Doing, failed, is_locked};

/// Marks the files of this crate: `emtr` in ASCII.
const APPLICATION: i64 = 0x656d_7472;
/// The version of the tables.
const FORMAT: i64 = 5;
/// How long a change waits for the lock of another process.
const LOCKED: Duration = Duration::from_secs(5);

/// `entry.crc`, `part.crc` and `value.crc` are the checksums of the text or the bytes beside them. `part.number` grows, so
/// it orders the parts of an entry. Those before `entry.first` are hidden, by the append of the revision `entry.whole`.
/// `entry.parts` counts the others and `entry.older` the hidden ones, so a part that is missing is noticed. `last_revision`
/// is greater than each revision of an entry that was removed. Times are microseconds since 1970. A post may set
/// `entry.status` and `entry.queue`, so the columns count, and not the head. `post.number` orders the posts of an entry,
/// and `entry.posts` counts those that wait. A post that was taken has no body; it is known when it is repeated.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS entry (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        revision INTEGER NOT NULL,
        last_append BLOB NOT NULL,
        status TEXT NOT NULL,
        head TEXT NOT NULL,
        crc INTEGER NOT NULL,
        parts INTEGER NOT NULL,
        first INTEGER NOT NULL,
        older INTEGER NOT NULL,
        whole INTEGER NOT NULL,
        holder TEXT,
        until INTEGER,
        queue TEXT,
        due INTEGER,
        attempts INTEGER NOT NULL,
        posts INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX IF NOT EXISTS entry_by_status ON entry (status, id);
    CREATE INDEX IF NOT EXISTS entry_by_due ON entry (queue, due) WHERE queue IS NOT NULL AND due IS NOT NULL;
    CREATE TABLE IF NOT EXISTS worker (
        name TEXT PRIMARY KEY,
        queues TEXT NOT NULL,
        until INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS part (
        number INTEGER PRIMARY KEY,
        entry INTEGER NOT NULL,
        bytes BLOB NOT NULL,
        crc INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX IF NOT EXISTS part_by_entry ON part (entry);
    CREATE TABLE IF NOT EXISTS post (
        number INTEGER PRIMARY KEY,
        entry INTEGER NOT NULL,
        id BLOB NOT NULL,
        key TEXT,
        body BLOB,
        crc INTEGER NOT NULL,
        UNIQUE (entry, id),
        UNIQUE (entry, key)
    ) STRICT;
    CREATE INDEX IF NOT EXISTS post_waiting ON post (entry) WHERE body IS NOT NULL;
    CREATE TABLE IF NOT EXISTS last_revision (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        revision INTEGER NOT NULL
    ) STRICT;
    INSERT OR IGNORE INTO last_revision VALUES (1, 0);
    CREATE TABLE IF NOT EXISTS value (
        key BLOB NOT NULL UNIQUE,
        json TEXT NOT NULL,
        crc INTEGER NOT NULL
    ) STRICT;
";

/// Identifies a file, whatever its path. On other systems than Unix, a file is not deleted while it is open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    #[cfg(unix)]
    device_and_number: (u64, u64),
}

impl FileId {
    /// Returns the file at a path.
    pub(super) fn at(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        #[cfg(unix)]
        return Some(Self { device_and_number: (metadata.dev(), metadata.ino()) });
        #[cfg(not(unix))]
        return metadata.is_file().then_some(Self {});
    }
}

/// Opens a file, creates its tables if it is new, and executes SQL.
pub(super) fn open(path: &Path, sql: &str) -> Result<Connection, StoreError> {
    let connection = connect(path).map_err(|error| failed(path, Doing::Open, error))?;
    let is_new = check_format(&connection).map_err(|error| failed(path, Doing::Open, error))?;
    let is_new =
        is_new.map_err(|problem| StoreError::failed(format!("`{}` cannot be opened", path.display()), problem))?;
    prepare(connection, is_new, sql).map_err(|error| failed(path, Doing::Open, error))
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(LOCKED)?;
    Ok(connection)
}

/// Returns `true` if the file has no tables yet, and the reason if it cannot be used. Writes nothing.
fn check_format(connection: &Connection) -> rusqlite::Result<Result<bool, String>> {
    // In this order, a process that creates the tables meanwhile is never taken for another program: its marks are
    // written with its tables.
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        return Ok(Ok(true));
    }
    let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    Ok(match (number("application_id")?, number("user_version")?) {
        (APPLICATION, FORMAT) => Ok(false),
        (APPLICATION, format) => {
            let hint = "use the version of emitree that has written it";
            Err(format!("the file has format {format}, and this version reads format {FORMAT}: {hint}"))
        }
        _ => Err("it is a database of another program: name another file".to_owned()),
    })
}

/// Sets the journal mode, which stays with the file. Unlike other changes, SQLite does not wait for the lock here, if
/// several processes open a new file at once.
fn use_write_ahead_log(connection: &Connection) -> rusqlite::Result<()> {
    let began = Instant::now();
    loop {
        match connection.execute_batch("PRAGMA journal_mode = WAL") {
            Err(error) if is_locked(&error) && began.elapsed() < LOCKED => thread::sleep(Duration::from_millis(5)),
            result => return result,
        }
    }
}

fn prepare(mut connection: Connection, is_new: bool, sql: &str) -> rusqlite::Result<Connection> {
    use_write_ahead_log(&connection)?;
    // A transaction is on the disk when its commit has returned.
    connection.execute_batch("PRAGMA synchronous = FULL")?;
    if is_new {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(TABLES)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", FORMAT)?;
        transaction.commit()?;
    }
    connection.execute_batch(sql)?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S6
    #[test]
    fn a_commit_waits_for_the_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("agents.db");
        for _ in 0..2 {
            let connection = open(&path, "").expect("a file");
            let mode = connection.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0));
            let synchronous = connection.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0));
            assert_eq!((mode, synchronous), (Ok("wal".to_owned()), Ok(2)));
        }
    }

    #[test]
    fn the_first_page_of_a_list_what_is_due_and_posts_that_wait_are_read_by_their_indexes() {
        let folder = tempfile::tempdir().expect("a folder");
        let connection = open(&folder.path().join("agents.db"), "").expect("a file");
        let plan = format!("EXPLAIN QUERY PLAN {}", super::super::entries::list_sql());
        let plan = connection.query_row(&plan, ("waiting", "", 50), |row| row.get::<_, String>("detail"));
        assert_eq!(plan, Ok("SEARCH entry USING INDEX entry_by_status (status=? AND id>?)".to_owned()));
        let plan = format!("EXPLAIN QUERY PLAN {}", super::super::work::DUE);
        let plan = connection.query_row(&plan, ("import", 0, 16), |row| row.get::<_, String>("detail"));
        assert_eq!(plan, Ok("SEARCH entry USING COVERING INDEX entry_by_due (queue=? AND due<?)".to_owned()));
        let plan = format!("EXPLAIN QUERY PLAN {}", super::super::posts::WAITING);
        let plan = connection.query_row(&plan, [1], |row| row.get::<_, String>("detail"));
        assert_eq!(plan, Ok("SEARCH post USING INDEX post_waiting (entry=?)".to_owned()));
    }
}
