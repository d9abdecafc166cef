//! Time limits for attempts and for all attempts together: [`Timeout`].

use std::fmt;
use std::time::Duration;

use emitree_emitter::Namespace;
use emitree_runtime::{AnyRun, Error, Layer, Next, Op, Phase, Result, RunContext, Stack, Summary};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::shared::built_in::built_in;
use crate::shared::millis::millis;
use crate::shared::own_events::{OwnEvents, own_events};

/// Limits the duration of each attempt, the duration of all attempts together, or both.
///
/// A `Timeout` accepts runs of any type and does not read inputs or outputs. Time is measured by tokio's clock. Work
/// that exceeds a limit is dropped, together with the runs that it awaits. The result is an error of kind
/// [`TimedOut`](emitree_runtime::ErrorKind::TimedOut), whose detail `timeout` is `attempt` or `overall`. The error
/// of the limit per attempt [is retryable](Error::is_retryable); the error of the overall limit is not.
///
/// - *Per attempt* limits each call of the work. Its layer is
///   [innermost](emitree_runtime::StackBuilder::innermost), inside all guards, whatever the order in which they are
///   bound. So each attempt of a `Retry` has this limit, and the time that the run itself waits in a `RateLimit`, a
///   `Concurrency` or an `Approval` does not count. The time that the runs below it wait there counts. Without
///   [`per_attempt`](Self::per_attempt), attempts have no limit.
/// - *Overall* limits the time from the first poll of the run, before `start`, to the end of the last attempt. Its
///   layer is in [`Phase::Observe`], so all waits count. [`Run::timeout`](emitree_runtime::Run::timeout) limits a single run from outside,
///   including its listeners and its input and output middlewares.
///
/// ```
/// use std::time::Duration;
/// use emitree_middleware::Timeout;
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let wait = runnable_fn("wait", |ms: u64, _: RunContext| async move {
///     tokio::time::sleep(Duration::from_millis(ms)).await;
///     Ok(ms)
/// })
/// .middleware(Timeout::per_attempt(Duration::from_millis(100)));
///
/// assert_eq!(wait.run(50).await.unwrap(), 50);
/// let error = wait.run(200).await.unwrap_err();
/// assert!(error.is_timed_out());
/// assert_eq!(error.to_string(), "an attempt took longer than 100ms");
/// # }
/// ```
///
/// # Its own events
///
/// `middleware.timeout.timed_out`, a [`TimedOut`], after work that exceeded a limit has been dropped.
#[derive(Clone)]
pub struct Timeout {
    per_attempt: Option<Duration>,
    overall: Option<Duration>,
    own_events: OwnEvents,
    stack: Stack<AnyRun>,
}

/// The limit that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TimeLimit {
    /// The limit of each attempt.
    Attempt,
    /// The limit of all attempts together.
    Overall,
}

/// The work of a run exceeded a time limit and was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TimedOut {
    /// The limit that was exceeded.
    pub limit: TimeLimit,
    /// The time limit, in milliseconds.
    pub after_ms: u64,
}

own_events! { TimedOut = "timed_out"; }

impl Timeout {
    /// Creates a `Timeout` that limits each attempt.
    #[must_use]
    pub fn per_attempt(after: Duration) -> Self {
        Self::with_limits(Some(after), None, OwnEvents::new(Namespace::new("middleware.timeout")))
    }

    /// Creates a `Timeout` that limits all attempts together.
    #[must_use]
    pub fn overall(after: Duration) -> Self {
        Self::with_limits(None, Some(after), OwnEvents::new(Namespace::new("middleware.timeout")))
    }

    /// Adds a limit for all attempts together.
    #[must_use]
    pub fn with_overall(self, after: Duration) -> Self {
        Self::with_limits(self.per_attempt, Some(after), self.own_events)
    }

    fn with_limits(per_attempt: Option<Duration>, overall: Option<Duration>, own_events: OwnEvents) -> Self {
        let layer = |limit, after| TimeoutLayer { limit, after, own_events: own_events.clone() };
        let mut stack = Stack::builder();
        if let Some(after) = overall {
            stack = stack.layer_in(Phase::Observe, layer(TimeLimit::Overall, after));
        }
        if let Some(after) = per_attempt {
            // Inside the guards: the time in which a guard lets the run wait is not the work's.
            stack = stack.innermost(layer(TimeLimit::Attempt, after));
        }
        let stack = stack.build();
        Self { per_attempt, overall, own_events, stack }
    }
}

built_in!(Timeout, |timeout| timeout.own_events, "timeout", timeout.stack);

/// Writes limits like `100ms per attempt, 1s overall`.
impl fmt::Debug for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = [("per attempt", self.per_attempt), ("overall", self.overall)];
        let shown = limits.into_iter().filter_map(|(what, after)| after.map(|after| format!("{after:?} {what}")));
        f.write_str(&shown.collect::<Vec<_>>().join(", "))
    }
}

/// Limits the duration of each call of the inner layers, or of all calls of one run together.
#[derive(Debug)]
struct TimeoutLayer {
    limit: TimeLimit,
    after: Duration,
    own_events: OwnEvents,
}

impl<O: Op> Layer<O> for TimeoutLayer {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let left = match self.limit {
            TimeLimit::Attempt => self.after,
            // Time that the run spent before this layer, such as in listeners of `start`, counts too.
            TimeLimit::Overall => self.after.saturating_sub(ctx.elapsed()),
        };
        match timeout(left, next.run(input)).await {
            Ok(result) => result,
            // Box the rare case, so that it does not enlarge the future of runs that end in time.
            Err(_) => Err(Box::pin(self.time_out(ctx)).await),
        }
    }

    fn name(&self) -> &str {
        match self.limit {
            TimeLimit::Attempt => "timeout per attempt",
            TimeLimit::Overall => "timeout overall",
        }
    }

    fn debug_summary(&self) -> Summary {
        Summary::of(&self.after)
    }
}

impl TimeoutLayer {
    async fn time_out(&self, ctx: &RunContext) -> Error {
        let Self { limit, after, own_events } = self;
        // The work has been dropped by now, and with it the runs that it awaited (R8).
        own_events.emit(ctx, || TimedOut { limit: *limit, after_ms: millis(*after) }).await;
        let (what, detail, is_retryable) = match limit {
            TimeLimit::Attempt => ("an attempt", "attempt", true),
            TimeLimit::Overall => ("all attempts together", "overall", false),
        };
        let error = Error::timed_out(format!("{what} took longer than {after:?}"));
        error.detail("timeout", detail).retryable(is_retryable)
    }
}
