//! Ends of a run that are no failures, as errors: who wanted them, and what they carry (R6, M7, M8, M9).

use serde_json::Value;

use crate::{Error, ErrorKind, Interrupt, RetryRequest};

/// What a kind of control flow carries besides its reason.
#[derive(Clone)]
pub(crate) enum ControlData {
    Interrupt(Interrupt),
    Retry {
        metadata: Value,
        /// Once it has left the run that it was made in, it is no request any more.
        is_spent: bool,
    },
}

impl Error {
    /// A denial, by whom and why.
    #[must_use]
    pub fn denied(by: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Denied { by: by.into() }, reason)
    }

    /// A halt, by whom and why.
    #[must_use]
    pub fn halted(by: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Halted { by: by.into() }, reason)
    }

    /// An abort, and why.
    #[must_use]
    pub fn aborted(reason: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Aborted, reason)
    }

    /// A time-out, and of what.
    #[must_use]
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::TimedOut, message)
    }

    /// An interrupt: the run ends with it as its outcome, and can be resumed (M8).
    #[must_use]
    pub fn interrupted(interrupt: Interrupt) -> Self {
        let message = format!("interrupted: {}", interrupt.kind);
        Self::of_kind(ErrorKind::Interrupted, message).carrying(ControlData::Interrupt(interrupt))
    }

    /// A request that the whole attempt starts again, and why (M7). It is met as often as
    /// [`Run::max_middleware_retries`](crate::Run::max_middleware_retries) says.
    #[must_use]
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::retry_with(reason, Value::Null)
    }

    /// The same, with data for whoever makes the next attempt: it stands in
    /// [`RunContext::feedback`](crate::RunContext::feedback).
    #[must_use]
    pub fn retry_with(reason: impl Into<String>, metadata: impl Into<Value>) -> Self {
        let extra = ControlData::Retry { metadata: metadata.into(), is_spent: false };
        Self::of_kind(ErrorKind::Retry, reason).carrying(extra)
    }

    /// Whether something that guards said no.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self.kind(), ErrorKind::Denied { .. })
    }

    /// Whether something stopped the run on purpose.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        matches!(self.kind(), ErrorKind::Halted { .. })
    }

    /// Whether the run was aborted.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        *self.kind() == ErrorKind::Aborted
    }

    /// Whether something took too long.
    #[must_use]
    pub fn is_timed_out(&self) -> bool {
        *self.kind() == ErrorKind::TimedOut
    }

    /// Whether the run was interrupted.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        *self.kind() == ErrorKind::Interrupted
    }

    /// Whether it is the request for a retry.
    #[must_use]
    pub fn is_retry(&self) -> bool {
        *self.kind() == ErrorKind::Retry
    }

    /// Whether it is control flow, and not a failure.
    #[must_use]
    pub fn is_control_flow(&self) -> bool {
        self.kind().is_control_flow()
    }

    /// What it was interrupted by, if it is an interrupt.
    #[must_use]
    pub fn interrupt(&self) -> Option<&Interrupt> {
        match self.extra() {
            Some(ControlData::Interrupt(interrupt)) => Some(interrupt),
            _ => None,
        }
    }

    /// What was asked for, if it is the request for a retry.
    #[must_use]
    pub fn retry_request(&self) -> Option<RetryRequest> {
        match self.extra() {
            Some(ControlData::Retry { metadata, .. }) => Some(RetryRequest::new(self, metadata)),
            _ => None,
        }
    }

    /// Whether layers have to let it pass (M9). A time-out they may catch: it is control flow only for the run that
    /// took too long.
    pub(crate) fn must_pass(&self) -> bool {
        match self.kind() {
            ErrorKind::Retry => self.is_open_request(),
            kind => kind.is_control_flow() && *kind != ErrorKind::TimedOut,
        }
    }

    pub(crate) fn is_open_request(&self) -> bool {
        matches!(self.extra(), Some(ControlData::Retry { is_spent: false, .. }))
    }

    /// As it leaves its run: what was requested there is for the runs above a failure like others.
    pub(crate) fn leaving(self) -> Self {
        match self.extra() {
            Some(ControlData::Retry { metadata, is_spent: false }) => {
                let metadata = metadata.clone();
                self.carrying(ControlData::Retry { metadata, is_spent: true })
            }
            _ => self,
        }
    }
}
