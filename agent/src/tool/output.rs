//! The output of a tool's run.

use std::any::Any;

use emitree_runtime::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::is_false;

/// The output of a [`Tool`](crate::Tool).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolOutput {
    /// The result that the model receives. If the value is nested more than 64 levels deep, the history contains it as
    /// JSON text.
    pub content: Value,
    /// Values for the program. The model does not receive them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub details: Map<String, Value>,
    /// `true` if the content explains a failure.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_error: bool,
    /// `true` if the agent's loop may end after this turn. The loop ends if `terminate` is `true` in all results of the
    /// turn.
    #[serde(default, skip_serializing_if = "is_false")]
    pub terminate: bool,
}

impl ToolOutput {
    /// Makes the output of a tool that succeeded.
    pub fn new(content: impl Into<Value>) -> Self {
        Self { content: content.into(), ..Self::default() }
    }

    /// Makes the output of a tool that failed. The model receives the message, and may call the tool again.
    pub fn error(message: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::new(message.into()) }
    }

    /// Adds a value to [`details`](Self::details).
    #[must_use]
    pub fn detail(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.details.insert(key.into(), value.into());
        self
    }

    /// Sets [`terminate`](Self#structfield.terminate): the agent's loop ends after this turn if all results of the turn
    /// have `terminate` set.
    #[must_use]
    pub const fn terminate(mut self) -> Self {
        self.terminate = true;
        self
    }

    /// Converts the return value of a function: a `ToolOutput` is returned unchanged, and any other value becomes the
    /// content.
    pub(crate) fn of<T: Serialize + 'static>(value: T) -> Result<Self> {
        let mut value = Some(value);
        if let Some(output) = (&mut value as &mut dyn Any).downcast_mut::<Option<Self>>() {
            return Ok(output.take().unwrap_or_default());
        }
        Ok(Self::new(serde_json::to_value(value)?))
    }

    /// Returns the content as text. A string is returned unchanged, and any other value is returned as JSON.
    #[must_use]
    pub fn text(&self) -> String {
        self.content.as_str().map_or_else(|| self.content.to_string(), str::to_owned)
    }
}
