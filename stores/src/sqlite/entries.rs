//! Entries as rows.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use emitree_middleware::store::{Append, Entry, EntryHead, Filter, Holder, LONGEST, Revision, StoreError};
use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::posts;
use super::worker::DbResult;
use crate::shared::{Text, crc, fault, head_of, status_of};

/// The columns of a head.
pub(super) const HEAD: &str = "id, revision, head, crc, holder, until, attempts, status, queue, posts";

/// The row of an entry, without its head.
pub(super) struct Stored {
    pub(super) number: i64,
    revision: Revision,
    last_append: [u8; 16],
    parts: Parts,
    /// The process that holds the entry, and the last one that has held it.
    pub(super) holder: Option<Holder>,
    last_holder: Option<String>,
    pub(super) queue: Option<String>,
    /// The number of posts that wait.
    pub(super) posts: i64,
}

impl Stored {
    /// Returns `true` if another process holds the entry, or has held it, since the append has let its author hold it.
    fn is_taken_from(&self, append: &Append) -> bool {
        append.lease.is_some() && self.last_holder.as_ref().is_some_and(|by| *by != append.by)
    }
}

/// The parts of an entry: those from the first number on are returned by `load`, and those before are hidden.
#[derive(Clone, Copy, Default)]
struct Parts {
    first: i64,
    count: i64,
    older: i64,
    /// The revision of the last append that has hidden or replaced parts.
    whole: i64,
}

pub(super) fn find(db: &Transaction<'_>, id: &str) -> rusqlite::Result<Option<Stored>> {
    let find = "SELECT number, revision, last_append, parts, first, older, whole, holder, until, queue, posts
        FROM entry WHERE id = ?1";
    let stored = |row: &Row<'_>| {
        let number = row.get("number")?;
        let revision = revision(row)?;
        let (first, count) = (row.get("first")?, row.get("parts")?);
        let parts = Parts { first, count, older: row.get("older")?, whole: row.get("whole")? };
        Ok(Stored {
            number,
            revision,
            last_append: row.get("last_append")?,
            parts,
            holder: holder(row)?,
            last_holder: row.get("holder")?,
            queue: row.get("queue")?,
            posts: row.get("posts")?,
        })
    };
    db.prepare_cached(find)?.query_row([id], stored).optional()
}

/// Reads an entry.
pub(super) fn load(db: &Transaction<'_>, id: &str) -> DbResult<Option<Entry>> {
    let Some(Stored { number, parts, .. }) = find(db, id)? else { return Ok(Ok(None)) };
    let select = format!("SELECT {HEAD} FROM entry WHERE number = ?1");
    let head = db.prepare_cached(&select)?.query_row([number], head)?;
    let select = "SELECT bytes, crc FROM part WHERE entry = ?1 AND number >= ?2 ORDER BY number";
    let parts = read_parts(db, select, [number, parts.first], parts.count)?;
    let parts = parts.map_err(|problem| StoreError::damaged(id, format!("it{problem}")));
    Ok(parts.and_then(|parts| Ok(Some(Entry::new(head?, parts)))))
}

/// Reads the hidden parts of an entry.
pub(super) fn older_parts(db: &Transaction<'_>, id: &str, before: Revision) -> DbResult<Vec<Bytes>> {
    let stored = find(db, id)?;
    match stored {
        Some(Stored { number, parts, .. }) if parts.whole <= before.get() as i64 => {
            let select = "SELECT bytes, crc FROM part WHERE entry = ?1 AND number < ?2 ORDER BY number";
            let parts = read_parts(db, select, [number, parts.first], parts.older)?;
            Ok(parts.map_err(|problem| StoreError::damaged(id, format!("of its older parts, it{problem}"))))
        }
        stored => {
            let current = stored.map_or(Revision::NONE, |stored| stored.revision);
            Ok(Err(StoreError::Conflict { id: id.to_owned(), after: before, current }))
        }
    }
}

/// Reads parts. Those that are missing are noticed by their number.
fn read_parts(
    db: &Transaction<'_>,
    select: &str,
    of: [i64; 2],
    count: i64,
) -> rusqlite::Result<Result<Vec<Bytes>, String>> {
    let mut parts = db.prepare_cached(select)?;
    let parts = parts.query_map(of, |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get(1)?)))?;
    let parts = parts.collect::<rusqlite::Result<Vec<_>>>()?;
    if i64::try_from(parts.len()) != Ok(count) {
        return Ok(Err(format!(" has {} of its {count} parts", parts.len())));
    }
    let changed = parts.iter().enumerate().find_map(|(n, (part, crc))| Some((n, fault(part, *crc)?)));
    Ok(match changed {
        Some((n, fault)) => Err(format!("s part {n} {fault}")),
        None => Ok(parts.into_iter().map(|(part, _)| Bytes::from(part)).collect()),
    })
}

/// Reads the columns `head` or `json`, and `crc`.
pub(super) fn text(row: &Row<'_>) -> rusqlite::Result<Text> {
    Ok((row.get(0)?, row.get(1)?))
}

/// Applies an append whose head is given as JSON, too.
pub(super) fn append(db: &Transaction<'_>, append: &Append, head: &str) -> DbResult<Revision> {
    let id = &*append.head.id;
    let after = append.head.revision;
    let stored = find(db, id)?;
    match &stored {
        Some(stored) if stored.last_append == *append.id.as_bytes() && !stored.is_taken_from(append) => {
            return Ok(Ok(stored.revision));
        }
        Some(Stored { holder: Some(holder), .. }) if holder.by != append.by => {
            return Ok(Err(StoreError::Held { id: id.to_owned(), holder: holder.clone() }));
        }
        _ => {
            let current = stored.as_ref().map_or(Revision::NONE, |stored| stored.revision);
            if current != after {
                return Ok(Err(StoreError::Conflict { id: id.to_owned(), after, current }));
            }
        }
    }
    let revision = next_revision(db)?;
    let status = append.head.status.as_str();
    let Parts { first, count, older, whole } = make_room(db, stored.as_ref(), append, revision.get() as i64)?;
    let count = count + append.parts.len() as i64;
    let now = SystemTime::now();
    let until = append.lease.map(|lease| micros(now + lease.min(LONGEST)));
    let mut due = until.or_else(|| Some(micros(now + append.due?.min(LONGEST))));
    let waiting = match &stored {
        Some(stored) => stored.posts - posts::take(db, stored.number, &append.takes)?,
        None => 0,
    };
    let queue = append.head.queue.as_ref().or(stored.as_ref().and_then(|stored| stored.queue.as_ref()));
    let mut at = revision;
    // A release that leaves posts: its author does not learn the newer revision, and a worker goes on.
    if until.is_none() && waiting > 0 {
        at = next_revision(db)?;
        due = if queue.is_some() { Some(micros(now)) } else { due };
    }
    let at = at.get() as i64;
    let holder = until.map(|_| &append.by);
    let write = "INSERT INTO entry (id, revision, last_append, status, head, crc, parts, first, older, whole,
            holder, until, queue, due, attempts, posts)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
        ON CONFLICT (id) DO UPDATE SET (revision, last_append, status, head, crc, parts, first, older, whole,
            holder, until, queue, due, attempts, posts)
        = (?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16) RETURNING number";
    let (id_of_append, crc_of_head) = (append.id.as_bytes(), crc(head.as_bytes()));
    let attempts = append.head.attempts;
    let row = params![
        id,
        at,
        id_of_append,
        status,
        head,
        crc_of_head,
        count,
        first,
        older,
        whole,
        holder,
        until,
        queue,
        due,
        attempts,
        waiting
    ];
    let number: i64 = db.prepare_cached(write)?.query_row(row, |row| row.get(0))?;
    let mut add = db.prepare_cached("INSERT INTO part (entry, bytes, crc) VALUES (?1, ?2, ?3)")?;
    append.parts.iter().try_for_each(|part| add.execute(params![number, &**part, crc(part)]).map(drop))?;
    Ok(Ok(revision))
}

/// Hides or removes the parts of an entry, as an append says. Returns those that stay.
fn make_room(db: &Transaction<'_>, stored: Option<&Stored>, append: &Append, at: i64) -> rusqlite::Result<Parts> {
    let Some(Stored { number, parts, .. }) = stored else { return Ok(Parts { whole: at, ..Parts::default() }) };
    match (append.replaces, append.hides_older) {
        (false, false) => return Ok(*parts),
        (true, false) => {
            remove_parts(db, *number, i64::MAX)?;
            return Ok(Parts { whole: at, ..Parts::default() });
        }
        (true, true) => remove_parts(db, *number, parts.first)?,
        (false, true) => {}
    }
    let last = db.prepare_cached("SELECT coalesce(max(number), 0) FROM part WHERE entry = ?1")?;
    let first = { last }.query_row([number], |row| row.get::<_, i64>(0))? + 1;
    let older = parts.count + if append.replaces { 0 } else { parts.older };
    Ok(Parts { first, count: 0, older, whole: at })
}

/// Returns the SQL that selects the heads with a status, by the index `entry_by_status`.
pub(super) fn list_sql() -> String {
    format!("SELECT {HEAD} FROM entry WHERE status = ?1 AND id > ?2 ORDER BY id LIMIT ?3")
}

/// Reads the heads that a filter selects: for each status at most `limit`, by its index, of which the first are kept.
pub(super) fn list(db: &Transaction<'_>, filter: &Filter) -> DbResult<Vec<EntryHead>> {
    // A negative limit is none.
    let limit = filter.limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(-1));
    let after = filter.after.as_deref().unwrap_or("");
    let mut select = db.prepare_cached(&list_sql())?;
    let mut rows = Vec::new();
    for status in &filter.statuses {
        let found = select
            .query_map(params![status.as_str(), after, limit], |row| Ok((row.get::<_, String>("id")?, head(row)?)))?;
        for row in found {
            rows.push(row?);
        }
    }
    rows.sort_unstable_by(|(one, ..), (other, ..)| one.cmp(other));
    rows.truncate(filter.limit.unwrap_or(usize::MAX));
    Ok(rows.into_iter().map(|(_, head)| head).collect())
}

pub(super) fn remove(db: &Transaction<'_>, id: &str, after: Revision) -> DbResult<()> {
    let Some(Stored { number, revision: current, .. }) = find(db, id)? else { return Ok(Ok(())) };
    if current != after {
        return Ok(Err(StoreError::Conflict { id: id.to_owned(), after, current }));
    }
    remove_parts(db, number, i64::MAX)?;
    posts::remove(db, number)?;
    db.prepare_cached("DELETE FROM entry WHERE number = ?1")?.execute([number])?;
    Ok(Ok(()))
}

/// Removes the parts of an entry before a number.
fn remove_parts(db: &Transaction<'_>, entry: i64, before: i64) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM part WHERE entry = ?1 AND number < ?2")?.execute([entry, before]).map(drop)
}

pub(super) fn next_revision(db: &Transaction<'_>) -> rusqlite::Result<Revision> {
    let next = "UPDATE last_revision SET revision = revision + 1 RETURNING revision";
    db.prepare_cached(next)?.query_row([], revision)
}

/// Reads the head of a row, and what is stored beside it.
pub(super) fn head(row: &Row<'_>) -> DbResult<EntryHead> {
    let id: String = row.get("id")?;
    let stored = (row.get("head")?, row.get("crc")?);
    let revision = revision(row)?;
    let holder = holder(row)?;
    let attempts = row.get("attempts")?;
    let status = row.get("status")?;
    let queue = row.get("queue")?;
    let posts = row.get("posts")?;
    Ok(head_of(&id, revision, &stored).and_then(|mut head| {
        (head.holder, head.attempts, head.queue, head.posts) = (holder, attempts, queue, posts);
        head.status = status_of(&id, status)?;
        Ok(head)
    }))
}

/// Reads the process that holds an entry now.
fn holder(row: &Row<'_>) -> rusqlite::Result<Option<Holder>> {
    let (by, until): (Option<String>, Option<i64>) = (row.get("holder")?, row.get("until")?);
    let holder = by.zip(until).map(|(by, until)| Holder { by, until: time(until) });
    Ok(holder.filter(|holder| holder.until > SystemTime::now()))
}

/// Returns a time as it is stored.
pub(super) fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn time(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

fn revision(row: &Row<'_>) -> rusqlite::Result<Revision> {
    row.get::<_, i64>("revision").map(|number| Revision::new(number as u64))
}
