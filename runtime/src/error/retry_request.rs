//! A request for another attempt, as data (M7).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;

/// A request for another attempt, with the reason and the data that were passed to [`Error::retry_with`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RetryRequest {
    /// The name of the code that requested the retry: the error's detail `by`, if it is a string. A `map_input`
    /// or `map_output` adds its own name, unless it is a guard or the error already has a value `by`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The reason.
    pub reason: String,
    /// Data for the next attempt.
    #[serde(default)]
    pub metadata: Value,
}

impl RetryRequest {
    pub(crate) fn new(error: &Error, metadata: &Value) -> Self {
        let by = error.details().get("by").and_then(Value::as_str).map(ToOwned::to_owned);
        Self { by, reason: error.to_string(), metadata: metadata.clone() }
    }
}
