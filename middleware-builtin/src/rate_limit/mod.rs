//! Limits on how many runs begin in a period: [`RateLimit`].

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::Namespace;
use emitree_runtime::{AnyRun, Error, Layer, Nesting, Next, Op, Phase, Result, RunContext, Stack};
use governor::Quota;
use tokio::time::Instant;

use crate::shared::built_in::{built_in, debug_as};
use crate::shared::key::{Key, OwnedKey};
pub use crate::shared::keyed_limit::{Delayed, Denied};
use crate::shared::keyed_limit::{KeyedLimitOptions, keyed_limit_options};
use crate::shared::millis::millis;
use crate::shared::own_events::OwnEvents;
use crate::shared::runs::Runs;
use key_queue::{KeyQueue, KeyQueues, NotYet, TooLate};
use quota::Rate;
pub use quota::RateLimitError;

mod clock;
mod key_queue;
mod quota;

/// Limits how many runs with the same key begin in a period; excess runs wait or are denied.
///
/// A limit accepts runs of any type and does not read inputs or outputs. Clones share their counts: a limit that is
/// bound to many runs, or by [`for_nested`](emitree_runtime::for_nested) to all runs below a run, limits these runs
/// together. If a limit is bound to a run and to a descendant with the same key, both runs are counted; a
/// [warning](emitree_runtime::Layer::nesting_warning) is logged once.
///
/// The limit uses governor's [GCRA](https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm) with tokio's clock: the
/// runs of a burst begin without a delay, and the capacity that they use is replenished at a constant rate.
///
/// ```
/// use std::time::Duration;
/// use emitree_middleware::RateLimit;
/// use emitree_middleware::key::Key;
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let limit = RateLimit::builder(2, Duration::from_secs(1)).by(Key::context("user_id")).build()?;
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) }).middleware(limit);
/// let run = |user: u32| double.run(1).context(serde_json::json!({ "user_id": user }));
///
/// run(7).await?;
/// run(7).await?;
/// let error = run(7).await.unwrap_err();
/// assert_eq!(error.to_string(), "at most 2 runs in 1s are allowed: retry after 500ms");
/// assert_eq!(error.details()["retry_after_ms"], 500);
/// run(8).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Options
///
/// | | default |
/// |---|---|
/// | [`burst`](RateLimitBuilder::burst): the number of runs that may begin at once | the number of runs in a period |
/// | [`by`](RateLimitBuilder::by): the key | one key for all runs |
/// | [`wait`](RateLimitBuilder::wait): how long a run waits | it does not wait, and is denied |
/// | [`runs`](RateLimitBuilder::runs), [`of_kind`](RateLimitBuilder::of_kind): the runs that are limited | all |
///
/// # Order
///
/// The layer belongs to [`Phase::Guard`]: a run that a cache answers is not counted, and each attempt of a `Retry` is
/// counted. A time-out per attempt does not include the time that the run waits.
///
/// Runs with the same key pass in the order of their arrival. A run that would have to wait longer than
/// [`wait`](RateLimitBuilder::wait) allows is denied as soon as this is known, and at the latest when the allowed time
/// has passed.
///
/// # Its own events
///
/// `middleware.rate_limit.delayed`, a [`Delayed`], when a run that had to wait continues;
/// `middleware.rate_limit.denied`, a [`Denied`], before a run is denied. For a run that passes at once, the limit emits
/// nothing.
///
/// # What it remembers
///
/// The limit remembers a few numbers for each key. When there are many keys, keys whose burst is fully replenished are
/// removed.
///
/// # Cancel safety
///
/// A run that is aborted or dropped while it waits leaves the queue without being counted, and the runs behind it move
/// up.
#[derive(Clone)]
pub struct RateLimit {
    state: Arc<RateLimiterState>,
    stack: Stack<AnyRun>,
}

struct RateLimiterState {
    options: RateLimitOptions,
    quota: Quota,
    queues: KeyQueues,
    own_events: OwnEvents,
}

impl RateLimit {
    /// Returns a builder for a limit of `runs` runs per `period`.
    pub fn builder(runs: u32, period: Duration) -> RateLimitBuilder {
        let rate = Rate { runs, period, burst: None };
        RateLimitBuilder(RateLimitOptions { rate, limit: KeyedLimitOptions::default() })
    }

    /// Returns the number of remembered keys, excluding the common key of all runs.
    #[must_use]
    pub fn known_keys(&self) -> usize {
        self.state.queues.len()
    }
}

/// Builds a [`RateLimit`]. Returned by [`RateLimit::builder`].
#[must_use = "nothing is limited until it is built"]
pub struct RateLimitBuilder(RateLimitOptions);

struct RateLimitOptions {
    rate: Rate,
    limit: KeyedLimitOptions,
}

keyed_limit_options!(RateLimitBuilder, |this| this.0.limit);

impl RateLimitBuilder {
    /// Sets how many runs may begin at once after a pause. Default: the number of runs in a period.
    pub fn burst(mut self, runs: u32) -> Self {
        self.0.rate.burst = Some(runs);
        self
    }

    /// Builds the [`RateLimit`].
    ///
    /// # Errors
    ///
    /// Returns an error if the limit would let no run pass, if it allows more than one run per nanosecond, or if it
    /// takes more than 100 years to replenish a burst.
    pub fn build(self) -> Result<RateLimit, RateLimitError> {
        let quota = self.0.rate.quota()?;
        let queues = KeyQueues::new(quota);
        let own_events = OwnEvents::new(Namespace::new("middleware.rate_limit"));
        let state = Arc::new(RateLimiterState { options: self.0, quota, queues, own_events });
        let stack = Stack::builder().layer_in(Phase::Guard, RateLimitLayer(Arc::clone(&state))).build();
        Ok(RateLimit { state, stack })
    }
}

debug_as!(RateLimitBuilder, |this| this.0);

built_in!(RateLimit, |this| this.state.own_events, "rate_limit", this.stack, this.state.options.limit.runs; this.state.options.limit.key);

debug_as!(RateLimit, |this| this.state.options);

impl fmt::Debug for RateLimitOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate: Rate { runs, period, burst }, limit } = self;
        write!(f, "{runs} runs{} in {period:?}, {:?}", limit.runs.after(" "), limit.key)?;
        burst.map_or(Ok(()), |burst| write!(f, ", {burst} at once"))?;
        limit.fmt_wait(f)
    }
}

/// Checks the limit before each call of the inner layers.
struct RateLimitLayer(Arc<RateLimiterState>);

impl<O: Op> Layer<O> for RateLimitLayer {
    // Check the limit before the future is created, so that the future of a run that passes contains only the future of
    // the inner layers.
    fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> impl Future<Output = Result<O::Out>> + Send {
        let refused = self.0.check_in(ctx).map(|refused| Box::pin(self.0.refused(refused, ctx)));
        async move {
            if let Some(waits) = refused {
                waits.await?;
            }
            next.run(input).await
        }
    }

    fn name(&self) -> &str {
        "rate_limit"
    }

    fn nesting_warning(&self, nesting: &Nesting<'_>) -> Option<String> {
        let run = nesting.run();
        let above = nesting.above().find(|above| self.0.options.limit.key.is_same_for(run, above))?;
        let run = run.name();
        let above = above.name();
        Some(format!(
            "`{run}` and `{above}` above it count as two runs: bind the limit to one level, as `Runs::only` does"
        ))
    }
}

debug_as!(RateLimitLayer, |this| this.0.options);

/// The reason why a run does not pass at once. It is boxed to keep the result of `check_in` small: most runs pass.
enum NotAdmitted {
    /// The run has no key, or its key function failed.
    Keyless(Error),
    Later {
        key: OwnedKey,
        queue: Arc<KeyQueue>,
        not_yet: NotYet,
    },
}

impl RateLimiterState {
    #[inline]
    fn check_in(&self, ctx: &RunContext) -> Option<Box<NotAdmitted>> {
        let checked_in = self.options.limit.key.look(ctx, |key| {
            let key = key?;
            let (not_yet, queue) = self.queues.check_in(key)?;
            Some(Box::new(NotAdmitted::Later { key: key.to_owned(), queue, not_yet }))
        });
        checked_in.unwrap_or_else(|error| Some(Box::new(NotAdmitted::Keyless(error))))
    }

    async fn refused(&self, refused: Box<NotAdmitted>, ctx: &RunContext) -> Result<()> {
        match *refused {
            NotAdmitted::Keyless(error) => Err(self.own_events.deny_keyless(error, ctx).await),
            NotAdmitted::Later { key, queue, not_yet } => self.later(&key, &queue, &not_yet, ctx).await,
        }
    }

    async fn later(&self, key: &OwnedKey, queue: &KeyQueue, not_yet: &NotYet, ctx: &RunContext) -> Result<()> {
        let came = Instant::now();
        let waited = match (self.options.limit.wait, not_yet) {
            (Some(at_most), _) => queue.wait(came.checked_add(at_most), self.quota).await,
            // Deny at once: the limiter has returned the instant at which a run may pass.
            (None, NotYet::Until(until)) => Err(TooLate(*until)),
            // Other runs are waiting. With a deadline of now, the run passes only if the queue has become empty and the
            // limit lets a run pass; otherwise `wait` returns the instant at which to try again.
            (None, _) => queue.wait(Some(came), self.quota).await,
        };
        match waited {
            Ok(()) => {
                self.own_events.delayed(key, came, ctx).await;
                Ok(())
            }
            Err(TooLate(until)) => Err(self.deny(key, until, ctx).await),
        }
    }

    async fn deny(&self, key: &OwnedKey, until: Instant, ctx: &RunContext) -> Error {
        let retry_after_ms = millis(until.saturating_duration_since(Instant::now()));
        let Rate { runs, period, .. } = self.options.rate;
        let reason = format!("at most {runs} runs in {period:?} are allowed: retry after {retry_after_ms}ms");
        self.own_events.deny(key, retry_after_ms, reason, ctx).await
    }
}
