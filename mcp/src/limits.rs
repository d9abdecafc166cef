//! The most that a server may send.

/// The most that a server may send. A tool over a limit is withheld, with the event
/// [`ToolWithheld`](crate::events::ToolWithheld).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The most bytes of a line, an event of a stream, or a body. A longer one closes the connection, and the calls
    /// under way fail. The default is 4 MiB.
    pub message_bytes: usize,
    /// The most tools. The default is 1,000.
    pub tools: usize,
    /// The most bytes of the schema of a tool's arguments, as JSON. The default is 64 KiB.
    pub schema_bytes: usize,
    /// The most levels of a schema. The default is 32.
    pub schema_levels: usize,
    /// The most values of a schema, with each `$ref` counted as often as it is used. The default is 10,000.
    pub schema_nodes: usize,
    /// The most bytes of a description. The default is 4 KiB.
    pub description_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: 4 << 20,
            tools: 1_000,
            schema_bytes: 64 << 10,
            schema_levels: 32,
            schema_nodes: 10_000,
            description_bytes: 4 << 10,
        }
    }
}

impl Limits {
    /// Sets the most bytes of a message.
    #[must_use]
    pub const fn message_bytes(mut self, bytes: usize) -> Self {
        self.message_bytes = bytes;
        self
    }

    /// Sets the most tools.
    #[must_use]
    pub const fn tools(mut self, tools: usize) -> Self {
        self.tools = tools;
        self
    }

    /// Sets the most bytes of a schema.
    #[must_use]
    pub const fn schema_bytes(mut self, bytes: usize) -> Self {
        self.schema_bytes = bytes;
        self
    }

    /// Sets the most levels of a schema.
    #[must_use]
    pub const fn schema_levels(mut self, levels: usize) -> Self {
        self.schema_levels = levels;
        self
    }

    /// Sets the most values of a schema.
    #[must_use]
    pub const fn schema_nodes(mut self, nodes: usize) -> Self {
        self.schema_nodes = nodes;
        self
    }

    /// Sets the most bytes of a description.
    #[must_use]
    pub const fn description_bytes(mut self, bytes: usize) -> Self {
        self.description_bytes = bytes;
        self
    }
}
