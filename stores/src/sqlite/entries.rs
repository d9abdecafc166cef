//! Entries as rows.

use bytes::Bytes;
use emitree_middleware::store::{Append, Entry, EntryHead, Filter, Revision, StoreError};
use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::worker::DbResult;

/// Selects the heads with a status, by the index `entry_by_status`.
pub(super) const LIST: &str =
    "SELECT id, revision, head, crc FROM entry WHERE status = ?1 AND id > ?2 ORDER BY id LIMIT ?3";

/// The row of an entry, without its head.
struct Stored {
    number: i64,
    revision: Revision,
    last_append: [u8; 16],
    parts: i64,
}

fn find(db: &Transaction<'_>, id: &str) -> rusqlite::Result<Option<Stored>> {
    let mut find = db.prepare_cached("SELECT number, revision, last_append, parts FROM entry WHERE id = ?1")?;
    let stored = |row: &Row<'_>| {
        let number = row.get("number")?;
        let revision = revision(row)?;
        Ok(Stored { number, revision, last_append: row.get("last_append")?, parts: row.get("parts")? })
    };
    find.query_row([id], stored).optional()
}

/// Reads an entry. Parts that are missing are noticed by their number.
pub(super) fn load(db: &Transaction<'_>, id: &str) -> DbResult<Option<Entry>> {
    let Some(stored) = find(db, id)? else { return Ok(Ok(None)) };
    let head = db.prepare_cached("SELECT head, crc FROM entry WHERE number = ?1")?.query_row([stored.number], text)?;
    let mut parts = db.prepare_cached("SELECT bytes, crc FROM part WHERE entry = ?1 ORDER BY number")?;
    let parts = parts.query_map([stored.number], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get(1)?)))?;
    let parts = parts.collect::<rusqlite::Result<Vec<_>>>()?;
    if i64::try_from(parts.len()) != Ok(stored.parts) {
        let problem = format!("it has {} of its {} parts", parts.len(), stored.parts);
        return Ok(Err(StoreError::damaged(id, problem)));
    }
    let changed = parts.iter().enumerate().find_map(|(n, (part, crc))| Some((n, fault(part, *crc)?)));
    if let Some((n, fault)) = changed {
        return Ok(Err(StoreError::damaged(id, format!("its part {n} {fault}"))));
    }
    let parts = parts.into_iter().map(|(part, _)| Bytes::from(part)).collect();
    Ok(head_of(id, stored.revision, &head).map(|head| Some(Entry::new(head, parts))))
}

/// A text, and its checksum.
pub(super) type Text = (String, i64);

/// Reads the columns `head` or `json`, and `crc`.
pub(super) fn text(row: &Row<'_>) -> rusqlite::Result<Text> {
    Ok((row.get(0)?, row.get(1)?))
}

/// Returns the checksum of bytes.
pub(super) fn crc(bytes: &[u8]) -> i64 {
    crc32fast::hash(bytes).into()
}

/// Returns the fault of bytes that were stored with another checksum.
pub(super) fn fault(bytes: &[u8], stored: i64) -> Option<String> {
    let found = crc(bytes);
    (found != stored).then(|| format!("has the checksum {found:08x}, and was stored with {stored:08x}"))
}

fn head_of(id: &str, revision: Revision, (json, crc): &Text) -> Result<EntryHead, StoreError> {
    match fault(json.as_bytes(), *crc) {
        Some(fault) => Err(StoreError::damaged(id, format!("its head {fault}"))),
        None => EntryHead::from_json(id, revision, json),
    }
}

/// Applies an append whose head is given as JSON, too.
pub(super) fn append(db: &Transaction<'_>, append: &Append, head: &str) -> DbResult<Revision> {
    let id = &*append.head.id;
    let after = append.head.revision;
    let stored = find(db, id)?;
    match &stored {
        Some(stored) if stored.last_append == *append.id.as_bytes() => return Ok(Ok(stored.revision)),
        _ => {
            let current = stored.as_ref().map_or(Revision::NONE, |stored| stored.revision);
            if current != after {
                return Ok(Err(StoreError::Conflict { id: id.to_owned(), after, current }));
            }
        }
    }
    let next = "UPDATE last_revision SET revision = revision + 1 RETURNING revision";
    let revision = db.prepare_cached(next)?.query_row([], revision)?;
    let before = stored.as_ref().filter(|_| !append.replaces).map_or(0, |stored| stored.parts);
    let parts = before + append.parts.len() as i64;
    let write =
        "INSERT INTO entry (id, revision, last_append, status, head, crc, parts) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
        ON CONFLICT (id) DO UPDATE SET (revision, last_append, status, head, crc, parts) = (?2, ?3, ?4, ?5, ?6, ?7)
        RETURNING number";
    let status = append.head.status.as_str();
    let row = params![id, revision.get() as i64, append.id.as_bytes(), status, head, crc(head.as_bytes()), parts];
    let number: i64 = db.prepare_cached(write)?.query_row(row, |row| row.get(0))?;
    if append.replaces {
        remove_parts(db, number)?;
    }
    let mut add = db.prepare_cached("INSERT INTO part (entry, bytes, crc) VALUES (?1, ?2, ?3)")?;
    append.parts.iter().try_for_each(|part| add.execute(params![number, &**part, crc(part)]).map(drop))?;
    Ok(Ok(revision))
}

/// Reads the heads that a filter selects: for each status at most `limit`, by its index, of which the first are kept.
pub(super) fn list(db: &Transaction<'_>, filter: &Filter) -> DbResult<Vec<EntryHead>> {
    // A negative limit is none.
    let limit = filter.limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(-1));
    let after = filter.after.as_deref().unwrap_or("");
    let mut select = db.prepare_cached(LIST)?;
    let mut rows = Vec::new();
    for status in &filter.statuses {
        let found = select.query_map(params![status.as_str(), after, limit], |row| {
            Ok((row.get::<_, String>("id")?, revision(row)?, (row.get::<_, String>("head")?, row.get("crc")?)))
        })?;
        for row in found {
            rows.push(row?);
        }
    }
    rows.sort_unstable_by(|(one, ..), (other, ..)| one.cmp(other));
    rows.truncate(filter.limit.unwrap_or(usize::MAX));
    Ok(rows.iter().map(|(id, revision, head)| head_of(id, *revision, head)).collect())
}

pub(super) fn remove(db: &Transaction<'_>, id: &str, after: Revision) -> DbResult<()> {
    let Some(Stored { number, revision: current, .. }) = find(db, id)? else { return Ok(Ok(())) };
    if current != after {
        return Ok(Err(StoreError::Conflict { id: id.to_owned(), after, current }));
    }
    remove_parts(db, number)?;
    db.prepare_cached("DELETE FROM entry WHERE number = ?1")?.execute([number])?;
    Ok(Ok(()))
}

fn remove_parts(db: &Transaction<'_>, number: i64) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM part WHERE entry = ?1")?.execute([number]).map(drop)
}

fn revision(row: &Row<'_>) -> rusqlite::Result<Revision> {
    row.get::<_, i64>("revision").map(|number| Revision::new(number as u64))
}
