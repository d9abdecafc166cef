//! Checksums of parts, heads and values: a store notices bytes that are not as it has stored them (S5).

use emitree_middleware::store::{EntryHead, EntryStatus, Revision, StoreError};
use serde_json::Value;

/// A text, and its checksum.
pub(crate) type Text = (String, i64);

/// Returns the checksum of bytes.
pub(crate) fn crc(bytes: &[u8]) -> i64 {
    crc32fast::hash(bytes).into()
}

/// Returns the fault of bytes that were stored with another checksum.
pub(crate) fn fault(bytes: &[u8], stored: i64) -> Option<String> {
    let found = crc(bytes);
    (found != stored).then(|| format!("has the checksum {found:08x}, and was stored with {stored:08x}"))
}

/// Returns the heads that can be read, of entries that a worker has taken. The others are not lost: each is due again when
/// its lease is over, and an error where it is loaded.
pub(crate) fn readable(heads: impl IntoIterator<Item = Result<EntryHead, StoreError>>) -> Vec<EntryHead> {
    let warned = |error: &StoreError| tracing::warn!(%error, "a worker cannot go on with an entry");
    heads.into_iter().filter_map(|head| head.inspect_err(warned).ok()).collect()
}

/// Returns the status of an entry from its column, which a post changes without the head.
pub(crate) fn status_of(id: &str, status: String) -> Result<EntryStatus, StoreError> {
    serde_json::from_value(Value::String(status))
        .map_err(|error| StoreError::damaged(id, format!("its status cannot be read: {error}")))
}

/// Returns the head of an entry from its stored JSON.
pub(crate) fn head_of(id: &str, revision: Revision, (json, crc): &Text) -> Result<EntryHead, StoreError> {
    match fault(json.as_bytes(), *crc) {
        Some(fault) => Err(StoreError::damaged(id, format!("its head {fault}"))),
        None => EntryHead::from_json(id, revision, json),
    }
}
