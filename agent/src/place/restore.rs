//! A call that an earlier run has left open.

use emitree_runtime::{Filters, Result, RunContext};

use crate::ToolCall;
use crate::place::batch::ends_the_run;
use crate::place::filters::apply_caught;

/// A call that an earlier run of the session has left open, before it is made again: the value at
/// [`Place::ToolRestore`](crate::Place::ToolRestore).
#[derive(Clone, Debug)]
pub struct OpenCall {
    call: ToolCall,
    has_begun: bool,
    refused: Option<String>,
}

impl OpenCall {
    /// Makes the value that the first hook receives. `has_begun` is `true` if the tool's function had been called.
    #[must_use]
    pub const fn new(call: ToolCall, has_begun: bool) -> Self {
        Self { call, has_begun, refused: None }
    }

    /// Returns the call, as the hooks of the earlier run left it.
    #[must_use]
    pub const fn call(&self) -> &ToolCall {
        &self.call
    }

    /// Returns `true` if the tool's function had been called. The tool is idempotent, or the call has kept a value with
    /// which it goes on, because no hook receives another call that had begun.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Refuses the call: it is not made again, and the model reads the reason. A later reason is ignored.
    pub fn refuse(&mut self, reason: impl Into<String>) {
        self.refused.get_or_insert(reason.into());
    }

    /// Returns the reason if the call was refused.
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Passes the call through the hooks of one middleware. A failure refuses the call.
    pub(crate) async fn pass(&mut self, hooks: &Filters<Self>, ctx: &RunContext) -> Result<()> {
        let Err(error) = apply_caught(hooks, self, ctx).await else { return Ok(()) };
        if ends_the_run(&error) {
            return Err(error);
        }
        let by = error.details().get("by").and_then(|by| by.as_str()).unwrap_or("a hook");
        self.refuse(format!("not executed: `{by}` failed: {error}"));
        Ok(())
    }
}
