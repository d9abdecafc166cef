//! The output of a tool's run.

use std::any::Any;

use emitree_emitter::json::to_value_exact;
use emitree_runtime::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Part;
use crate::message::history::disallowed_in_result;
use crate::message::is_false;

/// The maximum number of bytes in one part of an output.
const MAX_PART: usize = 8 << 20;

/// The maximum number of bytes in all parts of an output.
const MAX_PARTS: usize = 16 << 20;

/// The output of a [`Tool`](crate::Tool).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolOutput {
    /// The result that the model receives. If the value is nested more than 64 levels deep, the history contains it as
    /// JSON text.
    pub content: Value,
    /// Texts, images, sounds and files that the model receives beside the content. See [`part`](Self::part).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
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

    /// Adds a text, an image, a sound or a file beside the content: a [`Part::Text`], or a [`Part::Uri`] with an address
    /// or a `data:` URI. The provider adapts parts to its server. An [answer](Self::answer()) of the agent's run has no
    /// parts.
    ///
    /// If an agent executes the tool, an output with a part of another kind, with a part of more than 8 MiB, or with
    /// parts of more than 16 MiB together becomes an error that says so. Base64 counts as it is written.
    ///
    /// ```
    /// use emitree_agent::{Part, ToolOutput};
    ///
    /// let uri = "data:image/png;base64,iVBORw0KGgo=".to_owned();
    /// let image = Part::Uri { modality: "image".to_owned(), mime_type: Some("image/png".to_owned()), uri };
    /// let output = ToolOutput::new("The chart of May.").part(image);
    /// assert_eq!(output.parts.len(), 1);
    /// ```
    #[must_use]
    pub fn part(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
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

    /// Makes an output with parts that a history or its store does not take an error. The details stay.
    pub(crate) fn check_parts(&mut self) {
        if let Some(fault) = self.fault_of_parts() {
            *self = Self { details: std::mem::take(&mut self.details), ..Self::error(fault) };
        }
    }

    fn fault_of_parts(&self) -> Option<String> {
        let mut sum = 0_usize;
        for (at, part) in self.parts.iter().enumerate() {
            if let Some(kind) = disallowed_in_result(part) {
                return Some(format!(
                    "the result has a {kind} as part {at}: parts are texts and references to content"
                ));
            }
            let bytes = stored_len(part);
            if bytes > MAX_PART {
                return Some(format!("part {at} of the result has {bytes} bytes: a part has at most {MAX_PART}"));
            }
            sum = sum.saturating_add(bytes);
        }
        (sum > MAX_PARTS).then(|| format!("the parts of the result have {sum} bytes: they have at most {MAX_PARTS}"))
    }

    /// Returns the content as text. A string is returned unchanged, and any other value is returned as JSON.
    #[must_use]
    pub fn text(&self) -> String {
        self.content.as_str().map_or_else(|| self.content.to_string(), str::to_owned)
    }
}

/// Returns the number of bytes that a part of an output has in a store, without its labels.
fn stored_len(part: &Part) -> usize {
    match part {
        Part::Text { content } => content.len(),
        Part::Uri { modality, mime_type, uri } => {
            modality.len() + mime_type.as_ref().map_or(0, String::len) + uri.len()
        }
        _ => 0,
    }
}
