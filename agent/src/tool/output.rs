//! The output of a tool's run.

use std::any::Any;

use emitree_emitter::json::to_value_exact;
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
    /// `true` if the content is the answer of the agent's run. See [`answer`](Self::answer()).
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_answer: bool,
}

impl ToolOutput {
    /// Makes the output of a tool that succeeded. `Value::from` makes `null` of a `NaN`, as in `serde_json`; a tool that
    /// returns a value of its own type fails instead.
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

    /// Makes the content the answer of the agent's run. Sets [`terminate`](Self#structfield.terminate) as well: if another
    /// result of the turn does not end the loop, the loop continues, and this output is a result like any other. If
    /// several results are answers, the first in call order is the answer of the run.
    ///
    /// The answer is a message of the model after the results of the turn. It passes the agent's stages as a whole reply,
    /// with an event [`NewToken`](crate::NewToken) on the agent's run if the run streams, and is checked by the guards at
    /// `model.call`.
    ///
    /// ```
    /// use emitree_agent::{Agent, ChatModel, ScriptedModel, ToolOutput, tool_fn};
    /// use emitree_runtime::RunContext;
    /// use schemars::JsonSchema;
    /// use serde::Deserialize;
    /// use serde_json::json;
    ///
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Page {}
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let read = tool_fn("read", "Reads the page", |_: Page, _: RunContext| async {
    ///     Ok(ToolOutput::new("The whole page.").answer())
    /// });
    /// let model = ChatModel::new(ScriptedModel::new("test").call("read", json!({})))?;
    /// let answer = Agent::builder("reader", model).tool(read).build()?.ask("Show me the page.").await?;
    /// assert_eq!(answer.text(), "The whole page.");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn answer(mut self) -> Self {
        self.terminate = true;
        self.is_answer = true;
        self
    }

    /// Converts the return value of a function: a `ToolOutput` is returned unchanged, and any other value becomes the
    /// content.
    pub(crate) fn of<T: Serialize + 'static>(value: T) -> Result<Self> {
        let mut value = Some(value);
        if let Some(output) = (&mut value as &mut dyn Any).downcast_mut::<Option<Self>>() {
            return Ok(output.take().unwrap_or_default());
        }
        Ok(Self::new(to_value_exact(&value)?))
    }

    /// Returns the content as text. A string is returned unchanged, and any other value is returned as JSON.
    #[must_use]
    pub fn text(&self) -> String {
        self.content.as_str().map_or_else(|| self.content.to_string(), str::to_owned)
    }
}
