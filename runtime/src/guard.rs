//! Layers that say no (M2, M5).

use std::any::type_name;
use std::fmt;
use std::future::{Future, ready};
use std::time::Duration;

use tokio::time::Instant;

use crate::panic::{caught, caught_async};
use crate::would_deny::{Checked, WouldDeny};
use crate::{Error, Layer, Next, Op, Result, RunContext, Summary};

/// A layer that checks what goes in and what comes out, and can change neither.
///
/// It fails closed (M5): whatever error a check returns is a denial by this guard, with that error as its cause; so is
/// a panic. Errors that are control flow, such as [`Error::halted`] or [`Error::retry`], pass as they are.
/// [`Guarded`] gives it a time-out, or has it only say what it would have done.
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

#[derive(Debug)]
pub(crate) struct Guarding<T>(pub(crate) T);

impl<O: Op, T: Guard<O>> Layer<O> for Guarding<T> {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        verdict(self.0.name(), || self.0.check_input(input, ctx)).await?;
        let output = next.run(input).await?;
        verdict(self.0.name(), || self.0.check_output(&output, ctx)).await?;
        Ok(output)
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn debug_summary(&self) -> Summary {
        self.0.debug_summary()
    }
}

/// Whatever goes wrong in a check is a denial, be it before there is a future.
pub(crate) async fn verdict<C: Future<Output = Result<()>> + Send>(by: &str, check: impl FnOnce() -> C) -> Result<()> {
    let checked = match caught(check) {
        Ok(check) => caught_async(check).await,
        Err(panic) => Err(panic),
    };
    match checked {
        Ok(Err(error)) if !error.must_pass() => Err(Error::denied(by, error.to_string()).caused_by(error)),
        Ok(checked) => checked,
        Err(panic) => Err(Error::denied(by, format!("the guard panicked: {panic}")).caused_by(panic)),
    }
}

/// A guard with options.
///
/// ```
/// use std::time::Duration;
/// use emitree_runtime::{Guard, Guarded, Op, Stack};
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
/// let trial = Guarded::new(Policy).timeout(Duration::from_secs(1)).evaluate_only();
/// let stack = Stack::<Dispatch>::builder().guard(trial).build();
/// # drop(stack);
/// ```
#[derive(Clone, Debug)]
pub struct Guarded<G> {
    guard: G,
    timeout: Option<Duration>,
    evaluate_only: bool,
}

impl<G> Guarded<G> {
    /// A guard as it is.
    pub const fn new(guard: G) -> Self {
        Self { guard, timeout: None, evaluate_only: false }
    }

    /// Denies when a check takes longer than that, by tokio's clock, whether it waits or blocks its thread.
    ///
    /// A check that blocks is not interrupted: its run is denied once it returns.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// It says no to nothing: what it would have denied, the run emits as [`WouldDeny`].
    #[must_use]
    pub const fn evaluate_only(mut self) -> Self {
        self.evaluate_only = true;
        self
    }

    async fn check<C: Future<Output = Result<()>> + Send>(
        &self,
        by: &str,
        at: Checked,
        check: impl FnOnce() -> C + Send,
        ctx: &RunContext,
    ) -> Result<()> {
        let verdict = match self.timeout {
            Some(timeout) => verdict(by, || within(timeout, check)).await,
            None => verdict(by, check).await,
        };
        match verdict {
            Err(error) if self.evaluate_only => WouldDeny::new(by, at, &error).record(ctx).await,
            verdict => return verdict,
        }
        Ok(())
    }
}

async fn within<C: Future<Output = Result<()>> + Send>(timeout: Duration, check: impl FnOnce() -> C) -> Result<()> {
    let late = || Err(Error::timed_out(format!("the guard took longer than {timeout:?}")));
    let began = Instant::now();
    match tokio::time::timeout(timeout, check()).await {
        // No timer goes off while a check blocks its thread: so the clock is asked once more (M5).
        Ok(Ok(())) if began.elapsed() > timeout => late(),
        Ok(verdict) => verdict,
        Err(_) => late(),
    }
}

impl<O: Op, G: Guard<O>> Guard<O> for Guarded<G> {
    async fn check_input(&self, input: &O::In, ctx: &RunContext) -> Result<()> {
        self.check(self.guard.name(), Checked::Input, || self.guard.check_input(input, ctx), ctx).await
    }

    async fn check_output(&self, output: &O::Out, ctx: &RunContext) -> Result<()> {
        self.check(self.guard.name(), Checked::Output, || self.guard.check_output(output, ctx), ctx).await
    }

    fn name(&self) -> &str {
        self.guard.name()
    }

    fn debug_summary(&self) -> Summary {
        let Summary::Text(guard) = self.guard.debug_summary() else { return self.guard.debug_summary() };
        let timeout = self.timeout.map(|timeout| format!(", timeout {timeout:?}")).unwrap_or_default();
        let only = if self.evaluate_only { ", evaluates only" } else { "" };
        Summary::Text(format!("{guard}{timeout}{only}"))
    }
}
