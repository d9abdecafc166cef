//! Workers, and the entries that they take.

use std::time::SystemTime;

use emitree_middleware::store::{EntryHead, LONGEST, StoreError, Take, WorkerHead};
use rusqlite::{Transaction, params};

use super::entries::{HEAD, head, micros, next_revision, time};
use super::worker::DbResult;
use crate::shared::readable;

/// Selects the entries of a queue that are due, by the index `entry_by_due`.
pub(super) const DUE: &str = "SELECT number FROM entry WHERE queue = ?1 AND due <= ?2 ORDER BY due LIMIT ?3";

/// Lets a worker hold what is due. An entry that is held is due at the end of its lease.
pub(super) fn take(db: &Transaction<'_>, take: &Take) -> DbResult<Vec<EntryHead>> {
    let now = SystemTime::now();
    let (now, until) = (micros(now), micros(now + take.lease.min(LONGEST)));
    if take.lease.is_zero() {
        db.prepare_cached("DELETE FROM worker WHERE name = ?1 OR until <= ?2")?.execute(params![take.by, now])?;
    } else {
        // Only once a third of the lease is over, so that to look for work writes nothing.
        let list = "INSERT INTO worker VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE SET (queues, until) = (?2, ?3)
            WHERE until < ?4 OR queues <> ?2";
        let queues = serde_json::json!(take.queues).to_string();
        db.prepare_cached(list)?.execute(params![take.by, queues, until, now + (until - now) / 3 * 2])?;
    }
    let mut numbers: Vec<i64> = Vec::new();
    for queue in &take.queues {
        let most = i64::try_from(take.most - numbers.len()).unwrap_or(i64::MAX);
        let mut due = db.prepare_cached(DUE)?;
        for number in due.query_map(params![queue, now, most], |row| row.get(0))? {
            numbers.push(number?);
        }
    }
    let hold = format!(
        "UPDATE entry SET revision = ?2, holder = ?3, until = ?4, due = ?4, attempts = attempts + 1
        WHERE number = ?1 RETURNING {HEAD}"
    );
    let mut hold = db.prepare_cached(&hold)?;
    let mut hold = |number| hold.query_row(params![number, next_revision(db)?.get() as i64, take.by, until], head);
    let heads = numbers.into_iter().map(&mut hold).collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(Ok(readable(heads)))
}

/// Reads the workers that are listed.
pub(super) fn workers(db: &Transaction<'_>) -> DbResult<Vec<WorkerHead>> {
    let mut select = db.prepare_cached("SELECT name, queues, until FROM worker WHERE until > ?1 ORDER BY name")?;
    let workers = select.query_map([micros(SystemTime::now())], |row| {
        Ok((row.get::<_, String>("name")?, row.get::<_, String>("queues")?, row.get("until")?))
    })?;
    let workers = workers.collect::<rusqlite::Result<Vec<_>>>()?;
    let read = |(name, queues, until): (String, String, i64)| {
        let queues = serde_json::from_str(&queues)
            .map_err(|error| StoreError::failed(format!("the queues of the worker `{name}` cannot be read"), error))?;
        Ok(WorkerHead::new(name, queues, time(until)))
    };
    Ok(workers.into_iter().map(read).collect())
}
