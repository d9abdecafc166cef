//! A circuit breaker's own events.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::shared::own_events::own_events;

/// The breaker opened after too many failures, or after a failed probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Opened {
    /// The key that the calls share. If all runs share one state, the key is `null` and absent from JSON.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub key: Value,
    /// The number of failures that opened the breaker; 1 after a failed probe.
    pub failures: u32,
    /// The time for which the breaker stays open, in milliseconds.
    pub cool_down_ms: u64,
    /// The text of the last failure.
    pub cause: String,
}

/// The breaker is half-open and lets one call pass as a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HalfOpened {
    /// The key that the calls share. If all runs share one state, the key is `null` and absent from JSON.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub key: Value,
}

/// A probe succeeded, and the breaker closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Closed {
    /// The key that the calls share. If all runs share one state, the key is `null` and absent from JSON.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub key: Value,
}

/// A call was denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallDenied {
    /// The key that the calls share. If all runs share one state, or if the key could not be determined, this field is
    /// `null` and absent from JSON.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub key: Value,
    /// The time until a probe may pass, in milliseconds; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The reason.
    pub reason: String,
}

own_events! {
    Opened = "opened" { key, cause };
    HalfOpened = "half_opened" { key };
    Closed = "closed" { key };
    CallDenied = "denied" { key, reason };
}
