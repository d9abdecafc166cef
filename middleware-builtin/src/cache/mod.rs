//! What was answered before is answered again: [`Cache`].

mod builder;
mod deadlock;
mod events;
mod flight;
mod key;
mod lookup;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::{Context, Emitter};
use emitree_runtime::{JsonRun, Layer, LayerInfo, Middleware, Next, Op, Phase, Result, RunContext, Runnable, Stack};
use serde::Serialize;
use serde_json::Value;

pub use self::builder::{CacheBuilder, CacheError};
pub use self::events::{Hit, Joined, Miss, Why};

use self::flight::Flights;
use self::key::{CacheKey, KeyParts};
use self::lookup::CacheEntry;
use crate::shared::own_events::OwnEvents;

/// Answers again what was answered before, and has what is asked for by several at the same time executed once.
///
/// Clones are the same cache: its entries are shared by all runs that it is bound to.
///
/// - `Cache<Value>`, made by [`json`](Self::json), is a middleware for runs of any type: what it keeps is JSON.
/// - `Cache<T>`, made by [`typed`](Self::typed), is a [`Layer`] of every kind of work whose output is a `T`: what it
///   keeps is cloned, and no JSON is read. [`stack`](Self::stack) makes a middleware of it.
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
/// # What is the same
///
/// Runs are the same if they are of the same instance, kind and name, and their inputs are equal as canonical JSON
/// (keys sorted); places of one run have to be given caches, or scopes, of their own. [`scope`](CacheBuilder::scope) shares what several instances answer;
/// [`context_keys`](CacheBuilder::context_keys) tells runs apart by what their context says. An input that cannot be
/// written as JSON is not looked up.
///
/// # Order
///
/// 1. It stands in [`Phase::Transform`] ([`in_phase`](CacheBuilder::in_phase) puts it elsewhere): what stands outside of
///    it, input and output middlewares too, sees an answer as it sees the work's. What stands inside of it, such as a
///    guard, is not called for a hit: if what it says depends on who asks, that belongs into the context keys, or the
///    cache into [`Phase::Guard`], bound after it.
/// 2. *Hit*: there is an entry, and it is not too old. It is cloned.
/// 3. *Joined*: the same is being executed. It is waited for, and gives its output or its failure. If it is dropped,
///    aborted, panics, or ends as control flow (denied, halted, interrupted, timed out, a request for a retry), that is
///    its own affair: one of those who wait executes, and the others wait for that one. Dropping one that waits, or
///    aborting it, changes nothing for the others. Where a run would wait for itself, as it was started in the very run
///    that executes the same, or in one that that waits for in turn, in whatever cache, it does not: it executes.
///    So does a place that one run asks for the same twice at a time.
/// 4. *Miss*: it is executed, and an output is kept. So is a failure where [`cache_errors`](CacheBuilder::cache_errors)
///    says so; control flow and panics never are.
///
/// A run that was answered at its `start` has that answer, whatever is kept: it is neither looked up nor kept, nothing is
/// said of it, and nobody joins it.
///
/// An attempt that was asked for by [`Error::retry`](emitree_runtime::Error::retry) does not take what is kept:
/// it executes, or joins, and what that gives takes the place. A layer outside that calls again by itself, because of the
/// output that it got, gets what is kept: it has to stand inside.
///
/// Whoever waits relies on the one that executes being polled: a future that is held and not polled keeps them waiting,
/// as a lock would. It relies as well on what that one waits for inside of the cache: if that is a place of a
/// [`Concurrency`](crate::Concurrency) that a run above the waiting one holds, neither goes on, unless the wait for the
/// place has a deadline.
///
/// # Defaults
///
/// 10,000 entries, none too old, errors not kept. Entries go when there is no more room, by how often and how recently they
/// were used. Ages are measured by tokio's clock, when an entry is looked at.
///
/// # Its own events
///
/// `middleware.cache.hit`, a [`Hit`]; `middleware.cache.joined`, a [`Joined`]; `middleware.cache.miss`, a [`Miss`]: each
/// before it is answered, waited, or executed.
pub struct Cache<T = Value>(Arc<CacheInner<T>>);

struct CacheInner<T> {
    entries: moka::sync::Cache<CacheKey, Arc<CacheEntry<T>>>,
    flights: Flights<T>,
    options: CacheOptions<T>,
    own_events: OwnEvents,
}

/// What a cache was built with.
struct CacheOptions<T> {
    /// Shared by several instances; none if each has answers of its own.
    scope: Option<String>,
    /// Sorted.
    context_keys: Vec<String>,
    ttl: Option<Duration>,
    keeps_errors: bool,
    phase: Phase,
    size: u64,
    /// What an output weighs, if not one.
    weigh: Option<fn(&T) -> u64>,
}

impl Cache<Value> {
    /// Begins one for runs of any type.
    pub fn json() -> CacheBuilder<Value> {
        CacheBuilder::new()
    }

    /// Begins one for all kinds of work whose output is a `T`.
    pub fn typed<T: Clone + Send + Sync + 'static>() -> CacheBuilder<T> {
        CacheBuilder::new()
    }
}

impl<T: Clone + Send + Sync + 'static> Cache<T> {
    /// Makes a middleware of it, for runs of one type.
    #[must_use]
    pub fn stack<O>(&self) -> Stack<O>
    where
        O: Op<Out = T>,
        O::In: Serialize,
    {
        Stack::builder().layer_in(self.0.options.phase, self.clone()).build()
    }

    /// Forgets the answer to an input, with the context that its runs have, as far as the cache looks at it. Of those
    /// that are being executed nothing is kept, and nobody joins them any more.
    pub fn invalidate<R: Runnable>(&self, runnable: &R, input: &R::Input, context: &Context) {
        let parts = KeyParts {
            instance: runnable.emitter(),
            kind: runnable.kind(),
            name: runnable.name(),
            context: &|| context.clone(),
        };
        self.0.flights.detach();
        if let Some(key) = self.0.options.key(input, &parts) {
            self.0.entries.invalidate(&key);
        }
    }

    /// Forgets all answers. Of what is being executed nothing is kept, and nobody joins it any more.
    pub fn invalidate_all(&self) {
        self.0.flights.detach();
        self.0.entries.invalidate_all();
    }

    /// How many entries there are, with those that are too old and have not been looked at since.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.entries.run_pending_tasks();
        self.0.entries.entry_count()
    }

    /// Tells whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Cache<T> {
    /// The emitter of its own events.
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

    fn layers(&self) -> Vec<LayerInfo> {
        self.stack::<JsonRun>().layers()
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
        scope.as_ref().map_or(Ok(()), |scope| write!(f, ", in {scope}"))?;
        if !context_keys.is_empty() {
            write!(f, ", by {}", context_keys.join(", "))?;
        }
        f.write_str(if *keeps_errors { ", errors too" } else { "" })
    }
}
