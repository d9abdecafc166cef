//! Values under keys, as bytes and JSON.
//!
//! A key is stored as bytes that sort as the keys do: each segment is followed by a 0, and a 0 in a segment is followed
//! by a 255, which is no byte of UTF-8. The keys that begin with another key are the byte strings that begin with its
//! bytes, and then do not have a 255.

use emitree_emitter::json::check_depth;
use emitree_middleware::values::ValueKey;
use emitree_runtime::{Error, Result};
use serde_json::Value;

use super::checksum::{Text, fault};

const END: u8 = 0;
/// Follows a 0 in a segment. The keys that begin with a key are those before its bytes with this byte.
pub(crate) const ESCAPE: u8 = 255;

/// Returns the bytes of a key.
pub(crate) fn encode(key: &ValueKey) -> Vec<u8> {
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
pub(crate) fn decode(bytes: &[u8]) -> Option<ValueKey> {
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

/// Returns the JSON of a value.
pub(crate) fn to_json(key: &ValueKey, value: &Value) -> Result<String> {
    // A value that is nested too deeply could not be read again.
    let json = check_depth(value).and_then(|()| serde_json::to_string(value));
    json.map_err(|error| Error::from(error).message(format!("the value of {key} cannot be stored")))
}

/// Returns a value from its stored JSON.
pub(crate) fn from_json(key: &ValueKey, (json, crc): &Text) -> Result<Value> {
    if let Some(fault) = fault(json.as_bytes(), *crc) {
        return Err(Error::new(format!("the value of {key} is damaged: it {fault}")));
    }
    serde_json::from_str(json).map_err(|error| Error::from(error).message(format!("the value of {key} is damaged")))
}
