//! Values under keys as rows.

use emitree_middleware::store::StoreError;
use emitree_middleware::values::ValueKey;
use rusqlite::{OptionalExtension, Transaction};

use super::entries::text;
use super::worker::DbResult;
use crate::shared::{ESCAPE, Text, crc, decode};

pub(super) fn read(db: &Transaction<'_>, key: &[u8]) -> DbResult<Option<Text>> {
    db.prepare_cached("SELECT json, crc FROM value WHERE key = ?1")?.query_row([key], text).optional().map(Ok)
}

pub(super) fn write(db: &Transaction<'_>, key: &[u8], json: &str) -> DbResult<()> {
    let write = "INSERT INTO value (key, json, crc) VALUES (?1, ?2, ?3)
        ON CONFLICT (key) DO UPDATE SET (json, crc) = (?2, ?3)";
    db.prepare_cached(write)?.execute((key, json, crc(json.as_bytes()))).map(|_| Ok(()))
}

pub(super) fn remove(db: &Transaction<'_>, key: &[u8]) -> DbResult<()> {
    db.prepare_cached("DELETE FROM value WHERE key = ?1")?.execute([key]).map(|_| Ok(()))
}

/// Returns the keys that begin with the bytes of a key, or all keys for no bytes.
pub(super) fn keys(db: &Transaction<'_>, prefix: &[u8]) -> DbResult<Vec<ValueKey>> {
    let behind = [prefix, &[ESCAPE]].concat();
    let mut select = db.prepare_cached("SELECT key FROM value WHERE key >= ?1 AND key < ?2 ORDER BY key")?;
    let keys = select.query_map((prefix, &*behind), |row| row.get::<_, Vec<u8>>(0))?;
    let keys = keys.collect::<rusqlite::Result<Vec<_>>>()?;
    let damaged = |key: &[u8]| StoreError::damaged("value", format!("it has the key {key:?}, which is none"));
    Ok(keys.iter().map(|key| decode(key).ok_or_else(|| damaged(key))).collect())
}
