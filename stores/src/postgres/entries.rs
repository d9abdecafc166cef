//! Entries as rows.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use emitree_middleware::store::{
    Append, Entry, EntryHead, Filter, Holder, LONGEST, Revision, StoreError, Take, WorkerHead,
};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

use super::connections::{Call, Connections};
use super::failure::Doing;
use super::schema::Schema;
use crate::shared::{crc, fault, head_of, readable, status_of};

/// The calls of the functions for entries.
pub(super) struct Entries {
    load: String,
    append: String,
    posts: String,
    older_parts: String,
    list: String,
    take: String,
    workers: String,
    remove: String,
}

impl Entries {
    pub(super) fn new(Schema { quoted, .. }: &Schema) -> Self {
        Self {
            load: format!("SELECT * FROM {quoted}.load_1($1)"),
            append: format!(
                "SELECT * FROM {quoted}.append_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, \
                $11, $12, $13, $14, $15, $16)"
            ),
            posts: format!("SELECT posts FROM {quoted}.posts_1($1) LIMIT 1"),
            older_parts: format!("SELECT * FROM {quoted}.older_parts_1($1, $2)"),
            list: format!("SELECT * FROM {quoted}.list_1($1, $2, $3)"),
            take: format!("SELECT * FROM {quoted}.take_1($1, $2, $3, $4)"),
            workers: format!("SELECT * FROM {quoted}.workers_1()"),
            remove: format!("SELECT {quoted}.remove_1($1, $2)"),
        }
    }

    pub(super) async fn load(&self, connections: &Connections, id: &str) -> Result<Option<Entry>, StoreError> {
        let values = &[(&id as _, Type::TEXT)];
        let rows = connections.call(Call { doing: Doing::Read, sql: &self.load, values, bytes: 0 }).await?;
        let Some((entry, parts)) = rows.split_first() else { return Ok(None) };
        let head = head_of(id, revision(entry, 0)?, &(get(entry, 1)?, get(entry, 6)?))?;
        let head = with_columns(head, entry, 7)?;
        let parts = parts_of(parts, [get(entry, 2)?, get(entry, 3)?])?;
        let parts = parts.map_err(|problem| StoreError::damaged(id, format!("it{problem}")))?;
        Ok(Some(Entry::new(head, parts)))
    }

    /// Makes an append whose head is given as JSON, too.
    pub(super) async fn append(
        &self,
        connections: &Connections,
        append: &Append,
        head: &str,
    ) -> Result<Revision, StoreError> {
        let (id, after, append_id) = (&*append.head.id, append.head.revision, &append.id.as_bytes()[..]);
        let parts: Vec<&[u8]> = append.parts.iter().map(|part| &**part).collect();
        let checksums: Vec<i64> = parts.iter().map(|part| crc(part)).collect();
        let queue = append.head.queue.as_deref();
        let takes: Vec<&[u8]> = append.takes.iter().map(|id| &id.as_bytes()[..]).collect();
        let values = &[
            (&id as _, Type::TEXT),
            (&number(after) as _, Type::INT8),
            (&append_id as _, Type::BYTEA),
            (&append.head.status.as_str() as _, Type::TEXT),
            (&head as _, Type::TEXT),
            (&crc(head.as_bytes()) as _, Type::INT8),
            (&append.replaces as _, Type::BOOL),
            (&append.hides_older as _, Type::BOOL),
            (&parts as _, Type::BYTEA_ARRAY),
            (&checksums as _, Type::INT8_ARRAY),
            (&append.by as _, Type::TEXT),
            (&append.lease.map(seconds) as _, Type::FLOAT8),
            (&queue as _, Type::TEXT),
            (&append.due.map(seconds) as _, Type::FLOAT8),
            (&i64::from(append.head.attempts) as _, Type::INT8),
            (&takes as _, Type::BYTEA_ARRAY),
        ];
        let bytes = parts.iter().map(|part| part.len()).sum();
        let call = Call { doing: Doing::Write, sql: &self.append, values, bytes };
        let (rows, is_repeated) = connections.call_counted(call).await?;
        let row = one(&rows)?;
        let current = revision(row, 0)?;
        let is_made = get(row, 1)?;
        let held_by: Option<String> = get(row, 2)?;
        let id = id.to_owned();
        match held_by {
            // The revision may be the one of a later post. The author does not know this post, so its next change has to be
            // refused.
            _ if is_made && is_repeated && append.lease.is_none() && self.has_posts(connections, &id).await? => {
                Ok(Revision::new(current.get() - 1))
            }
            _ if is_made => Ok(current),
            Some(by) => Err(StoreError::Held { id, holder: Holder { by, until: get(row, 3)? } }),
            None => Err(StoreError::Conflict { id, after, current }),
        }
    }

    async fn has_posts(&self, connections: &Connections, id: &str) -> Result<bool, StoreError> {
        let values = &[(&id as _, Type::TEXT)];
        let rows = connections.call(Call { doing: Doing::Read, sql: &self.posts, values, bytes: 0 }).await?;
        Ok(rows.first().map(|row| get::<i64>(row, 0)).transpose()?.is_some_and(|posts| posts > 0))
    }

    pub(super) async fn older_parts(
        &self,
        connections: &Connections,
        id: &str,
        before: Revision,
    ) -> Result<Vec<Bytes>, StoreError> {
        let values = &[(&id as _, Type::TEXT), (&number(before) as _, Type::INT8)];
        let rows = connections.call(Call { doing: Doing::Read, sql: &self.older_parts, values, bytes: 0 }).await?;
        let conflict = |current| StoreError::Conflict { id: id.to_owned(), after: before, current };
        let (entry, parts) = rows.split_first().ok_or_else(|| conflict(Revision::NONE))?;
        if revision(entry, 1)? > before {
            return Err(conflict(revision(entry, 0)?));
        }
        let parts = parts_of(parts, [get(entry, 2)?, get(entry, 3)?])?;
        parts.map_err(|problem| StoreError::damaged(id, format!("of its older parts, it{problem}")))
    }

    pub(super) async fn list(&self, connections: &Connections, filter: &Filter) -> Result<Vec<EntryHead>, StoreError> {
        let statuses: Vec<_> = filter.statuses.iter().map(|status| status.as_str()).collect();
        let after = filter.after.as_deref().unwrap_or("");
        // A limit that the database cannot count to is none.
        let limit = filter.limit.and_then(|limit| i64::try_from(limit).ok());
        let values = &[(&statuses as _, Type::TEXT_ARRAY), (&after as _, Type::TEXT), (&limit as _, Type::INT8)];
        let rows = connections.call(Call { doing: Doing::Read, sql: &self.list, values, bytes: 0 }).await?;
        rows.iter().map(head_of_row).collect()
    }

    pub(super) async fn take(&self, connections: &Connections, take: &Take) -> Result<Vec<EntryHead>, StoreError> {
        let most = i64::try_from(take.most).unwrap_or(i64::MAX);
        let values = &[
            (&take.by as _, Type::TEXT),
            (&seconds(take.lease) as _, Type::FLOAT8),
            (&take.queues as _, Type::TEXT_ARRAY),
            (&most as _, Type::INT8),
        ];
        let rows = connections.call(Call { doing: Doing::Take, sql: &self.take, values, bytes: 0 }).await?;
        Ok(readable(rows.iter().map(head_of_row)))
    }

    pub(super) async fn workers(&self, connections: &Connections) -> Result<Vec<WorkerHead>, StoreError> {
        let rows = connections.call(Call { doing: Doing::Read, sql: &self.workers, values: &[], bytes: 0 }).await?;
        rows.iter().map(|row| Ok(WorkerHead::new(get(row, 0)?, get(row, 1)?, get(row, 2)?))).collect()
    }

    pub(super) async fn now(connections: &Connections) -> Result<SystemTime, StoreError> {
        let sql = "SELECT clock_timestamp()";
        let rows = connections.call(Call { doing: Doing::Read, sql, values: &[], bytes: 0 }).await?;
        get(one(&rows)?, 0)
    }

    pub(super) async fn remove(&self, connections: &Connections, id: &str, after: Revision) -> Result<(), StoreError> {
        let values = &[(&id as _, Type::TEXT), (&number(after) as _, Type::INT8)];
        let rows = connections.call(Call { doing: Doing::Write, sql: &self.remove, values, bytes: 0 }).await?;
        match get::<Option<i64>>(one(&rows)?, 0)? {
            None => Ok(()),
            Some(current) => {
                let current = Revision::new(current as u64);
                Err(StoreError::Conflict { id: id.to_owned(), after, current })
            }
        }
    }
}

/// Returns the parts of rows, or their fault. They have the positions from the first number up to the second: a part
/// that is missing is noticed.
fn parts_of(rows: &[Row], [first, next]: [i64; 2]) -> Result<Result<Vec<Bytes>, String>, StoreError> {
    let count = next - first;
    if i64::try_from(rows.len()) != Ok(count) {
        return Ok(Err(format!(" has {} of its {count} parts", rows.len())));
    }
    let mut parts = Vec::with_capacity(rows.len());
    for (n, row) in rows.iter().enumerate() {
        let bytes: &[u8] = get(row, 5)?;
        if let Some(fault) = fault(bytes, get(row, 6)?) {
            return Ok(Err(format!("s part {n} {fault}")));
        }
        parts.push(Bytes::copy_from_slice(bytes));
    }
    Ok(Ok(parts))
}

/// Returns a revision as the database has it. Revisions of an entry are greater than 0, and grow by one.
fn number(revision: Revision) -> i64 {
    i64::try_from(revision.get()).unwrap_or(i64::MAX)
}

fn revision(row: &Row, column: usize) -> Result<Revision, StoreError> {
    get::<i64>(row, column).map(|number| Revision::new(number as u64))
}

/// Reads the head of a row of `list` or `take`.
fn head_of_row(row: &Row) -> Result<EntryHead, StoreError> {
    let head = head_of(get(row, 0)?, revision(row, 1)?, &(get(row, 2)?, get(row, 3)?))?;
    with_columns(head, row, 4)
}

/// Adds what is stored beside a head, in the columns from a number on.
fn with_columns(mut head: EntryHead, row: &Row, from: usize) -> Result<EntryHead, StoreError> {
    head.holder = match get(row, from)? {
        Some(by) => Some(Holder { by, until: get(row, from + 1)? }),
        None => None,
    };
    head.attempts = count(row, from + 2)?;
    head.status = status_of(&head.id, get(row, from + 3)?)?;
    head.queue = get(row, from + 4)?;
    head.posts = count(row, from + 5)?;
    Ok(head)
}

fn count(row: &Row, column: usize) -> Result<u32, StoreError> {
    Ok(u32::try_from(get::<i64>(row, column)?).unwrap_or(u32::MAX))
}

fn seconds(time: Duration) -> f64 {
    time.min(LONGEST).as_secs_f64()
}

/// Returns the row of a function that returns one.
pub(super) fn one(rows: &[Row]) -> Result<&Row, StoreError> {
    rows.first().ok_or_else(|| unreadable("it has no rows"))
}

/// Reads a column of a row.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, StoreError> {
    row.try_get(column).map_err(unreadable)
}

pub(super) fn unreadable(error: impl Into<emitree_emitter::BoxError>) -> StoreError {
    StoreError::failed("the reply of PostgreSQL cannot be read: the functions of the schema were changed", error)
}
