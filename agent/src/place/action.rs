//! The values that hooks of the chain places receive.

use std::sync::Arc;

use emitree_runtime::{Filters, Result, RunContext};
use serde::{Deserialize, Serialize};

use crate::place::batch::ends_the_run;
use crate::place::filters::apply_caught;
use crate::tool::output::ToolOutput;
use crate::{ChatResponse, Message, ToolCall};

/// The messages of a model call. They are shared with the history until a hook changes them.
pub type Messages = Vec<Arc<Message>>;

/// A model's response and the decision about it: the value at [`Place::TurnAction`](crate::Place::TurnAction).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TurnAction {
    /// The response. If a hook changes the response, later hooks and the history receive the changed response.
    pub response: ChatResponse,
    /// Messages to add after the results of the turn. If there are messages, [`TurnDecision::Natural`] calls the model
    /// again after a response without tool calls.
    pub inject: Vec<Message>,
    /// The decision. A hook may replace the decision of an earlier hook. `None` means [`TurnDecision::Natural`].
    pub decision: Option<TurnDecision>,
}

impl TurnAction {
    /// Makes the value that the first hook receives.
    #[must_use]
    pub const fn new(response: ChatResponse) -> Self {
        Self { response, inject: Vec::new(), decision: None }
    }
}

/// A decision about a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TurnDecision {
    /// Calls are executed. An answer without calls ends the loop, unless messages are injected.
    Natural,
    /// The loop ends, but hooks of `run.end` may start another round. Calls are answered with "not executed".
    Stop,
    /// The model is called again, unless `turn.stop` ends the loop. Calls are answered with "not executed".
    LoopToModel,
}

/// The result of one tool call: the value at [`Place::ToolResult`](crate::Place::ToolResult).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallResult {
    /// The call, after changes by hooks of `tool.resolve` and `tool.gate`. The history keeps the call as the model
    /// wrote it.
    pub call: ToolCall,
    /// The origin of the result.
    pub how: How,
    /// The result.
    pub output: ToolOutput,
}

impl CallResult {
    /// Makes a result, for tests of hooks.
    #[must_use]
    pub const fn new(call: ToolCall, how: How, output: ToolOutput) -> Self {
        Self { call, how, output }
    }

    /// Passes the result through hooks of `tool.result`. If a hook fails or panics, its error becomes the result.
    /// Returns an error only if the error of a hook interrupts or ends the run.
    pub(crate) async fn pass(&mut self, hooks: impl Iterator<Item = &Filters<Self>>, ctx: &RunContext) -> Result<()> {
        let id = self.call.id.clone();
        for hook in hooks {
            let passed = apply_caught(hook, self, ctx).await;
            // Restore the id: with another id, the result would belong to another call.
            self.call.id.clone_from(&id);
            if let Err(error) = passed {
                if ends_the_run(&error) || error.is_interrupted() {
                    return Err(error);
                }
                self.how = if error.is_denied() { How::Denied } else { How::Failed };
                self.output = ToolOutput::error(error.to_string());
            }
            self.output.check_parts();
        }
        Ok(())
    }
}

/// The origin of the result of a tool call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum How {
    /// The run of the tool succeeded. The output may still have [`is_error`](ToolOutput::is_error) set.
    #[default]
    Executed,
    /// A gate set the output.
    Answered,
    /// A gate skipped the call.
    Skipped,
    /// A gate, a guard or another middleware denied the call.
    Denied,
    /// The call failed: for example, its tool failed or does not exist, or its arguments are invalid.
    Failed,
}

/// A turn that has ended: the value at [`Place::TurnStop`](crate::Place::TurnStop).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TurnEnd {
    /// The response, as the history keeps it.
    pub response: Arc<Message>,
    /// The results of the calls, in call order. Empty if there were no calls, or if they were not executed.
    pub results: Vec<CallResult>,
}

impl TurnEnd {
    /// Makes the end of a turn, for tests of hooks.
    #[must_use]
    pub fn new(response: Message, results: Vec<CallResult>) -> Self {
        Self { response: Arc::new(response), results }
    }
}
