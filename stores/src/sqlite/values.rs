//! Values under keys as rows.
//!
//! A key is stored as bytes that sort as the keys do: each segment is followed by a 0, and a 0 in a segment is followed
//! by a 255, which is no byte of UTF-8. The keys that begin with another key are the byte strings that begin with its
//! bytes, and then do not have a 255.

use emitree_emitter::json::check_depth;
use emitree_middleware::store::StoreError;
use emitree_middleware::values::ValueKey;
use emitree_runtime::{Error, Result};
use rusqlite::{OptionalExtension, Transaction};
use serde_json::Value;

use super::entries::{Text, crc, fault, text};
use super::worker::DbResult;

const END: u8 = 0;
const ESCAPE: u8 = 255;

/// Returns the bytes of a key.
pub(super) fn encode(key: &ValueKey) -> Vec<u8> {
    let mut bytes = Vec::new();
    for segment in key.segments() {
        for byte in segment.bytes() {
            bytes.push(byte);
            if byte == END {
                bytes.push(ESCAPE);
            }
        }
        bytes.push(END);
    }
    bytes
}

/// Returns the key with these bytes, or `None` if there is none.
fn decode(bytes: &[u8]) -> Option<ValueKey> {
    let mut segments = Vec::new();
    let mut segment = Vec::new();
    let mut rest = bytes;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after.first()) {
            (END, Some(&ESCAPE)) => {
                segment.push(byte);
                rest = &after[1..];
            }
            (END, _) => segments.push(String::from_utf8(std::mem::take(&mut segment)).ok()?),
            _ => segment.push(byte),
        }
    }
    if segment.is_empty() { ValueKey::new(segments).ok() } else { None }
}

pub(super) fn to_json(key: &ValueKey, value: &Value) -> Result<String> {
    // A value that is nested too deeply could not be read again.
    let json = check_depth(value).and_then(|()| serde_json::to_string(value));
    json.map_err(|error| Error::from(error).message(format!("the value of {key} cannot be stored")))
}

pub(super) fn from_json(key: &ValueKey, (json, crc): &Text) -> Result<Value> {
    if let Some(fault) = fault(json.as_bytes(), *crc) {
        return Err(Error::new(format!("the value of {key} is damaged: it {fault}")));
    }
    serde_json::from_str(json).map_err(|error| Error::from(error).message(format!("the value of {key} is damaged")))
}

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
