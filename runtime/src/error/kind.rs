//! The kinds of errors, and their properties (R6, M9). To add a kind, change this file and `outcome.rs`.

use emitree_emitter::EmitErrorKind;
use serde::{Deserialize, Serialize};

/// The kind of an [`Error`](crate::Error): a failure or control flow.
///
/// `Failed`, `Panicked` and `Invalid` are failures; all other kinds are control flow, which is never fatal. A layer may
/// catch a failure, a timeout, or a request for a retry that ended a nested run, and return another result. Any other
/// control flow that a layer receives from `next` replaces the output or the failure that the layer returns, unless the
/// layer [absorbs](crate::Next::absorb) it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The work, a listener or a middleware failed.
    Failed,
    /// The work, a listener or a middleware panicked.
    Panicked,
    /// A value does not fit its type, or a middleware does not fit the run.
    Invalid,
    /// A guard denied the run.
    Denied {
        /// The name of the guard.
        by: String,
    },
    /// A middleware or other code stopped the run on purpose.
    Halted {
        /// The name of the code that stopped the run.
        by: String,
    },
    /// The run was aborted.
    Aborted,
    /// The run took too long.
    TimedOut,
    /// The run ended with a question, which [`Error::interrupt`](crate::Error::interrupt) returns.
    Interrupted,
    /// The run's future was dropped.
    Dropped,
    /// Another attempt was requested. [`Error::retry_request`](crate::Error::retry_request) returns the request.
    Retry,
}

impl ErrorKind {
    /// Returns `true` for control flow, and `false` for a failure.
    #[must_use]
    pub const fn is_control_flow(&self) -> bool {
        match self {
            Self::Failed | Self::Panicked | Self::Invalid => false,
            Self::Denied { .. } | Self::Halted { .. } | Self::Aborted | Self::TimedOut => true,
            Self::Interrupted | Self::Dropped | Self::Retry => true,
        }
    }

    /// Returns the severity; 0 is the most severe (M9). A denial ranks first, so that no other error hides a denial.
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

    /// Returns `true` for failures and timeouts. Other control flow is intended: a retry would end in the same way (R6).
    pub(crate) const fn may_be_retryable(&self) -> bool {
        !self.is_control_flow() || matches!(self, Self::TimedOut)
    }

    pub(crate) const fn of_emit(kind: &EmitErrorKind) -> Self {
        match kind {
            EmitErrorKind::Panicked { .. } => Self::Panicked,
            _ => Self::Failed,
        }
    }

    /// Returns the prefix of the message in an explanation.
    pub(crate) fn prefix(&self) -> String {
        match self {
            Self::Denied { by } => format!("denied by {by}: "),
            Self::Halted { by } => format!("halted by {by}: "),
            Self::Panicked => "panicked: ".to_owned(),
            Self::Aborted => "aborted: ".to_owned(),
            Self::Retry => "retry requested: ".to_owned(),
            // Messages of these kinds name the kind, or need no prefix.
            Self::Failed | Self::Invalid | Self::TimedOut | Self::Interrupted | Self::Dropped => String::new(),
        }
    }
}
