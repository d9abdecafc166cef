//! An error as data (R10).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::runnable::value::sorted;
use crate::{ErrorKind, Interrupt, RetryRequest};

/// An [`Error`](crate::Error) as data, in the form in which events and recordings contain it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ErrorReport {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The message.
    pub message: String,
    /// The messages of the causes, nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// The values that were added with [`Error::detail`](crate::Error::detail).
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub details: Map<String, Value>,
    /// The question, if the error is an interrupt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt: Option<Interrupt>,
    /// The reason and the data, if the error is a request for a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryRequest>,
    /// `true` if a retry may help.
    pub is_retryable: bool,
    /// `true` if all work that depends on the run must stop.
    pub is_fatal: bool,
}

impl ErrorReport {
    /// Returns a human-readable text, the same as [`Error::explain`](crate::Error::explain).
    #[must_use]
    pub fn explain(&self) -> String {
        // Leave out a cause that repeats the message before it: a denial, for example, has the message of the guard's
        // error.
        let before = [&self.message].into_iter().chain(&self.causes);
        let causes = self.causes.iter().zip(before).filter(|(cause, before)| !cause.is_empty() && cause != before);
        let causes = causes.map(|(cause, _)| format!("\n  caused by: {}", indented(cause)));
        // Sort the keys, so that the text does not depend on the feature `preserve_order` of `serde_json`: any crate may
        // enable it, and keys are then in order of insertion.
        let mut details = self.details.clone();
        details.sort_keys();
        let facts = details.iter().map(|(key, value)| format!("\n  {key}: {}", sorted(value)));
        [self.kind.prefix(), self.message.clone()].into_iter().chain(causes).chain(facts).collect()
    }
}

/// Indents all lines of a cause except the first.
fn indented(cause: &str) -> String {
    cause.replace('\n', "\n    ")
}
