//! An error as data: what sort of end it is, and all that is known of it (R10).

use emitree_emitter::EmitErrorKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::runnable::value::sorted;
use crate::{Interrupt, RetryRequest};

/// What sort of end it is. Denial, halt, abort, time-out, interrupt and the request for a retry are control flow: a
/// layer that catches failures does not catch them (M9).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The work, or a listener, failed.
    Failed,
    /// The work, or a listener, panicked.
    Panicked,
    /// A value does not fit the type that it was given for.
    Invalid,
    /// Something that guards said no.
    Denied {
        /// Who said no.
        by: String,
    },
    /// Something stopped the run on purpose.
    Halted {
        /// Who stopped it.
        by: String,
    },
    /// The run was aborted.
    Aborted,
    /// The run took too long.
    TimedOut,
    /// The run was interrupted, and can be resumed: [`Error::interrupt`](crate::Error::interrupt) says by what.
    Interrupted,
    /// The run's future was dropped.
    Dropped,
    /// A middleware asks that the whole attempt starts again: [`Error::retry_request`](crate::Error::retry_request) says why.
    Retry,
}

impl ErrorKind {
    /// Whether it is control flow, and not a failure.
    #[must_use]
    pub const fn is_control_flow(&self) -> bool {
        !matches!(self, Self::Failed | Self::Panicked | Self::Invalid)
    }

    /// How severe it is where several come together, 0 first (M9): a denial is never lost to an end that asks for less.
    pub(crate) const fn severity(&self) -> u8 {
        match self {
            Self::Denied { .. } => 0,
            Self::Halted { .. } => 1,
            Self::Aborted | Self::Dropped => 2,
            Self::Interrupted => 3,
            Self::Retry => 4,
            Self::TimedOut | Self::Failed | Self::Panicked | Self::Invalid => 5,
        }
    }

    /// Whether trying again can help. What took too long may be in time then; all other control flow somebody wanted (R6).
    pub(crate) const fn may_be_retryable(&self) -> bool {
        !self.is_control_flow() || matches!(self, Self::TimedOut)
    }

    pub(crate) const fn of_emit(kind: &EmitErrorKind) -> Self {
        match kind {
            EmitErrorKind::Panicked { .. } => Self::Panicked,
            _ => Self::Failed,
        }
    }
}

/// An error as data, as it stands in an event or a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ErrorReport {
    /// What sort of end it is.
    pub kind: ErrorKind,
    /// What happened.
    pub message: String,
    /// What caused it, nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// What was known when it happened.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub context: Map<String, Value>,
    /// What it was interrupted by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt: Option<Interrupt>,
    /// What was asked for with the request for a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryRequest>,
    /// Whether trying again may help.
    pub is_retryable: bool,
    /// Whether nothing that depends on the run can go on.
    pub is_fatal: bool,
}

impl ErrorReport {
    /// Everything about it for a person, as [`Error::explain`](crate::Error::explain) has it.
    #[must_use]
    pub fn explain(&self) -> String {
        let causes = self.causes.iter().map(|cause| format!("\n  caused by: {}", indented(cause)));
        let mut context = self.context.clone();
        context.sort_keys();
        let facts = context.iter().map(|(key, value)| format!("\n  {key}: {}", sorted(value)));
        [self.sort_of_end(), self.message.clone()].into_iter().chain(causes).chain(facts).collect()
    }

    fn sort_of_end(&self) -> String {
        match &self.kind {
            ErrorKind::Denied { by } => format!("denied by {by}: "),
            ErrorKind::Halted { by } => format!("halted by {by}: "),
            ErrorKind::Panicked => "panicked: ".to_owned(),
            ErrorKind::Aborted => "aborted: ".to_owned(),
            ErrorKind::Retry => "retry requested: ".to_owned(),
            _ => String::new(),
        }
    }
}

/// A cause of several lines stays below its first one.
fn indented(cause: &str) -> String {
    cause.replace('\n', "\n    ")
}
