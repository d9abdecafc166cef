//! What a breaker says that it did.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::shared::own_events::own_events;

/// It was closed, or half-open, and has opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Opened {
    /// The key of the calls; `null`, and left out, if all share their failures.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub key: Value,
    /// After how many failures; a probe's is one.
    pub failures: u32,
    /// For how long, in milliseconds.
    pub cool_down_ms: u64,
    /// The last failure.
    pub cause: String,
}

/// It was open, and lets one call pass as a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HalfOpened {
    /// The key of the calls; `null`, and left out, if all share their failures.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub key: Value,
}

/// A probe has succeeded: calls pass again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Closed {
    /// The key of the calls; `null`, and left out, if all share their failures.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub key: Value,
}

/// A call was denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallDenied {
    /// The key of the calls; `null`, and left out, if all share their failures.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub key: Value,
    /// For how long it is still open, in milliseconds, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Why.
    pub reason: String,
}

own_events! {
    Opened = "opened" { key, cause };
    HalfOpened = "half_opened" { key };
    Closed = "closed" { key };
    CallDenied = "denied" { key, reason };
}
