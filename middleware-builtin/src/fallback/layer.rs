//! The layer that runs the alternatives in order after a failure, until an alternative answers or ends in a way that is
//! not caught.

use std::fmt;

use emitree_runtime::{Error, Layer, Next, Op, Result, RunContext, Summary};
use serde_json::json;

use super::{Cause, Exhausted, Fallback, FellBack};
use crate::shared::attempt_watch::AttemptWatch;

pub(super) struct FallbackLayer<K: Op>(pub(super) Fallback<K>);

impl<K: Op> fmt::Debug for FallbackLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<K: Op> Layer<K> for FallbackLayer<K> {
    async fn call(&self, input: &K::In, ctx: &RunContext, next: Next<'_, K>) -> Result<K::Out> {
        let watch = AttemptWatch::watch(ctx);
        match next.run(input).await {
            Err(error) if self.0.catches(&error) && !ctx.is_aborted() => {
                // Report that the error is absorbed, because it may be a denial: `catches` returns `true` for a denial
                // only if the user named its guard (M9).
                next.absorb(&error);
                self.0.run_alternatives(input, ctx, error, watch).await
            }
            result => result,
        }
    }

    fn name(&self) -> &str {
        "fallback"
    }

    fn debug_summary(&self) -> Summary {
        Summary::of(&self.0)
    }
}

impl<K: Op> Fallback<K> {
    /// Runs the alternatives in order, until an alternative answers or ends in a way that is not caught.
    async fn run_alternatives(
        &self,
        input: &K::In,
        ctx: &RunContext,
        error: Error,
        watch: AttemptWatch,
    ) -> Result<K::Out> {
        let own = ctx.name();
        let mut error = error;
        let mut watch = watch;
        let mut after = Vec::new();
        let mut failed = own;
        for alternative in &self.alternatives {
            let next = alternative.name();
            // Discard the events of the failed attempt before the next attempt emits (M7).
            watch.discard(ctx, error.to_string(), json!({"by": "fallback", "next": next})).await?;
            after.push(Cause::of(failed, &error));
            // Each alternative is a separate attempt, and may also emit events before it fails.
            watch = AttemptWatch::watch(ctx);
            match alternative.run(input).await {
                Ok(output) => {
                    self.own_events.emit(ctx, || FellBack { by: next.to_owned(), after }).await;
                    return Ok(output);
                }
                // If an alternative ends in a way that is not caught, the run ends with it: no further alternative may
                // answer.
                Err(end) if !self.catches(&end) => return Err(end.detail("after", json!(after))),
                Err(failure) => (failed, error) = (next, failure),
            }
        }
        // The caller gets the last failure as the error and the earlier failures as a detail. The event lists all
        // failures.
        let all = || Exhausted { after: after.iter().cloned().chain([Cause::of(failed, &error)]).collect() };
        self.own_events.emit(ctx, all).await;
        Err(error.detail("after", json!(after)))
    }
}

impl Cause {
    fn of(by: &str, error: &Error) -> Self {
        Self { by: by.to_owned(), cause: error.to_string(), kind: error.kind().clone() }
    }
}
