//! A workflow's own events.

use std::sync::Arc;

use emitree_emitter::{EmitterBuilder, Event, EventName};
use emitree_runtime::{Data, ErrorReport};
use serde::{Deserialize, Serialize};

/// The event `start`: a step is about to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepStart {
    /// The name of the step.
    pub step: Arc<str>,
    /// The number of the step in this attempt of the run, from 1.
    pub number: u32,
}

/// The event `success`: a step has succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepSuccess<S> {
    /// The name of the step.
    pub step: Arc<str>,
    /// The name of the step that follows; `None` if the workflow ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Arc<str>>,
    /// The state after the step.
    pub state: Arc<S>,
}

/// The event `error`: a step has failed, and with it the workflow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepFailure<S> {
    /// The name of the step.
    pub step: Arc<str>,
    /// The error as data, before layers and `map_error` functions of the workflow's run change it.
    pub error: ErrorReport,
    /// The state before the step.
    pub state: Arc<S>,
}

/// Declares a workflow's events as data, so that a redaction replaces secrets in them.
pub(super) fn declared<S: Data>(emitter: EmitterBuilder) -> EmitterBuilder {
    emitter.declares_data::<StepStart>().declares_data::<StepSuccess<S>>().declares_data::<StepFailure<S>>()
}

impl Event for StepStart {
    const NAME: EventName = EventName::new("start");
}

impl<S: Data> Event for StepSuccess<S> {
    const NAME: EventName = EventName::new("success");
}

impl<S: Data> Event for StepFailure<S> {
    const NAME: EventName = EventName::new("error");
}
