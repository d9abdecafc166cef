//! How many runs may be under way at once: [`Concurrency`].

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

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

/// Lets so many runs of a key be under way at once, and has the others wait, or denies them.
///
/// It works on runs of any type and looks at no value. Its permits are shared: clones are the same one, and bound to many
/// runs, or by [`for_nested`](emitree_runtime::for_nested) to those below one, it limits all of them together.
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
/// | [`by`](ConcurrencyBuilder::by): what is counted together | all runs |
/// | [`wait`](ConcurrencyBuilder::wait): how long a run waits | not at all: it is denied |
/// | [`retry_after`](ConcurrencyBuilder::retry_after): when one that is denied may come again | 1 s |
/// | [`runs`](ConcurrencyBuilder::runs), [`of_kind`](ConcurrencyBuilder::of_kind): which runs it is about | all |
///
/// # Where it stands
///
/// In [`Phase::Guard`], so that a permit is held around the work only: what a cache answers needs none, and whoever calls
/// again has given it back between the attempts. A time-out per attempt includes the waiting.
///
/// # Runs below
///
/// A run below one that holds a permit of the same key shares that permit, however deep; else it would wait for a permit
/// that is given back only after it. So what is limited is how many *trees* of such runs are under way: to limit what a
/// run starts below it, limit another kind or key than its own. The permit is given back when the last that shares it
/// has ended. Where a run shares the permit of one above, the runs below are not limited one by one:
/// bind the limit to one level of runs, with [`Runs::only`] or [`runs`](ConcurrencyBuilder::runs). The first time, this is
/// [warned of](emitree_runtime::Layer::nesting_warning). Two trees that wait for each other, by keys in different order, or for a permit and for what a cache is
/// about to know, are not found out: give them a deadline.
///
/// # Who waits
///
/// Runs get their permits in the order in which they came. A run that is aborted or dropped leaves the queue, or gives
/// its permit back, and the others move up.
///
/// # Its own events
///
/// Under `middleware.concurrency`: `delayed`, a [`Delayed`], before a run goes on that had to wait; `denied`, a
/// [`Denied`], before one is denied. What finds a permit at once is not told.
///
/// # What it remembers
///
/// Those keys whose permits somebody holds or awaits.
#[derive(Clone)]
pub struct Concurrency {
    inner: Arc<ConcurrencyInner>,
    stack: Stack<AnyRun>,
}

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

/// Why a limit of concurrency cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConcurrencyError {
    /// No run would ever get a permit.
    #[error("`0` permits let nothing begin: at least 1 is needed")]
    NoPermits,
    /// More than can be counted.
    #[error("`{permits}` permits are more than can be counted: at most {most}", most = Semaphore::MAX_PERMITS)]
    TooMany {
        /// How many.
        permits: usize,
    },
}

impl Concurrency {
    /// So many at once.
    pub fn builder(permits: usize) -> ConcurrencyBuilder {
        ConcurrencyBuilder(ConcurrencyOptions {
            permits,
            limit: KeyedLimitOptions::default(),
            retry_after: Duration::from_secs(1),
        })
    }

    /// Of how many keys somebody holds or awaits a permit.
    #[must_use]
    pub fn known_keys(&self) -> usize {
        self.inner.table.len()
    }
}

/// Options of a [`Concurrency`]. Made by [`Concurrency::builder`].
#[must_use = "nothing is limited until it is built"]
pub struct ConcurrencyBuilder(ConcurrencyOptions);

keyed_limit_options!(ConcurrencyBuilder, |this| this.0.limit);

impl ConcurrencyBuilder {
    /// What a run that is denied is told: when it may come again. Nobody knows when a permit will be free, so this is
    /// advice.
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = after;
        self
    }

    /// Builds it.
    ///
    /// # Errors
    ///
    /// If there is no permit, or are more than can be counted.
    pub fn build(self) -> Result<Concurrency, ConcurrencyError> {
        let permits = NonZeroUsize::new(self.0.permits).ok_or(ConcurrencyError::NoPermits)?.get();
        if permits > Semaphore::MAX_PERMITS {
            return Err(ConcurrencyError::TooMany { permits });
        }
        let (table, own_events) = (PermitTable::new(permits), OwnEvents::new("middleware.concurrency"));
        let inner = Arc::new(ConcurrencyInner { options: self.0, table, own_events });
        let stack = Stack::builder().layer_in(Phase::Guard, ConcurrencyLayer(Arc::clone(&inner))).build();
        Ok(Concurrency { inner, stack })
    }
}

debug_as!(ConcurrencyBuilder, |this| this.0);

built_in!(Concurrency, |this| this.inner.own_events, "concurrency", this.stack, this.inner.options.limit.runs);

debug_as!(Concurrency, |this| this.inner.options);

impl fmt::Debug for ConcurrencyOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { permits, limit, .. } = self;
        write!(f, "{permits} runs{} at once, {:?}", limit.runs.after(" "), limit.key)?;
        limit.fmt_wait(f)
    }
}

/// Holds a permit around each call of what is inside.
struct ConcurrencyLayer(Arc<ConcurrencyInner>);

impl<O: Op> Layer<O> for ConcurrencyLayer {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let _permit = match self.0.acquire(ctx) {
            Acquired::Uncounted => None,
            Acquired::Permit(permit) => Some(permit),
            // Seldom, so it takes no room in the future of those that find a permit.
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
        let (run, above) = (run.name(), above.name());
        Some(format!(
            "`{run}` shares the permit of `{above}` above it, so the runs below `{above}` are not limited one by one: \
             bind the limit to one level, as `Runs::only` does"
        ))
    }
}

debug_as!(ConcurrencyLayer, |this| this.0.options);

enum Acquired {
    Uncounted,
    Permit(Arc<Permit>),
    Full(KeyHandle),
    /// It has no key, or none that could be found out.
    Keyless(Error),
}

impl ConcurrencyInner {
    fn acquire(&self, ctx: &RunContext) -> Acquired {
        let acquired = self.options.limit.key.look(ctx, |key| {
            let Some(key) = key else { return Acquired::Uncounted };
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
        let (came, key) = (Instant::now(), handle.key());
        let permit = match self.options.limit.wait {
            Some(at_most) => handle.acquire(came.checked_add(at_most)).await,
            None => None,
        };
        let Some(permit) = permit else { return Err(self.deny(&key, ctx).await) };
        let permit = HeldPermits::add(ctx, permit);
        self.own_events.delayed(&key, came, ctx).await;
        Ok(permit)
    }

    async fn deny(&self, key: &OwnedKey, ctx: &RunContext) -> Error {
        let (permits, retry_after_ms) = (self.options.permits, millis(self.options.retry_after));
        let reason = format!("no more than {permits} runs at once: perhaps again in {retry_after_ms}ms");
        self.own_events.deny(key, retry_after_ms, reason, ctx).await
    }
}
