//! The own events of a tool's run.

use emitree_emitter::{Event, EventName};
use emitree_runtime::ErrorReport;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ToolOutput;

/// The event `start`: the tool is about to work. Emitted for each attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolStart {
    /// The arguments. A listener may change them; they are validated again then.
    pub input: Value,
}

/// The event `success`: an attempt has succeeded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolSuccess {
    /// The output. A listener may change it.
    pub output: ToolOutput,
}

/// The event `error`: an attempt has failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolFailure {
    /// The error as data.
    pub error: ErrorReport,
}

/// The event `retry`: a failed attempt is followed by another one. Emitted after `finish` of the failed attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolRetry {
    /// The number of the retry, from 1.
    pub retry: u32,
    /// The error of the failed attempt.
    pub error: ErrorReport,
}

/// The event `retries_exceeded`: the last retry has failed as well. The error is the run's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolRetriesExceeded {
    /// The number of retries.
    pub retries: u32,
    /// The error of the last attempt.
    pub error: ErrorReport,
}

/// The event `finish`: an attempt is over, after `success` or `error`. An attempt that is dropped emits none of these; the
/// run's own [`Finish`](emitree_runtime::Finish) always comes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolFinish {}

impl Event for ToolStart {
    const NAME: EventName = EventName::new("start");
}

impl Event for ToolSuccess {
    const NAME: EventName = EventName::new("success");
}

impl Event for ToolFailure {
    const NAME: EventName = EventName::new("error");
}

impl Event for ToolRetry {
    const NAME: EventName = EventName::new("retry");
}

impl Event for ToolRetriesExceeded {
    const NAME: EventName = EventName::new("retries_exceeded");
}

impl Event for ToolFinish {
    const NAME: EventName = EventName::new("finish");
}
