//! [`IntoTool`]: the types that an agent accepts as a tool.

use crate::{Tool, ToolError};

/// A type that [`AgentBuilder::tool`](crate::AgentBuilder::tool) accepts: a [`Tool`], or the `Result` of a constructor such as
/// [`tool_fn`](crate::tool_fn).
pub trait IntoTool {
    /// Returns the tool.
    ///
    /// # Errors
    ///
    /// Returns the error of the tool's constructor.
    fn into_tool(self) -> Result<Tool, ToolError>;
}

impl IntoTool for Tool {
    fn into_tool(self) -> Result<Tool, ToolError> {
        Ok(self)
    }
}

impl IntoTool for Result<Tool, ToolError> {
    fn into_tool(self) -> Self {
        self
    }
}
