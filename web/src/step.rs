//! The closed list of steps: the changes of a page while a run is under way. A fold makes them, and encoders write them.

use std::sync::Arc;

use emitree_runtime::Interrupt;
use serde_json::Value;

/// The reasons of aborts, which pages are told. Other reasons may name what is behind the server.
pub(crate) const STOPPED: &str = "stopped by the user";
pub(crate) const GONE: &str = "the page has closed its connection";
pub(crate) const CLOSED: &str = "the server has closed the chat";
pub(crate) const DROPPED: &str = "the server has stopped";

/// The id of a sub-agent's run, or `None` for the agent that was asked.
pub(crate) type Owner = Option<Arc<str>>;

/// One change of a page.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// The run has begun. This is the first step.
    Started,
    /// The run goes on with the calls of an earlier run. The parts are the conversation so far.
    Resumed(Arc<[Part]>),
    /// The first reply of the asked agent's model begins.
    Began,
    /// A text begins.
    Opened { id: Arc<str>, kind: TextKind, owner: Owner },
    /// A piece of the text that was opened last under this id.
    Delta { id: Arc<str>, kind: TextKind, owner: Owner, text: String },
    /// A text has ended.
    Closed { id: Arc<str>, kind: TextKind, owner: Owner },
    /// A call of a tool begins. `message` is the id of the message that it belongs to.
    CallOpened { id: Arc<str>, name: Arc<str>, message: Arc<str>, owner: Owner },
    /// A piece of the arguments of a call.
    CallDelta { id: Arc<str>, owner: Owner, text: String },
    /// The arguments of a call are complete. If they are no JSON, `malformed` is their text.
    CallClosed { id: Arc<str>, name: Arc<str>, input: Value, malformed: Option<String>, owner: Owner },
    /// A call will never be complete. The text has its arguments so far. A reset follows.
    CallCut { id: Arc<str>, owner: Owner, text: String },
    /// A call has a result.
    Returned { id: Arc<str>, result: CallResult, owner: Owner },
    /// A sub-agent has begun.
    AgentStarted { id: Arc<str>, name: Arc<str>, call: Option<Arc<str>>, above: Owner },
    /// A sub-agent has ended.
    AgentEnded { id: Arc<str>, end: AgentEnd },
    /// An event that the program shows.
    Shown { id: Arc<str>, path: Arc<str>, value: Value },
    /// Some parts were taken back: these are all parts that hold. `before` is the conversation before the run.
    /// `has_begun` is `true` behind [`Began`](Self::Began).
    Reset { before: Arc<[Part]>, parts: Arc<[Part]>, has_begun: bool },
    /// The run has ended. This is the last step.
    Ended(End),
}

/// The kind of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextKind {
    Answer,
    Reasoning,
}

/// A part of a page.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) id: Arc<str>,
    pub(crate) owner: Owner,
    pub(crate) content: Content,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    /// A message of the user.
    User(String),
    Text {
        kind: TextKind,
        text: String,
    },
    Call(Call),
    /// The result of a call that an earlier run has made. The part has the id of the call.
    Result(CallResult),
    Shown {
        path: Arc<str>,
        value: Value,
    },
}

/// A call of a tool. Its part has the call's id on the page, which no other call of the conversation has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// The id that the model's server has given to the call, which need not be unique.
    pub(crate) given: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) message: Arc<str>,
    /// The arguments as text, as far as they have arrived.
    pub(crate) text: String,
    /// The arguments, once they are complete.
    pub(crate) input: Option<Value>,
    pub(crate) result: Option<CallResult>,
}

/// The result of a call, as the model reads it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallResult {
    pub(crate) response: Value,
    pub(crate) kind: ResultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultKind {
    Done,
    Failed,
    Denied,
}

/// How a sub-agent has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentEnd {
    Answered,
    Asks,
    Withheld,
    Failed,
}

/// How a run has ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    Answered { reason: &'static str },
    Asks(Vec<Asked>),
    Aborted { reason: String },
    Failed { code: &'static str, message: String },
}

/// A question, with the call that it is about.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) question: Interrupt,
    /// The call that the question is about, which may be one of a sub-agent.
    pub(crate) call: Arc<str>,
    /// The call of the asked agent that the question is about, or in which the sub-agent runs.
    pub(crate) outer: Arc<str>,
    pub(crate) owner: Owner,
}

/// The size of a list of steps or parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

impl Size {
    const MAX_COUNT: usize = 4096;
    const MAX_BYTES: usize = 1024 * 1024;

    pub(crate) const fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes;
    }

    pub(crate) const fn is_full(self) -> bool {
        self.count > Self::MAX_COUNT || self.bytes > Self::MAX_BYTES
    }

    /// Returns `true` if more than half of the room is taken.
    pub(crate) const fn is_half(self) -> bool {
        self.count > Self::MAX_COUNT / 2 || self.bytes > Self::MAX_BYTES / 2
    }
}

/// Returns the length of a value as JSON.
pub(crate) fn bytes_of(value: &Value) -> usize {
    value.to_string().len()
}

impl Part {
    pub(crate) const fn is_shown(&self) -> bool {
        matches!(self.content, Content::Shown { .. })
    }

    pub(crate) fn bytes(&self) -> usize {
        match &self.content {
            Content::User(text) | Content::Text { text, .. } => text.len(),
            Content::Call(call) => call.text.len() + call.result.as_ref().map_or(0, CallResult::bytes),
            Content::Result(result) => result.bytes(),
            Content::Shown { value, .. } => bytes_of(value),
        }
    }

    pub(crate) fn call(&self) -> Option<&Call> {
        match &self.content {
            Content::Call(call) => Some(call),
            _ => None,
        }
    }

    pub(crate) fn call_mut(&mut self) -> Option<&mut Call> {
        match &mut self.content {
            Content::Call(call) => Some(call),
            _ => None,
        }
    }
}

impl CallResult {
    pub(crate) fn bytes(&self) -> usize {
        bytes_of(&self.response)
    }

    /// Returns the result as text.
    pub(crate) fn text(&self) -> String {
        self.response.as_str().map_or_else(|| self.response.to_string(), str::to_owned)
    }
}
