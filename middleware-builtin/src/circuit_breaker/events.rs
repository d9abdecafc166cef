//! What a breaker says that it did.

use serde::{Deserialize, Serialize};

use crate::shared::own_events::own_events;

/// It was closed, or half-open, and has opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Opened {
    /// For which calls, if they are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
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
    /// For which calls, if they are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A probe has succeeded: calls pass again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Closed {
    /// For which calls, if they are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A call was denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallDenied {
    /// For which calls, if they are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
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
