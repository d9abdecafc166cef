//! A cache of runs' outputs: [`Cache`].

mod builder;
mod deadlock;
mod events;
mod flight;
mod key;
mod lookup;
mod new_instances;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::{Context, Emitter};
use emitree_runtime::{Description, JsonRun, Layer, Middleware, Next, Op, Phase, Result, RunContext, Runnable, Stack};
use serde::Serialize;
use serde_json::Value;

pub use self::builder::{CacheBuilder, CacheError};
pub use self::events::{Hit, Joined, Miss, Why};

use self::flight::Flights;
use self::key::{CacheKey, KeyParts};
use self::lookup::CacheEntry;
use self::new_instances::NewInstances;
use crate::shared::own_events::OwnEvents;

/// A cache that stores the outputs of runs by input. Equal concurrent requests are executed once.
///
/// All clones of a cache, and all runs that it is bound to, share its entries.
///
/// - `Cache<Value>`, created by [`json`](Self::json), is a middleware for runs of any type. This cache stores JSON.
/// - `Cache<T>`, created by [`typed`](Self::typed), is a [`Layer`] for every kind of work whose output is a `T`. This
///   cache stores clones of outputs, without converting them to JSON. [`stack`](Self::stack) turns it into a
///   middleware.
///
/// ```
/// use emitree_middleware::Cache;
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let cache = Cache::typed::<String>().build()?;
/// let greet = runnable_fn("greet", |name: String, ctx: RunContext| async move {
///     Ok(format!("hello, {name}, says {}", ctx.run_id()))
/// })
/// .layer(cache.clone());
///
/// let first = greet.run("Ada".to_owned()).await?;
/// assert_eq!(greet.run("Ada".to_owned()).await?, first);
/// assert_ne!(greet.run("Bob".to_owned()).await?, first);
///
/// cache.invalidate(&greet, &"Ada".to_owned(), &Default::default());
/// assert_ne!(greet.run("Ada".to_owned()).await?, first);
/// # Ok(())
/// # }
/// ```
///
/// # Equal requests
///
/// Two runs share an answer if their instances, kinds and names are equal, and if their inputs are equal as JSON with
/// sorted keys. [`by_name`](CacheBuilder::by_name) shares answers among the instances of one kind and name, for a
/// runnable that is made anew for each call; without it, a cache over such a runnable never has a hit, and one warning
/// says so. [`scope`](CacheBuilder::scope) shares answers among all instances.
/// [`context_keys`](CacheBuilder::context_keys) separates runs by values of their context. A run bypasses the cache if
/// JSON cannot represent its input exactly. If a run has several cache layers, use a separate cache for each of them.
///
/// # Order
///
/// 1. The layer belongs to [`Phase::Transform`], or to the phase set by [`in_phase`](CacheBuilder::in_phase). On a hit,
///    input middlewares, layers outside the cache and output middlewares are called as usual. Layers inside the cache,
///    such as guards, are not called. If a guard's decision depends on the caller, add the caller to the context keys,
///    or put the cache into [`Phase::Guard`] and bind it after the guard.
/// 2. *Hit*: there is a fresh entry, and a clone of its result is returned.
/// 3. *Joined*: an equal request is being executed, and this run waits for its output or failure. If the executing run
///    is dropped, panics or ends in control flow, such as a denial, an abort or a time-out, its result is not shared:
///    one of the waiting runs executes next, and the others wait for that run. Dropping or aborting a waiting run does
///    not affect the other waiting runs.
/// 4. *Miss*: the work is executed, and its output is stored. Failures are stored only with
///    [`cache_errors`](CacheBuilder::cache_errors). Control flow and panics are never stored.
///
/// A run that would wait for itself executes the work instead of joining. That happens if a run above is executing the
/// equal request, or if the executing run waits for one of the runs above, directly or indirectly, in any cache. If a
/// layer outside the cache calls `next` twice concurrently, the second call also executes the work.
///
/// A run that was answered at its `start` keeps that answer: the cache is not consulted, stores nothing and emits no
/// event.
///
/// An attempt requested by [`Error::retry`](emitree_runtime::Error::retry) ignores stored entries: it executes the work
/// or joins an execution, and the result replaces the entry. Bind a layer that calls `next` repeatedly inside the
/// cache. If such a layer is outside the cache, its later calls get the stored entry.
///
/// A waiting run depends on the executing run being polled. If the executing run's future is kept but not polled, all
/// runs that joined it wait, as they would for a lock. If the executing run waits inside the cache, the runs that
/// joined it wait as well. If the executing run waits for a permit of a [`Concurrency`](crate::Concurrency) that is
/// held by a run above the waiting run, neither run makes progress, unless the wait for the permit has a deadline.
///
/// # Defaults
///
/// At most 10,000 entries, no maximum age, errors not stored. A full cache evicts entries by how often and how recently
/// they were used. An entry's age is measured by tokio's clock at each lookup.
///
/// # Its own events
///
/// - `middleware.cache.hit`, a [`Hit`], before the stored answer is returned.
/// - `middleware.cache.joined`, a [`Joined`], before the wait.
/// - `middleware.cache.miss`, a [`Miss`], before the execution.
pub struct Cache<T = Value>(Arc<CacheInner<T>>);

/// The state that clones of a cache share.
struct CacheInner<T> {
    entries: moka::sync::Cache<CacheKey, Arc<CacheEntry<T>>>,
    flights: Flights<T>,
    options: CacheOptions<T>,
    new_instances: NewInstances,
    own_events: OwnEvents,
}

/// The options of a cache.
struct CacheOptions<T> {
    scope: CacheScope,
    /// The context keys, sorted and without duplicates.
    context_keys: Vec<String>,
    ttl: Option<Duration>,
    keeps_errors: bool,
    phase: Phase,
    size: u64,
    /// Returns the weight of an output; `None` if each entry weighs 1.
    weigh: Option<fn(&T) -> u64>,
}

/// The runs whose equal inputs get equal answers.
#[derive(Debug)]
enum CacheScope {
    /// The runs of one instance.
    Instance,
    /// The runs of instances with the same kind and name.
    Name,
    /// All runs.
    Shared(String),
}

impl Cache<Value> {
    /// Creates a builder of a cache for runs of any type.
    pub fn json() -> CacheBuilder<Value> {
        CacheBuilder::new()
    }

    /// Creates a builder of a cache for all kinds of work whose output is a `T`.
    pub fn typed<T: Clone + Send + Sync + 'static>() -> CacheBuilder<T> {
        CacheBuilder::new()
    }
}

impl<T: Clone + Send + Sync + 'static> Cache<T> {
    /// Returns the cache as a middleware for runs of the type `O`.
    #[must_use]
    pub fn stack<O>(&self) -> Stack<O>
    where
        O: Op<Out = T>,
        O::In: Serialize,
    {
        Stack::builder().layer_in(self.0.options.phase, self.clone()).build()
    }

    /// Removes the entry of an input, for runs with this context. Executions under way, for any input, are detached: no
    /// further run joins them, and their results are not stored.
    pub fn invalidate<R: Runnable>(&self, runnable: &R, input: &R::Input, context: &Context) {
        let parts = KeyParts {
            instance: runnable.emitter(),
            kind: runnable.kind(),
            name: runnable.name(),
            context: &|| context.clone(),
        };
        // Detach before removing: a flight that is still attached could store its result after the removal.
        self.0.flights.detach();
        if let Some(key) = self.0.options.key(input, &parts) {
            self.0.entries.invalidate(&key);
        }
    }

    /// Removes all entries. Executions under way are detached: no further run joins them, and their results are not
    /// stored.
    pub fn invalidate_all(&self) {
        self.0.flights.detach();
        self.0.entries.invalidate_all();
    }

    /// Returns the number of entries, including expired entries that have not been replaced yet.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.entries.run_pending_tasks();
        self.0.entries.entry_count()
    }

    /// Returns `true` if there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Cache<T> {
    /// Returns the emitter of the cache's own events.
    #[must_use]
    pub fn emitter(&self) -> &Emitter {
        self.0.own_events.emitter()
    }
}

impl<T, O> Layer<O> for Cache<T>
where
    T: Clone + Send + Sync + 'static,
    O: Op<Out = T>,
    O::In: Serialize,
{
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<T> {
        self.0.call(input, ctx, next).await
    }

    fn name(&self) -> &str {
        "cache"
    }
}

impl Middleware for Cache<Value> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        self.stack::<JsonRun>().bind(ctx)
    }

    fn name(&self) -> &str {
        "cache"
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self).with_layers(|| self.stack::<JsonRun>().layers())
    }
}

impl<T> Clone for Cache<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Cache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheOptions { scope, context_keys, ttl, keeps_errors, size, weigh, .. } = &self.0.options;
        write!(f, "{size} {}", if weigh.is_some() { "bytes" } else { "entries" })?;
        ttl.map_or(Ok(()), |ttl| write!(f, ", for {ttl:?}"))?;
        match scope {
            CacheScope::Instance => {}
            CacheScope::Name => f.write_str(", by name")?,
            CacheScope::Shared(scope) => write!(f, ", in {scope}")?,
        }
        if !context_keys.is_empty() {
            write!(f, ", by {}", context_keys.join(", "))?;
        }
        f.write_str(if *keeps_errors { ", errors too" } else { "" })
    }
}
