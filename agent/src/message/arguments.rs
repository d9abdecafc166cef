//! Tool calls and their arguments.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::{extra, is_false};

/// A model's request to call a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "CallRepr", into = "CallRepr")]
#[non_exhaustive]
pub struct ToolCall {
    /// The id. In a [`History`](crate::History), the calls of a message have different ids.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments.
    pub arguments: Arguments,
    /// Data that the provider needs back with the call, as in [`Part::Reasoning`](crate::Part::Reasoning).
    pub extra: Option<Value>,
}

impl ToolCall {
    /// Makes a call, without data of a provider.
    pub fn new(id: impl Into<String>, name: impl Into<String>, arguments: impl Into<Arguments>) -> Self {
        Self { id: id.into(), name: name.into(), arguments: arguments.into(), extra: None }
    }
}

/// The maximum nesting of arguments and results. `serde_json` reads at most 127 levels, and a stored session adds a few
/// levels around each value, so a session with a deeper value could become unreadable.
pub(crate) const MAX_NESTING: usize = 64;

/// Returns `true` if arrays and objects are nested more than [`MAX_NESTING`] levels deep.
pub(crate) fn is_too_deep(value: &Value) -> bool {
    fn exceeds(value: &Value, levels: usize) -> bool {
        match value {
            Value::Array(values) => levels == 0 || values.iter().any(|value| exceeds(value, levels - 1)),
            Value::Object(map) => levels == 0 || map.values().any(|value| exceeds(value, levels - 1)),
            _ => false,
        }
    }
    exceeds(value, MAX_NESTING)
}

/// The arguments of a [`ToolCall`].
#[derive(Clone, Debug, PartialEq)]
pub enum Arguments {
    /// A JSON value, usually an object.
    Json(Value),
    /// Text that is not JSON, or JSON that is nested too deeply, as the model wrote it. Malformed text never equals a
    /// JSON string.
    Malformed(String),
}

impl Arguments {
    /// Parses arguments from a model's text. Empty text becomes an empty object, because some models send empty text
    /// for a tool without parameters. JSON that is nested more than 64 levels deep counts as malformed, so that a
    /// stored session can be read again.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text.trim().is_empty() {
            return Self::Json(Value::Object(Map::new()));
        }
        match serde_json::from_str(text) {
            Ok(value) if !is_too_deep(&value) => Self::Json(value),
            _ => Self::Malformed(text.to_owned()),
        }
    }

    /// Returns the JSON value, or `None` for malformed text.
    #[must_use]
    pub const fn json(&self) -> Option<&Value> {
        match self {
            Self::Json(value) => Some(value),
            Self::Malformed(_) => None,
        }
    }
}

impl From<Value> for Arguments {
    fn from(value: Value) -> Self {
        Self::Json(value)
    }
}

/// Writes JSON, or malformed text unchanged.
impl fmt::Display for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(value) => value.fmt(f),
            Self::Malformed(text) => f.write_str(text),
        }
    }
}

/// The JSON form of a call. A flag distinguishes malformed text from a JSON string.
#[derive(Serialize, Deserialize)]
struct CallRepr {
    #[serde(default)]
    id: String,
    name: String,
    #[serde(default)]
    arguments: Value,
    #[serde(default, skip_serializing_if = "is_false")]
    malformed: bool,
    #[serde(default, with = "extra", skip_serializing_if = "extra::is_left_out")]
    extra: Option<Value>,
}

impl From<ToolCall> for CallRepr {
    fn from(ToolCall { id, name, arguments, extra }: ToolCall) -> Self {
        let malformed = matches!(arguments, Arguments::Malformed(_));
        let arguments = match arguments {
            Arguments::Json(value) => value,
            Arguments::Malformed(text) => Value::String(text),
        };
        Self { id, name, arguments, malformed, extra }
    }
}

impl From<CallRepr> for ToolCall {
    fn from(CallRepr { id, name, arguments, malformed, extra }: CallRepr) -> Self {
        let arguments = match arguments {
            Value::String(text) if malformed => Arguments::Malformed(text),
            value => Arguments::Json(value),
        };
        Self { id, name, arguments, extra }
    }
}
