//! Posts as rows.

use std::time::SystemTime;

use emitree_middleware::store::{MAX_POSTS, Post, Posted, Revision, StoreError};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use uuid::Uuid;

use super::entries::{Stored, find, micros, next_revision};
use super::worker::DbResult;
use crate::shared::{PostRow, crc, waiting};

/// Selects the posts that wait in an entry, by the index `post_waiting`.
pub(super) const WAITING: &str =
    "SELECT id, key, body, crc FROM post WHERE entry = ?1 AND body IS NOT NULL ORDER BY number";

/// Adds a post to an entry, unless the entry knows it, or refuses it. Also returns the queue in which it makes the entry
/// due.
pub(super) fn post(db: &Transaction<'_>, id: &str, post: &Post) -> DbResult<(Posted, Option<String>)> {
    let Some(stored) = find(db, id)? else {
        let none = Revision::NONE;
        return Ok(Err(StoreError::Conflict { id: id.to_owned(), after: none, current: none }));
    };
    let number = stored.number;
    let post_id = post.id.as_bytes();
    let is_known = "SELECT 1 FROM post WHERE entry = ?1 AND id = ?2";
    if db.prepare_cached(is_known)?.exists(params![number, post_id])? {
        return Ok(Ok((Posted::Kept, None)));
    }
    if let (Some(queue), Some(posted)) = (&stored.queue, &post.queue)
        && queue != posted
    {
        return Ok(Err(post.other_queue(id, queue)));
    }
    let with_key = "SELECT id, key, body, crc FROM post WHERE entry = ?1 AND key = ?2";
    if let Some(first) = db.prepare_cached(with_key)?.query_row(params![number, post.key], post_row).optional()? {
        return Ok(first.read(id).map(|first| (Posted::Refused(first), None)));
    }
    if stored.posts >= MAX_POSTS as i64 {
        return Ok(Err(StoreError::Full { id: id.to_owned() }));
    }
    let add = "INSERT INTO post (entry, id, key, body, crc) VALUES (?1, ?2, ?3, ?4, ?5)";
    db.prepare_cached(add)?.execute(params![number, post_id, post.key, &*post.body, crc(&post.body)])?;
    let due = count(db, &stored, post)?;
    Ok(Ok((Posted::Kept, due)))
}

/// Counts a post in the row of its entry. If nobody holds the entry, it is changed, and due in the queue that is returned.
fn count(db: &Transaction<'_>, stored: &Stored, post: &Post) -> rusqlite::Result<Option<String>> {
    let queue = stored.queue.as_ref().or(post.queue.as_ref());
    if stored.holder.is_some() {
        let count = "UPDATE entry SET posts = posts + 1, queue = ?2 WHERE number = ?1";
        db.prepare_cached(count)?.execute(params![stored.number, queue])?;
        return Ok(None);
    }
    let count = "UPDATE entry SET posts = posts + 1, queue = ?2, revision = ?3 WHERE number = ?1";
    let revision = next_revision(db)?.get() as i64;
    db.prepare_cached(count)?.execute(params![stored.number, queue, revision])?;
    let Some(queue) = queue else { return Ok(None) };
    // Many posts do not move an entry behind others that are due.
    let wake = "UPDATE entry SET due = min(coalesce(due, ?2), ?2),
            status = CASE WHEN ?3 AND status IN ('ended', 'failed', 'paused') THEN 'queued' ELSE status END
        WHERE number = ?1";
    let (now, names_queue) = (micros(SystemTime::now()), post.queue.is_some());
    db.prepare_cached(wake)?.execute(params![stored.number, now, names_queue])?;
    Ok(Some(queue.clone()))
}

/// Reads the posts that wait in an entry.
pub(super) fn posts(db: &Transaction<'_>, id: &str) -> DbResult<Vec<Post>> {
    let Some(stored) = find(db, id)? else { return Ok(Ok(Vec::new())) };
    let mut posts = db.prepare_cached(WAITING)?;
    let posts = posts.query_map([stored.number], post_row)?.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(waiting(id, posts, stored.posts))
}

fn post_row(row: &Row<'_>) -> rusqlite::Result<PostRow> {
    Ok(PostRow { id: row.get("id")?, key: row.get("key")?, body: row.get("body")?, crc: row.get("crc")? })
}

/// Empties posts of an entry that wait, and returns their number. They stay known.
pub(super) fn take(db: &Transaction<'_>, entry: i64, ids: &[Uuid]) -> rusqlite::Result<i64> {
    let mut empty =
        db.prepare_cached("UPDATE post SET body = NULL WHERE entry = ?1 AND id = ?2 AND body IS NOT NULL")?;
    let mut taken = 0;
    for id in ids {
        taken += empty.execute(params![entry, id.as_bytes()])? as i64;
    }
    Ok(taken)
}

/// Removes the posts of an entry.
pub(super) fn remove(db: &Transaction<'_>, entry: i64) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM post WHERE entry = ?1")?.execute([entry]).map(drop)
}
