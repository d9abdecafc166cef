//! How a run ended (R6).

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Interrupt};

/// How a run ended.
///
/// In JSON: `{"status": "success", "output": …}`, `{"status": "denied", "by": …, "reason": …}` and so on.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome<O> {
    /// It has an output.
    Success {
        /// What the caller gets.
        output: O,
    },
    /// Its work failed, or a listener did.
    Failed {
        /// Why.
        error: Error,
    },
    /// Something that guards said no.
    Denied {
        /// Who said no.
        by: String,
        /// Why.
        reason: String,
    },
    /// Something stopped it on purpose.
    Halted {
        /// Who stopped it.
        by: String,
        /// Why.
        reason: String,
    },
    /// It was aborted.
    Aborted {
        /// Why.
        reason: String,
    },
    /// It took too long.
    TimedOut,
    /// It was interrupted, and can be resumed.
    Interrupted {
        /// By what.
        interrupt: Interrupt,
    },
    /// Its work panicked, or a listener did.
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// Its future was dropped.
    Dropped,
}

impl<O> Outcome<O> {
    /// How a run that failed with that error ended.
    #[must_use]
    pub fn of_error(error: &Error) -> Self {
        let reason = || error.to_string();
        match error.kind() {
            ErrorKind::Failed | ErrorKind::Invalid | ErrorKind::Retry => Self::Failed { error: error.clone() },
            ErrorKind::Panicked => Self::Panicked { message: reason() },
            ErrorKind::Denied { by } => Self::Denied { by: by.clone(), reason: reason() },
            ErrorKind::Halted { by } => Self::Halted { by: by.clone(), reason: reason() },
            ErrorKind::Aborted => Self::Aborted { reason: reason() },
            ErrorKind::TimedOut => Self::TimedOut,
            ErrorKind::Interrupted => Self::Interrupted { interrupt: Interrupt::of_error(error) },
            ErrorKind::Dropped => Self::Dropped,
        }
    }

    /// Its name: that of [`Status`].
    #[must_use]
    pub const fn status(&self) -> Status {
        match self {
            Self::Success { .. } => Status::Success,
            Self::Failed { .. } => Status::Failed,
            Self::Denied { .. } => Status::Denied,
            Self::Halted { .. } => Status::Halted,
            Self::Aborted { .. } => Status::Aborted,
            Self::TimedOut => Status::TimedOut,
            Self::Interrupted { .. } => Status::Interrupted,
            Self::Panicked { .. } => Status::Panicked,
            Self::Dropped => Status::Dropped,
        }
    }
}

/// An [`Outcome`] without what it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is documented at the outcome of the same name")]
#[non_exhaustive]
pub enum Status {
    Success,
    Failed,
    Denied,
    Halted,
    Aborted,
    TimedOut,
    Interrupted,
    Panicked,
    Dropped,
}

impl Status {
    /// The name as it stands in JSON and in the span of a run.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Denied => "denied",
            Self::Halted => "halted",
            Self::Aborted => "aborted",
            Self::TimedOut => "timed_out",
            Self::Interrupted => "interrupted",
            Self::Panicked => "panicked",
            Self::Dropped => "dropped",
        }
    }
}
