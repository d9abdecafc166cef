//! Places: the steps of an agent's loop that middleware can intercept.

pub(crate) mod action;
pub(crate) mod batch;
pub(crate) mod filters;
pub(crate) mod hooks;
pub(crate) mod state;
pub(crate) mod testing;

use std::fmt;

/// A step of an agent's loop that middleware can intercept, in the order of a turn.
///
/// Places of the first and the last group enclose the others. Onion places are layers of a run, chain places pass a value
/// from hook to hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The whole run of the agent: an onion.
    AgentRun,
    /// State and history before each model call: a chain. Changes are kept.
    ModelState,
    /// The messages of this model call: a chain on a copy, which the history does not see.
    ModelContext,
    /// The system prompt: contributions, then a chain.
    ModelPrompt,
    /// The final messages: one hook, the last registered.
    ModelWire,
    /// The model's run: an onion.
    ModelCall,
    /// The pieces of a reply: stages, fresh for each attempt.
    ModelChunk,
    /// The consequences of a response: a chain.
    TurnAction,
    /// A tool call may become another one: the first answer wins.
    ToolResolve,
    /// All calls of a turn, before any of them starts: a chain.
    ToolGate,
    /// The run of a tool: an onion.
    ToolCall,
    /// The result of a call, in call order, after all have settled: a chain.
    ToolResult,
    /// The end of a run after a turn: any yes ends it.
    TurnStop,
    /// Messages to go on with at the end of a run: all are collected.
    RunEnd,
}

impl Place {
    /// All places, in the order of a turn.
    pub const ALL: [Self; 14] = [
        Self::AgentRun,
        Self::ModelState,
        Self::ModelContext,
        Self::ModelPrompt,
        Self::ModelWire,
        Self::ModelCall,
        Self::ModelChunk,
        Self::TurnAction,
        Self::ToolResolve,
        Self::ToolGate,
        Self::ToolCall,
        Self::ToolResult,
        Self::TurnStop,
        Self::RunEnd,
    ];

    /// Returns the name of the place, as it stands behind the id of a middleware: `<id>.<place>`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AgentRun => "agent.run",
            Self::ModelState => "model.state",
            Self::ModelContext => "model.context",
            Self::ModelPrompt => "model.prompt",
            Self::ModelWire => "model.wire",
            Self::ModelCall => "model.call",
            Self::ModelChunk => "model.chunk",
            Self::TurnAction => "turn.action",
            Self::ToolResolve => "tool.resolve",
            Self::ToolGate => "tool.gate",
            Self::ToolCall => "tool.call",
            Self::ToolResult => "tool.result",
            Self::TurnStop => "turn.stop",
            Self::RunEnd => "run.end",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
