//! What takes too long is stopped, and it is said which limit was hit: [`Timeout`].

use std::fmt;
use std::future::Future;
use std::time::Duration;

use emitree_emitter::{Emitter, Event, EventName, Namespace};
use emitree_runtime::{
    AnyRun, Error, Layer, LayerInfo, Middleware, Next, Op, Phase, Result, RunContext, Stack, Summary,
};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::shared::own_events::{OwnEvents, Texts};

const NAMESPACE: Namespace = Namespace::new("middleware.timeout");

/// Stops work that takes too long: each attempt, all of them together, or both.
///
/// It works on runs of any type and looks at no value. The time runs by tokio's clock. What is stopped is dropped, and
/// the runs that it had started end with it; the run then fails with an error of the kind
/// [`TimedOut`](emitree_runtime::ErrorKind::TimedOut), whose detail `timeout` is `attempt` or `overall`. That of an attempt
/// [is retryable](Error::is_retryable), that of all together is not.
///
/// - *An attempt* is one call of what is inside of the layers of [`Phase::Retry`]: whatever calls again, such as
///   `Retry`, has each call timed. Nothing is said of it unless [`per_attempt`](Self::per_attempt) is called.
/// - *Overall* counts from the first poll of the run, before `start`, to the end of the last attempt; it stands in
///   [`Phase::Observe`]. [`Run::timeout`](emitree_runtime::Run::timeout) is the same for one run from outside, with its
///   listeners of `start` and its input and output middlewares.
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
/// `middleware.timeout.timed_out`, a [`TimedOut`], once what was under way has been dropped.
#[derive(Clone)]
pub struct Timeout {
    limits: Durations,
    own_events: OwnEvents,
    stack: Stack<AnyRun>,
}

#[derive(Clone, Copy)]
struct Durations {
    per_attempt: Option<Duration>,
    overall: Option<Duration>,
}

/// Which limit was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// That of each attempt.
    Attempt,
    /// That of all attempts together.
    Overall,
}

/// Something took too long, and was stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TimedOut {
    /// Which limit was hit.
    pub limit: Limit,
    /// The limit, in milliseconds.
    pub after_ms: u64,
}

impl Event for TimedOut {
    const NAME: EventName = EventName::new("timed_out");
}

impl Texts for TimedOut {}

impl Timeout {
    /// Durations each attempt.
    #[must_use]
    pub fn per_attempt(after: Duration) -> Self {
        Self::of(Durations { per_attempt: Some(after), overall: None }, OwnEvents::new("timeout", NAMESPACE))
    }

    /// Durations all attempts together.
    #[must_use]
    pub fn overall(after: Duration) -> Self {
        Self::of(Durations { per_attempt: None, overall: Some(after) }, OwnEvents::new("timeout", NAMESPACE))
    }

    /// Durations all attempts together, too.
    #[must_use]
    pub fn with_overall(self, after: Duration) -> Self {
        Self::of(Durations { overall: Some(after), ..self.limits }, self.own_events)
    }

    fn of(limits: Durations, own_events: OwnEvents) -> Self {
        let mut stack = Stack::builder();
        if let Some(after) = limits.overall {
            stack = stack.layer_in(Phase::Observe, Overall { after, own_events: own_events.clone() });
        }
        if let Some(after) = limits.per_attempt {
            stack = stack.layer_in(Phase::Transform, Attempt { after, own_events: own_events.clone() });
        }
        Self { limits, own_events, stack: stack.build() }
    }

    /// The emitter of its own events.
    #[must_use]
    pub const fn emitter(&self) -> &Emitter {
        self.own_events.emitter()
    }
}

impl Middleware for Timeout {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        self.stack.bind(ctx)
    }

    fn name(&self) -> &str {
        "timeout"
    }

    fn layers(&self) -> Vec<LayerInfo> {
        self.stack.layers()
    }
}

impl fmt::Debug for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = [("per attempt", self.limits.per_attempt), ("overall", self.limits.overall)];
        let said = limits.into_iter().filter_map(|(what, after)| after.map(|after| format!("{after:?} {what}")));
        f.write_str(&said.collect::<Vec<_>>().join(", "))
    }
}

/// Times each call of what is inside.
#[derive(Debug)]
struct Attempt {
    after: Duration,
    own_events: OwnEvents,
}

impl<O: Op> Layer<O> for Attempt {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let late = Late { limit: Limit::Attempt, after: self.after, own_events: &self.own_events };
        late.unless(self.after, next.run(input), ctx).await
    }

    fn name(&self) -> &str {
        "timeout per attempt"
    }

    fn debug_summary(&self) -> Summary {
        Summary::of(&self.after)
    }
}

/// Times all calls of one run.
#[derive(Debug)]
struct Overall {
    after: Duration,
    own_events: OwnEvents,
}

impl<O: Op> Layer<O> for Overall {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let late = Late { limit: Limit::Overall, after: self.after, own_events: &self.own_events };
        late.unless(self.after.saturating_sub(ctx.elapsed()), next.run(input), ctx).await
    }

    fn name(&self) -> &str {
        "timeout overall"
    }

    fn debug_summary(&self) -> Summary {
        Summary::of(&self.after)
    }
}

/// What is said when it is too late.
struct Late<'a> {
    limit: Limit,
    after: Duration,
    own_events: &'a OwnEvents,
}

impl Late<'_> {
    /// Awaits what is inside for so long; what no clock shows never comes.
    async fn unless<T>(
        &self,
        after: Duration,
        inside: impl Future<Output = Result<T>> + Send,
        ctx: &RunContext,
    ) -> Result<T> {
        match timeout(after, inside).await {
            Ok(result) => result,
            // Seldom, so it takes no room in the future of those that are in time.
            Err(_) => Err(Box::pin(self.say(ctx)).await),
        }
    }

    async fn say(&self, ctx: &RunContext) -> Error {
        let after_ms = u64::try_from(self.after.as_millis()).unwrap_or(u64::MAX);
        self.own_events.emit(ctx, || TimedOut { limit: self.limit, after_ms }).await;
        let (what, limit, is_retryable) = match self.limit {
            Limit::Attempt => ("an attempt", "attempt", true),
            Limit::Overall => ("all attempts together", "overall", false),
        };
        let error = Error::timed_out(format!("{what} took longer than {:?}", self.after));
        error.context("timeout", limit).retryable(is_retryable)
    }
}
