//! A limit on concurrent runs: [`Concurrency`].

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::Namespace;
use emitree_runtime::{AnyRun, Error, Layer, Nesting, Next, Op, Phase, Result, RunContext, Stack};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::shared::built_in::{built_in, debug_as};
use crate::shared::key::{Key, OwnedKey};
pub use crate::shared::keyed_limit::{Delayed, Denied};
use crate::shared::keyed_limit::{KeyedLimitOptions, keyed_limit_options};
use crate::shared::millis::millis;
use crate::shared::own_events::OwnEvents;
use crate::shared::runs::Runs;
use permits::{HeldPermits, KeyHandle, Permit, PermitTable};

mod permits;

/// A middleware that limits the number of concurrent runs per key. Excess runs wait, or are denied.
///
/// A limit accepts runs of any type, and does not read inputs or outputs. All clones of a limit, and all runs that it
/// is bound to, share its permits. For example, if a limit is bound to a run with
/// [`for_nested`](emitree_runtime::for_nested), all runs below that run share the permits.
///
/// ```
/// use std::time::Duration;
/// use emitree_middleware::Concurrency;
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
/// use tokio::time::{Instant, sleep};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let two = Concurrency::builder(2).wait(Duration::from_secs(10)).build()?;
/// let nap = runnable_fn("nap", |(): (), _: RunContext| async move { Ok(sleep(Duration::from_secs(1)).await) })
///     .middleware(two);
///
/// let begun = Instant::now();
/// let (a, b, c) = tokio::join!(nap.run(()), nap.run(()), nap.run(()));
/// assert!(a.is_ok() && b.is_ok() && c.is_ok());
/// assert_eq!(begun.elapsed().as_secs(), 2);
/// # Ok(())
/// # }
/// ```
///
/// # Options
///
/// | | by default |
/// |---|---|
/// | [`by`](ConcurrencyBuilder::by): key by which runs are counted | all runs together |
/// | [`wait`](ConcurrencyBuilder::wait): how long an excess run waits | it is denied immediately |
/// | [`retry_after`](ConcurrencyBuilder::retry_after): time after which a denied run should be tried again | 1 s |
/// | [`runs`](ConcurrencyBuilder::runs), [`of_kind`](ConcurrencyBuilder::of_kind): the runs to limit | all |
///
/// # Order
///
/// The layer belongs to [`Phase::Guard`], so a permit is held only during the work and the guards inside this layer. A
/// run that a cache answers needs no permit, and a retried run holds no permit between attempts. A time-out per attempt
/// does not include the wait for a permit.
///
/// Runs get permits in the order in which they arrive.
///
/// # Runs below
///
/// If a run holds a permit, all runs below it with the same key share that permit, at any depth. Otherwise, a run below
/// could wait for a permit that is released only after that run has ended. The limit therefore counts concurrent
/// *trees* of runs. The permit is released when the last run that shares it has ended.
///
/// To count each run separately, bind the limit to one level of runs, with [`Runs::only`] or
/// [`runs`](ConcurrencyBuilder::runs), or use a different key for each level. If a limit is bound to a run and to a run
/// above it with the same key, a [warning](emitree_runtime::Layer::nesting_warning) is logged once.
///
/// Other deadlocks are not detected, such as two trees that wait for each other's keys, or a tree that waits for a
/// permit while a [`Cache`](crate::Cache) waits for that tree. Set a deadline with [`wait`](ConcurrencyBuilder::wait)
/// if this can happen.
///
/// # Cancel safety
///
/// A run that is aborted or dropped leaves the queue, or releases its permit, and the next run moves up.
///
/// # Its own events
///
/// In the namespace `middleware.concurrency`: `delayed`, a [`Delayed`], after a run has waited for its permit and got
/// it; `denied`, a [`Denied`], before a run is denied. If a run gets a permit without waiting, no event is emitted.
///
/// # What it remembers
///
/// Keys with a permit that is held or awaited.
#[derive(Clone)]
pub struct Concurrency {
    inner: Arc<ConcurrencyInner>,
    stack: Stack<AnyRun>,
}

/// The state that clones of a limit share.
struct ConcurrencyInner {
    options: ConcurrencyOptions,
    table: Arc<PermitTable>,
    own_events: OwnEvents,
}

struct ConcurrencyOptions {
    permits: usize,
    limit: KeyedLimitOptions,
    retry_after: Duration,
}

/// An invalid option of a [`Concurrency`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConcurrencyError {
    /// The number of permits is 0.
    #[error("`0` permits would deny every run: at least 1 is needed")]
    NoPermits,
    /// The number of permits is above the maximum of tokio's semaphore.
    #[error("`{permits}` permits are too many: at most {most} are allowed", most = Semaphore::MAX_PERMITS)]
    TooMany {
        /// The number of permits.
        permits: usize,
    },
}

impl Concurrency {
    /// Creates a builder of a limit with this number of permits per key.
    pub fn builder(permits: usize) -> ConcurrencyBuilder {
        ConcurrencyBuilder(ConcurrencyOptions {
            permits,
            limit: KeyedLimitOptions::default(),
            retry_after: Duration::from_secs(1),
        })
    }

    /// Returns the number of keys with a permit that is held or awaited.
    #[must_use]
    pub fn known_keys(&self) -> usize {
        self.inner.table.len()
    }
}

/// A builder of a [`Concurrency`]. Created by [`Concurrency::builder`].
#[must_use = "nothing is limited until it is built"]
pub struct ConcurrencyBuilder(ConcurrencyOptions);

keyed_limit_options!(ConcurrencyBuilder, |this| this.0.limit);

impl ConcurrencyBuilder {
    /// Sets the time after which a denied run should be tried again. The denial reports this time to the caller, but a
    /// permit may become free earlier or later. Default: 1 s.
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = after;
        self
    }

    /// Builds the [`Concurrency`].
    ///
    /// # Errors
    ///
    /// Returns an error if the number of permits is 0 or above the maximum of tokio's semaphore.
    pub fn build(self) -> Result<Concurrency, ConcurrencyError> {
        let permits = NonZeroUsize::new(self.0.permits).ok_or(ConcurrencyError::NoPermits)?.get();
        if permits > Semaphore::MAX_PERMITS {
            return Err(ConcurrencyError::TooMany { permits });
        }
        let table = PermitTable::new(permits);
        let own_events = OwnEvents::new(Namespace::new("middleware.concurrency"));
        let inner = Arc::new(ConcurrencyInner { options: self.0, table, own_events });
        let stack = Stack::builder().layer_in(Phase::Guard, ConcurrencyLayer(Arc::clone(&inner))).build();
        Ok(Concurrency { inner, stack })
    }
}

debug_as!(ConcurrencyBuilder, |this| this.0);

built_in!(Concurrency, |this| this.inner.own_events, "concurrency", this.stack, this.inner.options.limit.runs; this.inner.options.limit.key);

debug_as!(Concurrency, |this| this.inner.options);

impl fmt::Debug for ConcurrencyOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { permits, limit, .. } = self;
        write!(f, "{permits} runs{} at once, {:?}", limit.runs.after(" "), limit.key)?;
        limit.fmt_wait(f)
    }
}

/// Holds a permit while the layers inside this layer and the work run.
struct ConcurrencyLayer(Arc<ConcurrencyInner>);

impl<O: Op> Layer<O> for ConcurrencyLayer {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        // The permit lives to the end of the call, so it is released however the call ends, even if the call is
        // dropped.
        let _permit = match self.0.acquire(ctx) {
            Acquired::Uncounted => None,
            Acquired::Permit(permit) => Some(permit),
            // Box the rare wait, so that it does not enlarge the future of a run that gets a permit without waiting.
            Acquired::Full(handle) => Some(Box::pin(self.0.wait(handle, ctx)).await?),
            Acquired::Keyless(error) => return Err(Box::pin(self.0.own_events.deny_keyless(error, ctx)).await),
        };
        next.run(input).await
    }

    fn name(&self) -> &str {
        "concurrency"
    }

    fn nesting_warning(&self, nesting: &Nesting<'_>) -> Option<String> {
        let run = nesting.run();
        let above = nesting.above().find(|above| self.0.options.limit.key.is_same_for(run, above))?;
        let run = run.name();
        let above = above.name();
        Some(format!(
            "`{run}` shares the permit of `{above}` above it, so the runs below `{above}` are not limited individually: \
             bind the limit to one level, as `Runs::only` does"
        ))
    }
}

debug_as!(ConcurrencyLayer, |this| this.0.options);

/// The outcome of the first, synchronous attempt to acquire a permit.
enum Acquired {
    Uncounted,
    Permit(Arc<Permit>),
    Full(KeyHandle),
    /// The run must be denied: it has no key although it needs one, or the key function failed.
    Keyless(Error),
}

impl ConcurrencyInner {
    fn acquire(&self, ctx: &RunContext) -> Acquired {
        let acquired = self.options.limit.key.look(ctx, |key| {
            let Some(key) = key else { return Acquired::Uncounted };
            // Look for a held permit before asking the semaphore: a run that waited below the permit's holder would
            // deadlock.
            if let Some(permit) = HeldPermits::find(ctx, &self.table, key) {
                return Acquired::Permit(permit);
            }
            match self.table.handle(key).try_acquire() {
                Ok(permit) => Acquired::Permit(HeldPermits::add(ctx, permit)),
                Err(handle) => Acquired::Full(handle),
            }
        });
        acquired.unwrap_or_else(Acquired::Keyless)
    }

    async fn wait(&self, handle: KeyHandle, ctx: &RunContext) -> Result<Arc<Permit>> {
        let came = Instant::now();
        let key = handle.key();
        let permit = match self.options.limit.wait {
            Some(at_most) => handle.acquire(came.checked_add(at_most)).await,
            None => None,
        };
        let Some(permit) = permit else { return Err(self.deny(&key, ctx).await) };
        // Register the permit before the event is awaited, so that runs started by listeners share the permit.
        let permit = HeldPermits::add(ctx, permit);
        self.own_events.delayed(&key, came, ctx).await;
        Ok(permit)
    }

    async fn deny(&self, key: &OwnedKey, ctx: &RunContext) -> Error {
        let permits = self.options.permits;
        let retry_after_ms = millis(self.options.retry_after);
        let reason = format!("at most {permits} concurrent runs are allowed: retry after {retry_after_ms}ms");
        self.own_events.deny(key, retry_after_ms, reason, ctx).await
    }
}
