//! The layer that admits calls and counts how they end.

use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::{Error, Layer, Next, Op, Result, RunContext};
use serde_json::Value;

use super::state::{CallOutcome, Denial, Transition};
use super::{CallDenied, CircuitBreakerInner, Closed, HalfOpened, Opened};
use crate::shared::built_in::debug_as;
use crate::shared::key::{KeyRef, OwnedKey};
use crate::shared::millis::millis;
use crate::shared::panic::caught;

pub(super) struct CircuitBreakerLayer(pub(super) Arc<CircuitBreakerInner>);

impl<O: Op> Layer<O> for CircuitBreakerLayer {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        // Box the rare branches, so that they do not enlarge the future of a call that passes.
        let breaker = &*self.0;
        let key = match breaker.options.key.look(ctx, |key| key.map(KeyRef::to_owned)) {
            Ok(Some(key)) => key,
            Ok(None) => return next.run(input).await,
            Err(error) => return Err(Box::pin(breaker.deny_keyless(error, ctx)).await),
        };
        let admitted = match breaker.circuits.admit(&key, ctx) {
            Ok(admitted) => admitted,
            Err(denial) => return Err(Box::pin(breaker.refuse(&key, &denial, ctx)).await),
        };
        if admitted.is_probe {
            Box::pin(breaker.own_events.emit(ctx, || HalfOpened { key: key.to_json() })).await;
        }
        // If a probe is dropped here, the drop of `admitted` lets another call become the probe.
        let result = next.run(input).await;
        if let Some(transition) = admitted.settle(breaker.outcome_of(result.as_ref().err())) {
            Box::pin(breaker.emit_transition(&key, transition, ctx)).await;
        }
        result
    }

    fn name(&self) -> &str {
        "circuit_breaker"
    }
}

debug_as!(CircuitBreakerLayer, |this| this.0.options);

impl CircuitBreakerInner {
    /// Returns how a call counts: as a success, as a failure, or not at all.
    fn outcome_of(&self, error: Option<&Error>) -> CallOutcome {
        match error {
            None => CallOutcome::Success,
            Some(error) if error.is_control_flow() && !error.is_timed_out() => CallOutcome::Uncounted,
            Some(error) if self.is_counted(error) => CallOutcome::Failure(error.to_string().into()),
            // An error that `when` excludes shows that the work responded, so the call counts as a success.
            Some(_) => CallOutcome::Success,
        }
    }

    /// Returns `true` if an error counts as a failure. If `when` panics, the error counts, so that the breaker still
    /// opens.
    fn is_counted(&self, error: &Error) -> bool {
        let Some(when) = &self.options.when else { return true };
        caught(|| when(error)).unwrap_or_else(|panic| {
            tracing::warn!("the `when` of a circuit breaker panicked: {panic}");
            true
        })
    }

    async fn deny_keyless(&self, error: Error, ctx: &RunContext) -> Error {
        self.deny(Value::Null, None, error.to_string(), ctx).await.caused_by(error)
    }

    async fn refuse(&self, key: &OwnedKey, denial: &Denial, ctx: &RunContext) -> Error {
        let Denial { wait, cause } = denial;
        let reason = match wait {
            Some(wait) => format!("the circuit is open for another {}: {cause}", in_millis(*wait)),
            None => format!("the circuit is half-open, and a probe is under way: {cause}"),
        };
        self.deny(key.to_json(), *wait, reason, ctx).await.detail("cause", &**cause)
    }

    async fn deny(&self, key: Value, wait: Option<Duration>, reason: String, ctx: &RunContext) -> Error {
        let retry_after_ms = wait.map(millis);
        self.own_events.emit(ctx, || CallDenied { key: key.clone(), retry_after_ms, reason: reason.clone() }).await;
        let mut error = Error::denied("circuit_breaker", reason);
        if !key.is_null() {
            error = error.detail("key", key);
        }
        retry_after_ms.into_iter().fold(error, |error, ms| error.detail("retry_after_ms", ms))
    }

    async fn emit_transition(&self, key: &OwnedKey, transition: Transition, ctx: &RunContext) {
        let cool_down_ms = millis(self.options.thresholds.cool_down);
        match transition {
            Transition::Closed => self.own_events.emit(ctx, || Closed { key: key.to_json() }).await,
            Transition::Opened { failures, cause } => {
                let opened =
                    || Opened { key: key.to_json(), failures, cool_down_ms, cause: Arc::as_ref(&cause).to_owned() };
                self.own_events.emit(ctx, opened).await;
            }
        }
    }
}

/// Formats a wait in whole milliseconds. It is rounded up, as `retry_after_ms` is.
fn in_millis(wait: Duration) -> String {
    format!("{:?}", Duration::from_millis(millis(wait)))
}
