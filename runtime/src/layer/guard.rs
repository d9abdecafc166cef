//! Layers that check values and may deny a call (M2, M5).

use std::any::type_name;
use std::fmt;
use std::future::{Future, ready};
use std::time::Duration;

use tokio::time::Instant;

use crate::layer::would_deny::{Checked, WouldDeny};
use crate::run::panic::{caught, caught_async, discard};
use crate::{Error, Layer, Next, Op, Result, RunContext, Summary};

/// A layer that checks input and output. It can deny the call, but cannot change the values.
///
/// A guard fails closed: if a check fails, panics or times out, the call is denied by this guard, with the error as the
/// cause. Control flow that a check returns, such as [`Error::halted`] or [`Error::retry`], is returned unchanged,
/// except for a timeout. [`GuardOptions`] limit the time of a check, or let the guard report any error of a check and
/// continue the call.
///
/// ```
/// use emitree_runtime::{Error, Guard, Op, Result, RunContext, Runnable, runnable_fn};
///
/// #[derive(Debug)]
/// struct NoSecrets;
///
/// impl<O: Op<Out = String>> Guard<O> for NoSecrets {
///     async fn check_output(&self, output: &String, _: &RunContext) -> Result<()> {
///         if output.contains("password") { Err(Error::new("the output has a password")) } else { Ok(()) }
///     }
///
///     fn name(&self) -> &str {
///         "no_secrets"
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let echo = runnable_fn("echo", |text: String, _: RunContext| async move { Ok(text) });
/// let error = echo.run("the password".to_owned()).layers(|stack| stack.guard(NoSecrets)).await.unwrap_err();
/// assert_eq!(error.explain(), "denied by no_secrets: the output has a password");
/// # }
/// ```
pub trait Guard<O: Op>: fmt::Debug + Send + Sync + 'static {
    /// Checks the input. By default every input passes.
    ///
    /// # Errors
    ///
    /// Return an error to deny the call. The layers inside and the work are then not called.
    fn check_input(&self, input: &O::In, ctx: &RunContext) -> impl Future<Output = Result<()>> + Send {
        let _ = (input, ctx);
        ready(Ok(()))
    }

    /// Checks the output. By default every output passes.
    ///
    /// # Errors
    ///
    /// Return an error to deny the call. The output is then dropped.
    fn check_output(&self, output: &O::Out, ctx: &RunContext) -> impl Future<Output = Result<()>> + Send {
        let _ = (output, ctx);
        ready(Ok(()))
    }

    /// Returns the name used in denials, in lists of layers and in the layer's span. By default it is the type name.
    fn name(&self) -> &str {
        type_name::<Self>()
    }

    /// Returns a description for [`Explanation`](crate::Explanation). By default it is the `Debug` output, truncated to
    /// [`Summary::MAX_BYTES`].
    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }
}

/// Options of a guard, for [`StackBuilder::guard_with`](crate::StackBuilder::guard_with).
///
/// ```
/// use std::time::Duration;
/// use emitree_runtime::{Error, Guard, GuardOptions, Op, Result, RunContext, Runnable, runnable_fn};
///
/// #[derive(Debug)]
/// struct Never;
///
/// impl<O: Op> Guard<O> for Never {
///     async fn check_input(&self, _: &O::In, _: &RunContext) -> Result<()> {
///         Err(Error::new("not now"))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// let enforced = GuardOptions::new().timeout(Duration::from_secs(1));
/// assert!(double.run(21).layers(|stack| stack.guard_with(enforced, Never)).await.unwrap_err().is_denied());
/// assert_eq!(double.run(21).layers(|stack| stack.guard_with(enforced.evaluate_only(), Never)).await?, 42);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct GuardOptions {
    timeout: Option<Duration>,
    evaluate_only: bool,
}

impl GuardOptions {
    /// Creates the default options: the guard has no timeout, and enforces its denials.
    #[must_use]
    pub const fn new() -> Self {
        Self { timeout: None, evaluate_only: false }
    }

    /// Sets a time limit for each check, measured with tokio's clock. A check that takes longer denies the call.
    ///
    /// A check that blocks its thread is not interrupted; if it was late, the call is denied when the check returns.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Makes the guard report denials instead of enforcing them: for each check that returns an error, panics or times
    /// out, the run emits a [`WouldDeny`] event, and the call continues.
    #[must_use]
    pub const fn evaluate_only(mut self) -> Self {
        self.evaluate_only = true;
        self
    }

    /// Returns `true` if the guard only reports denials.
    #[must_use]
    pub const fn is_evaluate_only(&self) -> bool {
        self.evaluate_only
    }
}

#[derive(Debug)]
pub(crate) struct GuardLayer<G> {
    pub(crate) guard: G,
    pub(crate) options: GuardOptions,
}

impl<G> GuardLayer<G> {
    async fn check<C: Future<Output = Result<()>> + Send>(
        &self,
        by: &str,
        at: Checked,
        check: impl FnOnce() -> C + Send,
        ctx: &RunContext,
    ) -> Result<()> {
        let checked = match self.options.timeout {
            Some(timeout) => run_check(by, || within(timeout, check)).await,
            None => run_check(by, check).await,
        };
        match checked {
            Err(error) if self.options.evaluate_only => {
                WouldDeny::new(by, at, error.to_string()).record(ctx).await;
                Ok(())
            }
            checked => checked,
        }
    }
}

impl<O: Op, G: Guard<O>> Layer<O> for GuardLayer<G> {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let Self { guard, .. } = self;
        self.check(guard.name(), Checked::Input, || guard.check_input(input, ctx), ctx).await?;
        let output = next.run(input).await?;
        match Layer::<O>::check_output(self, &output, ctx).await {
            Ok(()) => Ok(output),
            Err(error) => {
                // Dropping the output may call user code: a panic there would replace the denial (M5).
                discard(output);
                Err(error)
            }
        }
    }

    async fn check_output(&self, output: &O::Out, ctx: &RunContext) -> Result<()> {
        self.check(self.guard.name(), Checked::Output, || self.guard.check_output(output, ctx), ctx).await
    }

    fn name(&self) -> &str {
        self.guard.name()
    }

    fn debug_summary(&self) -> Summary {
        let Summary::Text(guard) = self.guard.debug_summary() else { return self.guard.debug_summary() };
        let timeout = self.options.timeout.map(|timeout| format!(", timeout {timeout:?}")).unwrap_or_default();
        let only = if self.options.evaluate_only { ", evaluates only" } else { "" };
        Summary::Text(format!("{guard}{timeout}{only}"))
    }
}

/// Calls a check, and turns a failure, a panic or a timeout into a denial (M5).
pub(crate) async fn run_check<C: Future<Output = Result<()>> + Send>(
    by: &str,
    check: impl FnOnce() -> C,
) -> Result<()> {
    // Both the function that returns the future and the future itself may panic: catch both panics.
    let checked = match caught(check) {
        #[expect(
            clippy::redundant_async_block,
            reason = "the block also drops the check, so that a panic of the drop is caught"
        )]
        Ok(check) => caught_async(async move { check.await }).await,
        Err(panic) => Err(panic),
    };
    match checked {
        Ok(Err(error)) if !error.must_pass() => {
            let reason = caught(|| error.to_string()).unwrap_or_else(|_| "the error cannot be displayed".to_owned());
            Err(Error::denied(by, reason).caused_by(error))
        }
        Ok(checked) => checked,
        Err(panic) => Err(Error::denied(by, format!("the guard panicked: {panic}")).caused_by(panic)),
    }
}

async fn within<C: Future<Output = Result<()>> + Send>(timeout: Duration, check: impl FnOnce() -> C) -> Result<()> {
    let late = || Err(Error::timed_out(format!("the guard took longer than {timeout:?}")));
    let began = Instant::now();
    match tokio::time::timeout(timeout, check()).await {
        // A timer does not fire while a check blocks its thread: compare with the clock once more (M5).
        Ok(checked) if began.elapsed() <= timeout => checked,
        // A late failure still becomes a denial, with its own reason. A late halt, or a late request for a retry, would
        // not deny the call: the timeout replaces it.
        Ok(Err(error)) if !error.must_pass() || error.is_denied() => Err(error),
        Ok(_) | Err(_) => late(),
    }
}
