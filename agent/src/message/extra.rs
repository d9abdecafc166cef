//! Data of a provider in the JSON of a message.
//!
//! Invariant: the data leaves and enters JSON without a change, with any middleware. Middleware that inspects
//! JSON, such as a redaction or a guard, searches strings. A signature may look like a secret, so the data is not
//! written as strings, but as the bytes of its JSON text.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::message::arguments::is_too_deep;

/// Returns `true` if the data is left out of the JSON: there is none, or it could not be read again.
pub(super) fn is_left_out(extra: &Option<Value>) -> bool {
    extra.as_ref().is_none_or(is_too_deep)
}

pub(super) fn serialize<S: Serializer>(extra: &Option<Value>, serializer: S) -> Result<S::Ok, S::Error> {
    extra.as_ref().map(|extra| extra.to_string().into_bytes()).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    let bytes = Option::<Vec<u8>>::deserialize(deserializer)?;
    let read = |bytes: Vec<u8>| serde_json::from_slice(&bytes);
    bytes.map(read).transpose().map_err(|fault| D::Error::custom(format!("`extra` is not the bytes of JSON: {fault}")))
}
