//! The outcome of a run (R6).

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Error, ErrorKind, Interrupt};

/// The outcome of a run: its output, or the way in which it ended without an output.
///
/// In JSON it is an object with the [`Status`] and the fields of the variant: `{"status": "success", "output": …}`,
/// `{"status": "denied", "by": …, "reason": …}` and so on.
///
/// ```
/// use emitree_runtime::{Error, Outcome, Status};
///
/// let outcome = Outcome::<u32>::of_error(&Error::denied("policy", "not on Sundays"));
/// assert_eq!(outcome.status(), Status::Denied);
/// let json = serde_json::json!({"status": "denied", "by": "policy", "reason": "not on Sundays"});
/// assert_eq!(serde_json::to_value(&outcome)?, json);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome<O> {
    /// The run has an output.
    Success {
        /// The output that the caller receives.
        output: O,
    },
    /// The work, a listener or a middleware failed.
    Failed {
        /// The error that the caller receives.
        error: Error,
    },
    /// A guard denied the run.
    Denied {
        /// The name of the guard.
        by: String,
        /// The reason.
        reason: String,
    },
    /// A middleware or other code stopped the run on purpose.
    Halted {
        /// The name of the code that stopped the run.
        by: String,
        /// The reason.
        reason: String,
    },
    /// The run was aborted.
    Aborted {
        /// The reason.
        reason: String,
    },
    /// The run took too long.
    TimedOut,
    /// The run ended with a question.
    Interrupted {
        /// The question.
        interrupt: Interrupt,
    },
    /// The work, a listener or a middleware panicked.
    Panicked {
        /// The message of the panic.
        message: String,
    },
    /// The run's future was dropped.
    Dropped,
}

impl<O> Outcome<O> {
    /// Returns the outcome of a run that ended with this error.
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

    /// Returns the outcome as JSON, without the output and without the data of a question.
    pub(crate) fn head(&self) -> Value {
        let mut head = match self {
            Self::Success { .. } | Self::TimedOut | Self::Dropped => json!({}),
            Self::Failed { error } => json!({"error": error.head()}),
            Self::Denied { by, reason } | Self::Halted { by, reason } => json!({"by": by, "reason": reason}),
            Self::Aborted { reason } => json!({"reason": reason}),
            Self::Interrupted { interrupt } => json!({"interrupt": interrupt.head()}),
            Self::Panicked { message } => json!({"message": message}),
        };
        head["status"] = self.status().as_str().into();
        head
    }

    /// Returns the outcome without its data.
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

/// An [`Outcome`] without its data.
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
    /// Returns the name of the status in JSON and in the span of a run.
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
