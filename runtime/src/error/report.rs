//! An error as data: all that is known of it (R10).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::runnable::value::sorted;
use crate::{ErrorKind, Interrupt, RetryRequest};

/// An error as data, as it stands in an event or a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ErrorReport {
    /// What sort of end it is.
    pub kind: ErrorKind,
    /// What happened.
    pub message: String,
    /// What caused it, nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// What was known when it happened.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub context: Map<String, Value>,
    /// What it was interrupted by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt: Option<Interrupt>,
    /// What was asked for with the request for a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryRequest>,
    /// Whether trying again may help.
    pub is_retryable: bool,
    /// Whether nothing that depends on the run can go on.
    pub is_fatal: bool,
}

impl ErrorReport {
    /// Everything about it for a person, as [`Error::explain`](crate::Error::explain) has it.
    #[must_use]
    pub fn explain(&self) -> String {
        let causes = self.causes.iter().map(|cause| format!("\n  caused by: {}", indented(cause)));
        let mut context = self.context.clone();
        context.sort_keys();
        let facts = context.iter().map(|(key, value)| format!("\n  {key}: {}", sorted(value)));
        [self.kind.prefix(), self.message.clone()].into_iter().chain(causes).chain(facts).collect()
    }
}

/// A cause of several lines stays below its first one.
fn indented(cause: &str) -> String {
    cause.replace('\n', "\n    ")
}
