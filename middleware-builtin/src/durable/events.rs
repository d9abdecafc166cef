//! The events of [`Durable`](super::Durable).

use serde::{Deserialize, Serialize};

use crate::shared::own_events::own_events;

/// A step, or a job that has ended, is answered from the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Answered {
    /// The key of the run.
    pub key: String,
    /// `true` if it is answered with its error.
    pub failed: bool,
}

/// A job has succeeded without some steps that are stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Unused {
    /// The keys of the steps.
    pub keys: Vec<String>,
}

own_events! {
    Answered = "answered" { key };
    Unused = "unused" { keys };
}
