//! What a cache says.

use serde::{Deserialize, Serialize};

use crate::shared::own_events::own_events;

/// There is an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Hit {
    /// A hash of the key, in hexadecimal: the same in all events of a process about the same.
    pub key: String,
    /// How long ago it was given, in milliseconds.
    pub age_ms: u64,
}

/// The same is being executed: its answer is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Joined {
    /// A hash of the key, in hexadecimal.
    pub key: String,
    /// How long ago that began, in milliseconds.
    pub age_ms: u64,
}

/// There is no answer to be taken: it is executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Miss {
    /// A hash of the key, in hexadecimal.
    pub key: String,
    /// Why it is executed.
    pub why: Why,
}

own_events! {
    Hit = "hit";
    Joined = "joined";
    Miss = "miss";
}

/// Why something is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// There is no answer, or no longer.
    Absent,
    /// The answer is too old.
    Expired,
    /// Another attempt was asked for.
    Retried,
    /// It would wait for itself: it was started in the run that executes the same, or in one that that waits for.
    Recursive,
}
