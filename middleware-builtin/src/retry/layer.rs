//! The layer that calls the inner layers again, until an attempt needs no retry or all retries are used.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use emitree_runtime::{Error, ErrorKind, Layer, Nesting, Next, Op, Result, RunContext};
use serde_json::json;
use tokio::time::sleep;

use super::builder::RetryOptions;
use super::{RetriesExhausted, RetryPolicy, RetryScheduled};
use crate::shared::attempt_watch::AttemptWatch;
use crate::shared::built_in::debug_as;
use crate::shared::millis::millis;
use crate::shared::own_events::run_label;
use crate::shared::panic::caught;

pub(super) struct RetryLayer(pub(super) Arc<RetryPolicy>);

impl<O: Op> Layer<O> for RetryLayer {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        // The delays are created at the first failure, because most runs do not fail.
        let mut delays = None;
        loop {
            // Watch each attempt anew: an attempt that is known to have emitted no events is not marked as discarded
            // (M7).
            let watch = AttemptWatch::watch(ctx);
            let error = match next.run(input).await {
                // An aborted run must end; another attempt would only be dropped (R7).
                Err(error) if self.0.options.may_retry(&error) && !ctx.is_aborted() => error,
                Err(error) => {
                    self.0.warn_of_unretried(&error, ctx);
                    return Err(error);
                }
                Ok(output) => return Ok(output),
            };
            self.0.is_settled.store(true, Ordering::Relaxed);
            let delays = delays.get_or_insert_with(|| Box::new((0..).zip(self.0.options.delays())));
            // Box the rare cases, so that they do not enlarge the future of runs that succeed at once.
            let Some((attempt, delay)) = delays.next() else {
                Box::pin(self.0.give_up(&error, ctx)).await;
                return Err(error);
            };
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
        let run = nesting.run().name();
        let above = above.name();
        Some(format!(
            "attempts multiply: `{run}` is tried up to {attempts} times in each attempt of `{above}` above it, up to {all} \
             times in all: bind the retry to one level, as `Runs::only` does"
        ))
    }
}

debug_as!(RetryLayer, |this| this.0.options);

impl RetryPolicy {
    /// Discards the attempt, emits [`RetryScheduled`], and waits for the delay.
    async fn wait(
        &self,
        watch: AttemptWatch,
        attempt: u32,
        delay: Duration,
        error: &Error,
        ctx: &RunContext,
    ) -> Result<()> {
        let (scheduled, delay) = self.schedule(attempt, delay, error);
        // Discard before the event and the delay, so that a user interface removes the text of the attempt at once.
        watch.discard(ctx, error.to_string(), json!({"by": "retry", "attempt": attempt})).await?;
        self.own_events.emit(ctx, || scheduled).await;
        sleep(delay).await;
        Ok(())
    }

    /// Warns of a failure that nobody has marked as retryable or not, if the retry has not retried any error so far:
    /// probably it will never retry one.
    fn warn_of_unretried(&self, error: &Error, ctx: &RunContext) {
        let is_meant = self.options.when.is_some() || self.options.max_retries == 0;
        // A panic, or a value that does not fit, is a mistake in the program, and another attempt would fail as well.
        let is_plain = *error.kind() == ErrorKind::Failed && error.retryable_mark().is_none();
        if is_meant || !is_plain || self.is_settled.swap(true, Ordering::Relaxed) {
            return;
        }
        let label = run_label(ctx);
        ctx.warn_once("retry.when", || {
            format!(
                "the retry of {label} has retried no error so far, and did not retry this failure, because it is not \
                 marked as retryable: write `Retry::when(|error| error.retryable_mark() != Some(false))` to retry all \
                 failures, or mark the error with `.retryable(true)`"
            )
        });
    }

    /// Emits [`RetriesExhausted`], unless no retries are allowed.
    async fn give_up(&self, error: &Error, ctx: &RunContext) {
        let retries = self.options.max_retries;
        if retries > 0 {
            self.own_events.emit(ctx, || RetriesExhausted { retries, cause: error.to_string() }).await;
        }
    }

    /// Returns the event, and the delay that it reports.
    fn schedule(&self, attempt: u32, delay: Duration, error: &Error) -> (RetryScheduled, Duration) {
        let retry_after = self.options.asked_for(error);
        // A server may ask for hours; the user's longest delay still applies.
        let delay = retry_after.map_or(delay, |after| after.min(self.options.max_delay));
        let delay_ms = millis(delay);
        let retry_after_ms = retry_after.map(millis);
        let cause = error.to_string();
        let kind = error.kind().clone();
        let retries = self.options.max_retries;
        let status = error.details().get("status").and_then(|status| u16::try_from(status.as_u64()?).ok());
        (RetryScheduled { attempt, delay_ms, retry_after_ms, cause, kind, retries, status }, delay)
    }
}

impl RetryOptions {
    fn may_retry(&self, error: &Error) -> bool {
        // A denial, halt, abort or interrupt is a decision, not a failure: a retry would undo it (M9, R6).
        if error.is_control_flow() && !error.is_timed_out() {
            return false;
        }
        match &self.when {
            Some(when) => call_user_fn("when", || when(error)).unwrap_or(false),
            None => error.is_retryable(),
        }
    }
}

/// Calls a user's function; if it panics, the panic is logged and the result is `None`.
pub(super) fn call_user_fn<T>(what: &str, f: impl FnOnce() -> T) -> Option<T> {
    caught(f).map_err(|panic| tracing::warn!("the `{what}` of a retry panicked: {panic}")).ok()
}
