//! Filters that call the closures of hooks.

use std::fmt;
use std::mem::take;
use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;

use emitree_emitter::panic_text;
use emitree_runtime::{Error, Filter, Filters, Result, RunContext};
use futures_core::future::BoxFuture;
use futures_util::FutureExt;

use crate::ToolCall;
use crate::place::action::TurnEnd;

pub(crate) const CONTINUE: ControlFlow<String> = ControlFlow::Continue(());

pub(crate) fn add<T: Send + 'static>(filters: &mut Filters<T>, filter: impl Filter<T>) {
    *filters = take(filters).with(filter);
}

/// Passes a value through filters. If a filter panics, returns an error with the message of the panic.
pub(crate) async fn apply_caught<T: Send + 'static>(
    filters: &Filters<T>,
    value: &mut T,
    ctx: &RunContext,
) -> Result<()> {
    // Boxed, so that the loop's own future does not become larger.
    let passed = AssertUnwindSafe(Box::pin(filters.apply(value, ctx))).catch_unwind().await;
    passed.unwrap_or_else(|payload| Err(Error::new(format!("panicked: {}", panic_text(payload)))))
}

/// A filter that calls a sync closure.
pub(crate) struct SyncHook<F> {
    pub(crate) name: String,
    pub(crate) hook: F,
}

impl<T, F> Filter<T> for SyncHook<F>
where
    T: Send,
    F: Fn(&mut T, &RunContext) -> Result<ControlFlow<String>> + Send + Sync + 'static,
{
    async fn filter(&self, value: &mut T, ctx: &RunContext) -> Result<ControlFlow<String>> {
        (self.hook)(value, ctx).map_err(|error| error.by(&self.name))
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// A filter that calls an async closure.
pub(crate) struct AsyncHook<F> {
    pub(crate) name: String,
    pub(crate) hook: F,
}

impl<T, F> Filter<T> for AsyncHook<F>
where
    T: Send,
    F: for<'a> Fn(&'a mut T, &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
{
    async fn filter(&self, value: &mut T, ctx: &RunContext) -> Result<ControlFlow<String>> {
        (self.hook)(value, ctx).await.map(|()| CONTINUE).map_err(|error| error.by(&self.name))
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// An async closure whose result is appended to the parts of the system prompt.
pub(crate) struct Contribution<F> {
    pub(crate) name: String,
    pub(crate) contribute: F,
}

impl<F> Filter<Vec<String>> for Contribution<F>
where
    F: for<'a> Fn(&'a RunContext) -> BoxFuture<'a, Result<String>> + Send + Sync + 'static,
{
    async fn filter(&self, texts: &mut Vec<String>, ctx: &RunContext) -> Result<ControlFlow<String>> {
        texts.push((self.contribute)(ctx).await.map_err(|error| error.by(&self.name))?);
        Ok(CONTINUE)
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// An async closure that may return another tool call. The first closure that returns a call ends the chain.
pub(crate) struct Resolver<F> {
    pub(crate) name: String,
    pub(crate) hook: F,
}

impl<F> Filter<ToolCall> for Resolver<F>
where
    F: for<'a> Fn(&'a ToolCall, &'a RunContext) -> BoxFuture<'a, Result<Option<ToolCall>>> + Send + Sync + 'static,
{
    async fn filter(&self, call: &mut ToolCall, ctx: &RunContext) -> Result<ControlFlow<String>> {
        let other = (self.hook)(call, ctx).await.map_err(|error| error.by(&self.name))?;
        Ok(resolved(call, other, &self.name))
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// Replaces a call with the call that a resolver returned, if any, and then ends the chain.
pub(crate) fn resolved(call: &mut ToolCall, other: Option<ToolCall>, by: &str) -> ControlFlow<String> {
    let Some(other) = other else { return CONTINUE };
    // The id stays, because the result belongs to the call that the model made.
    *call = ToolCall { id: take(&mut call.id), ..other };
    ControlFlow::Break(by.to_owned())
}

/// An async closure that may end the loop. The first closure that returns `true` ends the chain.
pub(crate) struct StopCheck<F> {
    pub(crate) name: String,
    pub(crate) hook: F,
}

impl<F> Filter<TurnEnd> for StopCheck<F>
where
    F: for<'a> Fn(&'a TurnEnd, &'a RunContext) -> BoxFuture<'a, Result<bool>> + Send + Sync + 'static,
{
    async fn filter(&self, end: &mut TurnEnd, ctx: &RunContext) -> Result<ControlFlow<String>> {
        let stops = (self.hook)(end, ctx).await.map_err(|error| error.by(&self.name))?;
        Ok(if stops { ControlFlow::Break(self.name.clone()) } else { CONTINUE })
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// An async closure that observes a list.
pub(crate) struct Observer<F> {
    pub(crate) name: String,
    pub(crate) hook: F,
}

impl<T, F> Filter<Vec<T>> for Observer<F>
where
    T: Send + Sync,
    F: for<'a> Fn(&'a [T], &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
{
    async fn filter(&self, list: &mut Vec<T>, ctx: &RunContext) -> Result<ControlFlow<String>> {
        (self.hook)(list, ctx).await.map(|()| CONTINUE).map_err(|error| error.by(&self.name))
    }

    fn name(&self) -> &str {
        &self.name
    }
}

macro_rules! debug_by_name {
    ($($hook:ident)*) => {
        $(impl<F> fmt::Debug for $hook<F> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.name)
            }
        })*
    };
}

debug_by_name! { SyncHook AsyncHook Contribution Resolver StopCheck Observer }
