//! The name and the tools of an agent, for the check of a middleware.

use std::sync::Arc;

use emitree_runtime::{Error, Result};
use parking_lot::Mutex;

use crate::{Tool, ToolSpec};

/// The name and the tools of an agent, for [`AgentMiddleware::check`](crate::AgentMiddleware::check).
#[derive(Debug)]
pub struct AgentSpec {
    name: String,
    tools: Arc<Vec<ToolSpec>>,
    tools_may_change: bool,
    expected: ExpectedTools,
}

impl AgentSpec {
    pub(crate) fn new(name: &str, tools: Arc<Vec<ToolSpec>>, tools_may_change: bool) -> Self {
        Self { name: name.to_owned(), tools, tools_may_change, expected: ExpectedTools::default() }
    }

    /// Returns the name of the agent.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the tools of the agent and of all its middlewares, without those that [`Hooks::tools`](crate::Hooks::tools)
    /// asks for at each turn.
    #[must_use]
    pub fn tools(&self) -> &[ToolSpec] {
        &self.tools
    }

    /// Returns `true` if a middleware uses [`Hooks::tools`](crate::Hooks::tools).
    #[must_use]
    pub const fn tools_may_change(&self) -> bool {
        self.tools_may_change
    }

    /// Checks that the agent has a tool that a middleware names. `by` is the id of the middleware. If
    /// [tools may change](Self::tools_may_change), the tool may come later: if no turn of the first run has it, one
    /// warning is logged when that run ends.
    ///
    /// # Errors
    ///
    /// Returns an error that lists the agent's tools if the agent has no tool with this name, and tools do not change.
    pub fn expect_tool(&self, by: &str, tool: &str) -> Result<()> {
        if self.tools.iter().any(|spec| spec.name == tool) {
            return Ok(());
        }
        if self.tools_may_change {
            self.expected.0.lock().push(Expected { by: by.to_owned(), tool: tool.to_owned() });
            return Ok(());
        }
        let tools: Vec<_> = self.tools.iter().map(|spec| format!("`{}`", spec.name)).collect();
        let has = if tools.is_empty() { "has no tools".to_owned() } else { format!("has only {}", tools.join(", ")) };
        Err(Error::new(format!("the middleware `{by}` names the tool `{tool}`, but the agent `{}` {has}", self.name)))
    }

    pub(crate) fn into_expected(self) -> ExpectedTools {
        self.expected
    }
}

/// The tools that middlewares name, and that no turn has had yet.
#[derive(Debug, Default)]
pub(crate) struct ExpectedTools(Mutex<Vec<Expected>>);

#[derive(Debug)]
struct Expected {
    by: String,
    tool: String,
}

impl ExpectedTools {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Notes the tools of a turn.
    pub(crate) fn see(&self, tools: &[Tool]) {
        self.0.lock().retain(|expected| tools.iter().all(|tool| tool.spec().name != expected.tool));
    }

    /// Moves the tools that another list still expects into this list.
    pub(crate) fn take_over(&self, other: &Self) {
        let mut others = std::mem::take(&mut *other.0.lock());
        self.0.lock().append(&mut others);
    }

    /// Warns of the tools that no turn of a run had. Each of them is warned of once.
    pub(crate) fn warn(&self, agent: &str) {
        // A `tracing` subscriber is user code, so it is called without the lock.
        let missing = std::mem::take(&mut *self.0.lock());
        for Expected { by, tool } in missing {
            tracing::warn!("the middleware `{by}` names the tool `{tool}`, but no turn of the agent `{agent}` had it");
        }
    }
}
