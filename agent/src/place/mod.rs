//! Places: the steps of an agent's loop that middleware can intercept.

pub(crate) mod action;
pub(crate) mod batch;
pub(crate) mod built;
pub(crate) mod compaction;
pub(crate) mod filters;
pub(crate) mod hooks;
pub(crate) mod request;
pub(crate) mod restore;
pub(crate) mod state;
pub(crate) mod testing;
pub(crate) mod values;

use std::fmt;

/// A step of an agent's loop that middleware can intercept. The variants are in the order of a turn.
///
/// At an onion place, hooks are layers around a run. At a chain place, a value passes from hook to hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The whole run of the agent: an onion of layers.
    AgentRun,
    /// The first use of a session in this process, by a run of the agent: hooks that prepare the session's state.
    AgentStart,
    /// A value of [`Session::send`](crate::Session::send), before each model call: only the hooks of the middleware to
    /// which it was sent are called.
    AgentMessage,
    /// The messages of [`Session::steer`](crate::Session::steer) and its siblings before they enter the history: a chain
    /// of hooks.
    SteerInject,
    /// The history before each model call: a chain of hooks. Their changes stay in the session.
    ModelState,
    /// The older messages of the history that a middleware is about to replace, for example with a summary: a chain of
    /// hooks. A halt keeps the messages, and the run continues. See [`Compaction`](crate::hook::Compaction).
    ContextCompact,
    /// The messages of one model call: a chain of hooks that change a copy, but not the history.
    ModelContext,
    /// The system prompt: the parts that hooks add, then a chain of hooks that change the joined text.
    ModelPrompt,
    /// The final messages: only the last registered hook is called.
    ModelWire,
    /// The whole request of one model call, and the model: a chain of hooks.
    ModelRequest,
    /// The model's run: an onion of layers.
    ModelCall,
    /// The pieces of a reply: stages, which are created for each attempt.
    ModelChunk,
    /// The decision about a response: a chain of hooks.
    TurnAction,
    /// A call that an earlier run has left open, before a resumed run makes it again: a chain of hooks, which may refuse
    /// it. See [`OpenCall`](crate::hook::OpenCall).
    ToolRestore,
    /// A tool call before it is checked: the first hook that returns another call replaces it.
    ToolResolve,
    /// All calls of a turn, before any of them starts: a chain of hooks.
    ToolGate,
    /// The run of a tool: an onion of layers.
    ToolCall,
    /// The result of each call, in call order, after all calls have settled: a chain of hooks.
    ToolResult,
    /// The calls that [`Session::interject`](crate::Session::interject) has skipped: hooks that observe them.
    SteerSkip,
    /// The end of a turn: the first hook that returns `true` ends the loop. Then [`RunEnd`](Self::RunEnd) follows.
    TurnStop,
    /// The end of the loop: hooks may add messages, which start another round.
    RunEnd,
}

impl Place {
    /// All places, in the order of a turn.
    pub const ALL: [Self; 21] = [
        Self::AgentRun,
        Self::AgentStart,
        Self::AgentMessage,
        Self::SteerInject,
        Self::ModelState,
        Self::ContextCompact,
        Self::ModelContext,
        Self::ModelPrompt,
        Self::ModelWire,
        Self::ModelRequest,
        Self::ModelCall,
        Self::ModelChunk,
        Self::TurnAction,
        Self::ToolRestore,
        Self::ToolResolve,
        Self::ToolGate,
        Self::ToolCall,
        Self::ToolResult,
        Self::SteerSkip,
        Self::TurnStop,
        Self::RunEnd,
    ];

    /// Returns the name of the place, such as `model.state`. A hook's name is `<id>.<place>`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AgentRun => "agent.run",
            Self::AgentStart => "agent.start",
            Self::AgentMessage => "agent.message",
            Self::SteerInject => "steer.inject",
            Self::ModelState => "model.state",
            Self::ContextCompact => "context.compact",
            Self::ModelContext => "model.context",
            Self::ModelPrompt => "model.prompt",
            Self::ModelWire => "model.wire",
            Self::ModelRequest => "model.request",
            Self::ModelCall => "model.call",
            Self::ModelChunk => "model.chunk",
            Self::TurnAction => "turn.action",
            Self::ToolRestore => "tool.restore",
            Self::ToolResolve => "tool.resolve",
            Self::ToolGate => "tool.gate",
            Self::ToolCall => "tool.call",
            Self::ToolResult => "tool.result",
            Self::SteerSkip => "steer.skip",
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
