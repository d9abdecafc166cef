//! Attempts, until one is not to be tried again.

use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::{Error, Layer, Nesting, Next, Op, Result, RunContext};
use serde_json::json;
use tokio::time::sleep;

use super::builder::RetryOptions;
use super::{RetryPolicy, RetryScheduled};
use crate::shared::attempt_watch::AttemptWatch;
use crate::shared::built_in::debug_as;
use crate::shared::millis::millis;
use crate::shared::panic::caught;

pub(super) struct RetryLayer(pub(super) Arc<RetryPolicy>);

impl<O: Op> Layer<O> for RetryLayer {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        // Made with the first failure.
        let mut delays = None;
        loop {
            let watch = AttemptWatch::watch(ctx);
            let error = match next.run(input).await {
                Err(error) if self.0.options.may_retry(&error) && !ctx.is_aborted() => error,
                result => return result,
            };
            let delays = delays.get_or_insert_with(|| Box::new((0..).zip(self.0.options.delays())));
            let Some((attempt, delay)) = delays.next() else { return Err(error) };
            // Seldom, so it takes no room in the future of those that succeed.
            Box::pin(self.0.wait(watch, attempt, delay, &error, ctx)).await?;
        }
    }

    fn name(&self) -> &str {
        "retry"
    }

    fn nesting_warning(&self, nesting: &Nesting<'_>) -> Option<String> {
        let attempts = u64::from(self.0.options.max_retries) + 1;
        let above = nesting.above().next().filter(|_| attempts > 1)?;
        let levels = u32::try_from(nesting.above().count() + 1).unwrap_or(u32::MAX);
        let all = attempts.saturating_pow(levels);
        let (run, above) = (nesting.run().name(), above.name());
        Some(format!(
            "attempts multiply: `{run}` is tried up to {attempts} times in each attempt of `{above}` above it, up to {all} \
             times in all: bind the retry to one level, as `Runs::only` does"
        ))
    }
}

debug_as!(RetryLayer, |this| this.0.options);

impl RetryPolicy {
    /// Takes back what the attempt has emitted, says what follows, and waits for it.
    async fn wait(
        &self,
        watch: AttemptWatch,
        attempt: u32,
        delay: Duration,
        error: &Error,
        ctx: &RunContext,
    ) -> Result<()> {
        let (scheduled, delay) = self.schedule(attempt, delay, error);
        watch.discard(ctx, error.to_string(), json!({"by": "retry", "attempt": attempt})).await?;
        self.own_events.emit(ctx, || scheduled).await;
        sleep(delay).await;
        Ok(())
    }

    /// What will be said, and how long to wait.
    fn schedule(&self, attempt: u32, delay: Duration, error: &Error) -> (RetryScheduled, Duration) {
        let retry_after = self.options.asked_for(error);
        let delay = retry_after.map_or(delay, |after| after.min(self.options.max_delay));
        let (delay_ms, retry_after_ms) = (millis(delay), retry_after.map(millis));
        let (cause, kind) = (error.to_string(), error.kind().clone());
        (RetryScheduled { attempt, delay_ms, retry_after_ms, cause, kind }, delay)
    }
}

impl RetryOptions {
    fn may_retry(&self, error: &Error) -> bool {
        if error.is_control_flow() && !error.is_timed_out() {
            return false;
        }
        match &self.when {
            Some(when) => call_user_fn("when", || when(error)).unwrap_or(false),
            None => error.is_retryable(),
        }
    }
}

/// Asks a function of the user's; one that panics has said nothing.
pub(super) fn call_user_fn<T>(what: &str, f: impl FnOnce() -> T) -> Option<T> {
    caught(f).map_err(|panic| tracing::warn!("the `{what}` of a retry panicked: {panic}")).ok()
}
