//! The kinds of errors, and all that depends on the kind (R6, M9): who adds one is asked here, and in `outcome.rs`.

use emitree_emitter::EmitErrorKind;
use serde::{Deserialize, Serialize};

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
        match self {
            Self::Failed | Self::Panicked | Self::Invalid => false,
            Self::Denied { .. } | Self::Halted { .. } | Self::Aborted | Self::TimedOut => true,
            Self::Interrupted | Self::Dropped | Self::Retry => true,
        }
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

    /// How an explanation of such an error begins.
    pub(crate) fn prefix(&self) -> String {
        match self {
            Self::Denied { by } => format!("denied by {by}: "),
            Self::Halted { by } => format!("halted by {by}: "),
            Self::Panicked => "panicked: ".to_owned(),
            Self::Aborted => "aborted: ".to_owned(),
            Self::Retry => "retry requested: ".to_owned(),
            // Their messages say it.
            Self::Failed | Self::Invalid | Self::TimedOut | Self::Interrupted | Self::Dropped => String::new(),
        }
    }
}
