//! A tool's own events.

use emitree_emitter::{Event, EventName};
use emitree_runtime::ErrorReport;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ToolOutput;

/// The event `start`: the tool's function is about to be called. The event is emitted for each attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolStart {
    /// The arguments. Changes by a listener have no effect, because the guards have already decided on the arguments.
    pub input: Value,
    /// The id of the call, if an agent executes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
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

/// The event `retry`: another attempt follows a failed attempt. The event is emitted after `finish` of the failed
/// attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolRetry {
    /// The number of the retry, from 1.
    pub retry: u32,
    /// The error of the failed attempt.
    pub error: ErrorReport,
}

/// The event `retries_exceeded`: the last retry has failed as well, with a retryable error. The run returns this error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolRetriesExceeded {
    /// The number of retries.
    pub retries: u32,
    /// The error of the last attempt.
    pub error: ErrorReport,
}

/// The event `finish`: an attempt has ended, after `success` or `error`. If the attempt is dropped before `success` or
/// `error`, none of these three events is emitted; the run still emits [`Finish`](emitree_runtime::Finish).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolFinish {}

impl Event for ToolStart {
    const NAME: EventName = EventName::new("start");

    fn head(&self) -> Option<Value> {
        Some(json!({"call_id": self.call_id.as_ref()?}))
    }
}

impl Event for ToolSuccess {
    const NAME: EventName = EventName::new("success");
}

impl Event for ToolFailure {
    const NAME: EventName = EventName::new("error");
}

impl Event for ToolRetry {
    const NAME: EventName = EventName::new("retry");

    fn head(&self) -> Option<Value> {
        Some(json!({"retry": self.retry}))
    }
}

impl Event for ToolRetriesExceeded {
    const NAME: EventName = EventName::new("retries_exceeded");
}

impl Event for ToolFinish {
    const NAME: EventName = EventName::new("finish");
}
