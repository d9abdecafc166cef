//! The answer to a question: [`Answer`].

use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;
use crate::runnable::value::fit;

/// An answer to an [`Interrupt`](crate::Interrupt): a value, its author, and the time at which it was given.
///
/// As JSON: `{"value": "red", "by": "ada", "at": "2026-11-28T07:00:00Z"}`; `by` and `at` are left out if they are
/// `None`.
///
/// ```
/// use emitree_runtime::Answer;
/// use serde_json::json;
///
/// let answer = Answer::from(json!("red")).by("ada");
/// assert_eq!(serde_json::to_value(&answer)?, json!({"value": "red", "by": "ada"}));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Answer {
    /// The value, which the asking code reads as the type that it expects.
    pub value: Value,
    /// The author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The time of the answer. [`Answers::answer`](crate::Answers::answer) sets it.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "rfc3339")]
    pub at: Option<SystemTime>,
}

impl Answer {
    /// Sets the author.
    #[must_use]
    pub fn by(mut self, by: impl Into<String>) -> Self {
        self.by = Some(by.into());
        self
    }

    /// Reads the value as a `T`.
    ///
    /// # Errors
    ///
    /// Returns an error that quotes the value and names the place that does not fit.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        fit("answer", &self.value)
    }
}

impl From<Value> for Answer {
    fn from(value: Value) -> Self {
        Self { value, by: None, at: None }
    }
}

/// Times as text, as the records of events have them.
mod rfc3339 {
    use std::time::SystemTime;

    use chrono::{DateTime, Utc};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(at: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
        at.map(DateTime::<Utc>::from).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
        Ok(Option::<DateTime<Utc>>::deserialize(deserializer)?.map(SystemTime::from))
    }
}
