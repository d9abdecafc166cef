//! Control flow as errors: denials, halts, aborts, timeouts, interrupts and requests for a retry (R6, M7, M8, M9).

use serde_json::Value;

use crate::{Error, ErrorKind, Interrupt, RetryRequest};

/// The data of an interrupt or of a request for a retry.
#[derive(Clone)]
pub(crate) enum ControlData {
    Interrupt(Interrupt),
    Retry {
        metadata: Value,
        /// Set when the error leaves its run. From then on the error starts no further attempt.
        is_spent: bool,
    },
}

impl Error {
    /// Creates a denial: a guard, named `by`, forbids the run.
    ///
    /// ```
    /// use emitree_runtime::{Error, ErrorKind};
    ///
    /// let error = Error::denied("policy", "not on Sundays");
    /// assert_eq!(error.kind(), &ErrorKind::Denied { by: "policy".to_owned() });
    /// assert_eq!(error.to_string(), "not on Sundays");
    /// assert_eq!(error.explain(), "denied by policy: not on Sundays");
    /// ```
    #[must_use]
    pub fn denied(by: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Denied { by: by.into() }, reason)
    }

    /// Creates a halt: a middleware or other code, named `by`, stops the run on purpose.
    ///
    /// ```
    /// use emitree_runtime::Error;
    ///
    /// assert_eq!(Error::halted("budget", "10,000 tokens are spent").explain(), "halted by budget: 10,000 tokens are spent");
    /// ```
    #[must_use]
    pub fn halted(by: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Halted { by: by.into() }, reason)
    }

    /// Creates the error of an aborted run, with this reason.
    #[must_use]
    pub fn aborted(reason: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Aborted, reason)
    }

    /// Creates a timeout error. To allow retries, mark the error as [retryable](Self::retryable).
    #[must_use]
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::TimedOut, message)
    }

    /// Creates an error that ends the run with a question; see [`Interrupt`].
    #[must_use]
    pub fn interrupted(interrupt: Interrupt) -> Self {
        let message = format!("interrupted: {}", interrupt.kind);
        Self::of_kind(ErrorKind::Interrupted, message).with_control(ControlData::Interrupt(interrupt))
    }

    /// Creates a request to start the whole attempt again.
    ///
    /// At most [`Run::max_middleware_retries`](crate::Run::max_middleware_retries) requests start another attempt; the
    /// default is 0. Any further request makes the run fail.
    ///
    /// ```
    /// use emitree_runtime::{Error, RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let flaky = runnable_fn("flaky", |(): (), ctx: RunContext| async move {
    ///     if ctx.attempt() == 0 { Err(Error::retry("the first answer was empty")) } else { Ok("an answer".to_owned()) }
    /// });
    /// assert!(flaky.run(()).await.unwrap_err().is_retry());
    /// assert_eq!(flaky.run(()).max_middleware_retries(1).await?, "an answer");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::retry_with(reason, Value::Null)
    }

    /// Creates a request to start the whole attempt again, with data that the next attempt reads from
    /// [`RunContext::feedback`](crate::RunContext::feedback).
    ///
    /// ```
    /// use emitree_runtime::{Error, RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let guess = runnable_fn("guess", |(): (), ctx: RunContext| async move {
    ///     match ctx.feedback().first() {
    ///         None => Err(Error::retry_with("too low", 40)),
    ///         Some(request) => Ok(request.metadata.as_u64().unwrap_or_default() + 2),
    ///     }
    /// });
    /// assert_eq!(guess.run(()).max_middleware_retries(1).await?, 42);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn retry_with(reason: impl Into<String>, metadata: impl Into<Value>) -> Self {
        let control = ControlData::Retry { metadata: metadata.into(), is_spent: false };
        Self::of_kind(ErrorKind::Retry, reason).with_control(control)
    }

    /// Returns `true` for a denial.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self.kind(), ErrorKind::Denied { .. })
    }

    /// Returns `true` for a halt.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        matches!(self.kind(), ErrorKind::Halted { .. })
    }

    /// Returns `true` for an abort.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        *self.kind() == ErrorKind::Aborted
    }

    /// Returns `true` for a timeout.
    #[must_use]
    pub fn is_timed_out(&self) -> bool {
        *self.kind() == ErrorKind::TimedOut
    }

    /// Returns `true` for an interrupt.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        *self.kind() == ErrorKind::Interrupted
    }

    /// Returns `true` for a request for a retry, whether or not it started another attempt.
    #[must_use]
    pub fn is_retry(&self) -> bool {
        *self.kind() == ErrorKind::Retry
    }

    /// Returns `true` if the error is control flow, and `false` if it is a failure; see [`ErrorKind`].
    ///
    /// ```
    /// use emitree_runtime::Error;
    ///
    /// assert!(Error::timed_out("no answer in 5 s").is_control_flow());
    /// assert!(!Error::new("no answer").is_control_flow());
    /// ```
    #[must_use]
    pub fn is_control_flow(&self) -> bool {
        self.kind().is_control_flow()
    }

    /// Returns the question of an interrupt, or `None` for any other error.
    #[must_use]
    pub fn interrupt(&self) -> Option<&Interrupt> {
        match self.control() {
            Some(ControlData::Interrupt(interrupt)) => Some(interrupt),
            _ => None,
        }
    }

    /// Returns the reason and the data of a request for a retry, or `None` for any other error.
    #[must_use]
    pub fn retry_request(&self) -> Option<RetryRequest> {
        match self.control() {
            Some(ControlData::Retry { metadata, .. }) => Some(RetryRequest::new(self, metadata)),
            _ => None,
        }
    }

    /// Returns `true` if a layer must either return this error or absorb it (M9). A layer may catch a timeout, which is
    /// control flow only for the run that took too long.
    pub(crate) fn must_pass(&self) -> bool {
        match self.kind() {
            // A request that has left its run is a failure for the runs above (M7).
            ErrorKind::Retry => self.is_open_request(),
            kind => kind.is_control_flow() && *kind != ErrorKind::TimedOut,
        }
    }

    pub(crate) fn is_open_request(&self) -> bool {
        matches!(self.control(), Some(ControlData::Retry { is_spent: false, .. }))
    }

    /// Closes an open request for a retry when the error leaves its run, so that the error is a failure for the runs
    /// above.
    pub(crate) fn leaving(self) -> Self {
        match self.control() {
            Some(ControlData::Retry { metadata, is_spent: false }) => {
                let metadata = metadata.clone();
                self.with_control(ControlData::Retry { metadata, is_spent: true })
            }
            _ => self,
        }
    }
}
