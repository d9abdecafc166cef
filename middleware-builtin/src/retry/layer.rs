//! Attempts, until one is not to be tried again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use emitree_emitter::panic_message;
use emitree_runtime::{Error, Layer, Next, Op, Result, RunContext, Summary};
use serde_json::json;
use tokio::time::sleep;

use super::builder::Settings;
use super::{Retry, RetryScheduled};
use crate::streamed::Streamed;

#[derive(Debug)]
pub(super) struct Retrying(pub(super) Retry);

impl<O: Op> Layer<O> for Retrying {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let mut delays = (0..).zip(self.0.settings.delays());
        loop {
            let streamed = Streamed::watch(ctx);
            let error = match next.run(input).await {
                Err(error) if self.0.settings.may_retry(&error) && !ctx.is_aborted() => error,
                result => return result,
            };
            let Some((attempt, delay)) = delays.next() else { return Err(error) };
            let (scheduled, delay) = self.0.schedule(attempt, delay, &error);
            streamed.discard(ctx, error.to_string(), json!({"by": "retry", "attempt": attempt})).await?;
            self.0.voice.say(ctx, || scheduled).await;
            sleep(delay).await;
        }
    }

    fn name(&self) -> &str {
        "retry"
    }

    fn debug_summary(&self) -> Summary {
        Summary::of(&self.0)
    }
}

impl Retry {
    /// What will be said, and how long to wait.
    fn schedule(&self, attempt: u32, delay: Duration, error: &Error) -> (RetryScheduled, Duration) {
        let retry_after = self.settings.asked_for(error);
        let delay = retry_after.map_or(delay, |after| after.min(self.settings.max_delay));
        let (delay_ms, retry_after_ms) = (millis(delay), retry_after.map(millis));
        let (cause, kind) = (error.to_string(), error.kind().clone());
        (RetryScheduled { attempt, delay_ms, retry_after_ms, cause, kind }, delay)
    }
}

impl Settings {
    fn may_retry(&self, error: &Error) -> bool {
        if error.is_control_flow() && !error.is_timed_out() {
            return false;
        }
        match &self.when {
            Some(when) => asked("when", || when(error)).unwrap_or(false),
            None => error.is_retryable() || is_late_attempt(error),
        }
    }
}

/// Whether a `Timeout` stopped an attempt.
fn is_late_attempt(error: &Error) -> bool {
    error.is_timed_out() && error.details().get("timeout").is_some_and(|limit| limit == "attempt")
}

/// Asks a function of the user's; one that panics has said nothing.
pub(super) fn asked<T>(what: &str, f: impl FnOnce() -> T) -> Option<T> {
    let answer = catch_unwind(AssertUnwindSafe(f));
    answer.map_err(|panic| tracing::warn!("the `{what}` of a retry panicked: {}", panic_message(&*panic))).ok()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
