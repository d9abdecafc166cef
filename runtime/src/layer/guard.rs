//! Layers that say no (M2, M5).

use std::any::type_name;
use std::fmt;
use std::future::{Future, ready};
use std::time::Duration;

use tokio::time::Instant;

use crate::layer::would_deny::{Checked, WouldDeny};
use crate::run::panic::{caught, caught_async, discard};
use crate::{Error, Layer, Next, Op, Result, RunContext, Summary};

/// A layer that checks what goes in and what comes out, and can change neither.
///
/// It fails closed (M5): whatever error a check returns is a denial by this guard, with that error as its cause; so is
/// a panic. Errors that are control flow, such as [`Error::halted`] or [`Error::retry`], pass as they are.
/// [`GuardOptions`] give it a time-out, or let it only report what it would have denied.
///
/// ```
/// use emitree_runtime::{Error, Guard, Op, Result, RunContext, Runnable, runnable_fn};
///
/// #[derive(Debug)]
/// struct NoSecrets;
///
/// impl<O: Op<Out = String>> Guard<O> for NoSecrets {
///     async fn check_output(&self, output: &String, _: &RunContext) -> Result<()> {
///         if output.contains("password") { Err(Error::new("it tells a password")) } else { Ok(()) }
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
/// assert_eq!(error.explain(), "denied by no_secrets: it tells a password\n  caused by: it tells a password");
/// # }
/// ```
pub trait Guard<O: Op>: fmt::Debug + Send + Sync + 'static {
    /// Checks what goes in.
    fn check_input(&self, input: &O::In, ctx: &RunContext) -> impl Future<Output = Result<()>> + Send {
        let _ = (input, ctx);
        ready(Ok(()))
    }

    /// Checks what comes out.
    fn check_output(&self, output: &O::Out, ctx: &RunContext) -> impl Future<Output = Result<()>> + Send {
        let _ = (output, ctx);
        ready(Ok(()))
    }

    /// Who says no.
    fn name(&self) -> &str {
        type_name::<Self>()
    }

    /// What it says of itself where layers are listed: by default its `Debug`, of at most [`Summary::MAX_BYTES`].
    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }
}

/// Options of a guard, for [`StackBuilder::guard_with`](crate::StackBuilder::guard_with).
///
/// ```
/// use std::time::Duration;
/// use emitree_runtime::{Guard, GuardOptions, Op, Stack};
///
/// # #[derive(Debug)]
/// struct Policy;
/// impl<O: Op> Guard<O> for Policy {}
///
/// struct Dispatch;
/// impl Op for Dispatch {
///     type In = String;
///     type Out = String;
/// }
///
/// let trial = GuardOptions::new().timeout(Duration::from_secs(1)).evaluate_only();
/// let stack = Stack::<Dispatch>::builder().guard_with(trial, Policy).build();
/// # drop(stack);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct GuardOptions {
    timeout: Option<Duration>,
    evaluate_only: bool,
}

impl GuardOptions {
    /// No time-out; what the guard denies is denied.
    #[must_use]
    pub const fn new() -> Self {
        Self { timeout: None, evaluate_only: false }
    }

    /// Denies when a check takes longer than that, by tokio's clock, whether it waits or blocks its thread.
    ///
    /// A check that blocks is not interrupted: its run is denied once it returns.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Denies nothing: for each error that a check returns, the run emits a [`WouldDeny`] instead.
    #[must_use]
    pub const fn evaluate_only(mut self) -> Self {
        self.evaluate_only = true;
        self
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
        let verdict = match self.options.timeout {
            Some(timeout) => verdict(by, || within(timeout, check)).await,
            None => verdict(by, check).await,
        };
        match verdict {
            Err(error) if self.options.evaluate_only => {
                WouldDeny::new(by, at, &error).record(ctx).await;
                Ok(())
            }
            verdict => verdict,
        }
    }
}

impl<O: Op, G: Guard<O>> Layer<O> for GuardLayer<G> {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let Self { guard, .. } = self;
        self.check(guard.name(), Checked::Input, || guard.check_input(input, ctx), ctx).await?;
        let output = next.run(input).await?;
        match self.check(guard.name(), Checked::Output, || guard.check_output(&output, ctx), ctx).await {
            Ok(()) => Ok(output),
            Err(error) => {
                // A panic in its drop would take the denial's place (M5).
                discard(output);
                Err(error)
            }
        }
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

/// Runs a check: whatever goes wrong in it is a denial, even before it has returned its future.
pub(crate) async fn verdict<C: Future<Output = Result<()>> + Send>(by: &str, check: impl FnOnce() -> C) -> Result<()> {
    let checked = match caught(check) {
        #[expect(clippy::redundant_async_block, reason = "the check is dropped in it, where a panic is caught as well")]
        Ok(check) => caught_async(async move { check.await }).await,
        Err(panic) => Err(panic),
    };
    match checked {
        Ok(Err(error)) if !error.must_pass() => {
            let reason = caught(|| error.to_string()).unwrap_or_else(|_| "it cannot be said why".to_owned());
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
        // No timer goes off while a check blocks its thread: so the clock is asked once more (M5).
        Ok(verdict) if began.elapsed() <= timeout => verdict,
        // What denies says why, also late; a halt or a request for a retry would not.
        Ok(Err(error)) if !error.must_pass() || error.is_denied() => Err(error),
        Ok(_) | Err(_) => late(),
    }
}
