//! A cache's own events.

use serde::{Deserialize, Serialize};

use crate::shared::own_events::own_events;

/// A request is answered from the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Hit {
    /// A hexadecimal hash of the key. Equal keys have equal hashes within a process.
    pub key: String,
    /// The age of the entry in milliseconds.
    pub age_ms: u64,
}

/// A request waits for an equal request that is being executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Joined {
    /// A hexadecimal hash of the key.
    pub key: String,
    /// The time since the execution began, in milliseconds.
    pub age_ms: u64,
}

/// A request is executed, because no stored result can be used for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Miss {
    /// A hexadecimal hash of the key.
    pub key: String,
    /// The reason for executing the request.
    pub why: Why,
}

own_events! {
    Hit = "hit";
    Joined = "joined";
    Miss = "miss";
}

/// A reason for executing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// There is no entry.
    Absent,
    /// The entry has expired.
    Expired,
    /// The run is in a further attempt, which ignores stored entries.
    Retried,
    /// The run would wait for itself: the equal request is being executed by this run or a run above it, or by a run
    /// that waits for one of these runs.
    Recursive,
}
