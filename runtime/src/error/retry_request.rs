//! The request for another attempt, as data (M7).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;

/// Why an attempt was given up: what [`Error::retry_with`] was made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RetryRequest {
    /// Who asked, if the error says so: that of a `map_input` or `map_output` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why.
    pub reason: String,
    /// Data for whoever makes the next attempt.
    #[serde(default)]
    pub metadata: Value,
}

impl RetryRequest {
    pub(crate) fn new(error: &Error, metadata: &Value) -> Self {
        let by = error.details().get("by").and_then(Value::as_str).map(ToOwned::to_owned);
        Self { by, reason: error.to_string(), metadata: metadata.clone() }
    }
}
