//! One call through a cache: hit, joined or miss.

use std::any::Any;
use std::sync::Arc;

use emitree_emitter::json::check_depth;
use emitree_runtime::{AsInstance, Error, ErrorKind, Next, Op, Result, RunContext};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::events::{Hit, Joined, Miss, Why};
use super::flight::{Leader, Role};
use super::key::{CacheKey, KeyParts};
use super::{CacheInner, CacheOptions, CacheScope};
use crate::shared::millis::millis;

/// A stored result.
pub(super) struct CacheEntry<T> {
    result: Result<T>,
    /// The time at which the result was stored.
    at: Instant,
    key: CacheKey,
    weight: u32,
}

impl<T> CacheEntry<T> {
    pub(super) const fn weight(&self) -> u32 {
        self.weight
    }
}

impl<T: Clone + Send + Sync + 'static> CacheInner<T> {
    pub(super) async fn call<O>(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<T>
    where
        O: Op<Out = T>,
        O::In: Serialize,
    {
        // Bypass the cache: an answer set at `start` belongs to this run only, and an input that JSON does not
        // represent exactly could share its key with another input.
        if next.is_answered() || !next.is_exact() {
            return next.run(input).await;
        }
        // Without a key, the cache can neither find nor share a result.
        let Some(key) = self.options.key_of(input, ctx) else { return next.run(input).await };
        match self.find(&key, ctx) {
            Ok(entry) => self.hit(&entry, ctx).await,
            Err(why) => self.miss(&key, why, input, ctx, next).await,
        }
    }

    /// Returns the fresh entry of a key, or the reason for executing the request.
    fn find(&self, key: &CacheKey, ctx: &RunContext) -> std::result::Result<Arc<CacheEntry<T>>, Why> {
        if ctx.attempt() > 0 {
            return Err(Why::Retried);
        }
        let entry = self.entries.get(key).ok_or(Why::Absent)?;
        if self.options.is_fresh(entry.at) { Ok(entry) } else { Err(Why::Expired) }
    }

    async fn hit(&self, entry: &CacheEntry<T>, ctx: &RunContext) -> Result<T> {
        self.new_instances.hit(ctx);
        let event = || Hit { key: entry.key.to_hex(), age_ms: millis(entry.at.elapsed()) };
        self.own_events.emit(ctx, event).await;
        entry.result.clone()
    }

    /// Executes the request, or waits for an equal request that is being executed.
    async fn miss<O>(&self, key: &CacheKey, why: Why, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<T>
    where
        O: Op<Out = T>,
    {
        if matches!(self.options.scope, CacheScope::Instance) && why == Why::Absent {
            self.new_instances.missed(ctx);
        }
        loop {
            // Each round either returns or waits for one leader. A leader that leaves without a result sends its
            // followers into the next round, where one of the followers leads.
            let follower = match self.flights.enter(key, ctx) {
                Role::Leads(leader) => return self.lead(leader, why, input, ctx, next).await,
                // Execute outside any flight: no run joins the execution, and its output is not stored.
                Role::Recurses => {
                    self.own_events.emit(ctx, || Miss { key: key.to_hex(), why: Why::Recursive }).await;
                    return next.run(input).await;
                }
                Role::Joins(follower) => follower,
            };
            self.own_events.emit(ctx, || Joined { key: key.to_hex(), age_ms: millis(follower.began.elapsed()) }).await;
            if let Some(result) = follower.wait().await {
                return result;
            }
        }
    }

    async fn lead<O>(
        &self,
        leader: Leader<T>,
        why: Why,
        input: &O::In,
        ctx: &RunContext,
        next: Next<'_, O>,
    ) -> Result<T>
    where
        O: Op<Out = T>,
    {
        // The previous leader may have stored its result after this run's lookup (flight.rs, 3).
        if why != Why::Retried
            && let Some(entry) = self.entries.get(leader.key()).filter(|entry| self.options.is_fresh(entry.at))
        {
            leader.complete(entry.result.clone());
            return self.hit(&entry, ctx).await;
        }
        // Begin before `miss` is emitted: runs started by the event's listeners must not wait for this run (flight.rs,
        // 5).
        leader.begin(ctx);
        self.own_events.emit(ctx, || Miss { key: leader.key().to_hex(), why }).await;
        let result = next.run(input).await;
        // Returning without `complete` leaves the followers without a result: one of the followers leads next.
        if result.as_ref().is_err_and(is_not_shared) || !next.is_exact() || result.as_ref().is_ok_and(is_deep) {
            return result;
        }
        // Store before completing: a run that no longer finds the flight then finds the entry (flight.rs, 3).
        self.store(&leader, &result);
        leader.complete(result.clone());
        result
    }

    fn store(&self, leader: &Leader<T>, result: &Result<T>) {
        let entry = self.options.new_entry(leader.key().clone(), result);
        let is_wanted = (result.is_ok() || self.options.keeps_errors) && u64::from(entry.weight) <= self.options.size;
        if is_wanted && leader.is_attached() {
            self.entries.insert(leader.key().clone(), Arc::new(entry));
            // An invalidation between the check and the insert did not see the entry: remove it (flight.rs, 4).
            if !leader.is_attached() {
                self.entries.invalidate(leader.key());
            }
        }
    }
}

impl<T: Clone> CacheOptions<T> {
    fn key_of(&self, input: &impl Serialize, ctx: &RunContext) -> Option<CacheKey> {
        let (kind, name) = ctx.creator().map_or(("", ""), |creator| (creator.kind(), creator.name()));
        let context = || ctx.context();
        self.key(input, &KeyParts { instance: ctx.instance_emitter(), kind, name, context: &context })
    }

    fn is_fresh(&self, at: Instant) -> bool {
        self.ttl.is_none_or(|ttl| at.elapsed() < ttl)
    }

    fn new_entry(&self, key: CacheKey, result: &Result<T>) -> CacheEntry<T> {
        let weight = self.weigh.map_or(1, |weigh| key.len() + result.as_ref().map_or(0, weigh));
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        CacheEntry { result: result.clone(), at: Instant::now(), key, weight }
    }
}

/// Returns `true` for JSON that is nested so deeply that cloning it could overflow the stack.
fn is_deep<T: 'static>(output: &T) -> bool {
    let output: &dyn Any = output;
    output.downcast_ref::<Value>().is_some_and(|output| check_depth(output).is_err())
}

/// Returns `true` for control flow and panics, which end only the run that they happen in.
fn is_not_shared(error: &Error) -> bool {
    error.is_control_flow() || *error.kind() == ErrorKind::Panicked
}
