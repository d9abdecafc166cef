//! Where one fails, the next one answers: [`Fallback`].

mod alternative;
mod layer;

use std::fmt;
use std::sync::Arc;

use emitree_emitter::Emitter;
use emitree_runtime::{
    AnyRunnable, Error, ErrorKind, IntoShared, JsonRun, LayerInfo, Middleware, Op, Result, RunContext, Runnable, Stack,
};
use serde::{Deserialize, Serialize};

use crate::shared::own_events::{OwnEvents, UserTexts, own_events};
use alternative::{Alternative, OfTypes};
use layer::FallbackLayer;

/// Answers by another runnable where a run fails, and by the next one where that fails too, in order.
///
/// Each is run in the run that failed, with the input that the layers outside of this one gave. What the caller gets is
/// the first output that there is. If all fail, it is the error of the last one, with those before it in its detail
/// `after`; so it is if one ends in a way that is not [fallen back on](Self::on).
///
/// - [`to`](Self::to) takes runnables of the same types as the runs that it is bound to; bound to a run of others, it
///   ends that with an error that names both.
/// - [`any`](Self::any) takes and gives JSON, and fits runs of any type. A value that does not fit is an error that says
///   where.
///
/// ```
/// use emitree_middleware::Fallback;
/// use emitree_runtime::{Error, RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let cached = runnable_fn("cached", |city: String, _: RunContext| async move { Ok(format!("{city}: 20° yesterday")) });
/// let weather = runnable_fn("weather", |_: String, _: RunContext| async { Err::<String, _>(Error::new("no connection")) })
///     .middleware(Fallback::to(cached));
///
/// assert_eq!(weather.run("Lima".to_owned()).await?, "Lima: 20° yesterday");
/// # Ok(())
/// # }
/// ```
///
/// It stands in [`Phase::Retry`](emitree_runtime::Phase::Retry): bound before a `Retry`, it answers after the last
/// attempt, bound after it, in each.
///
/// With [`for_tree`](emitree_runtime::for_tree) it is bound to every run below, but for the runs of those that it
/// falls back to, and what is below these: they would fall back to themselves.
///
/// # Its own events
///
/// `middleware.fallback.answered`, a [`FellBack`], when one of them has answered, and `exhausted`, an [`Exhausted`],
/// when all have failed. What a run has streamed before it failed is marked by `attempt_discarded` before the next one
/// starts, as by a `Retry`.
///
/// # Cancel safety
///
/// Dropping the run drops who is answering, and ends that run.
pub struct Fallback<K: Op> {
    alternatives: Vec<Arc<dyn Alternative<K::In, K::Out>>>,
    on: Vec<ErrorKind>,
    own_events: OwnEvents,
}

/// Why there is no such [`Fallback`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FallbackError {
    /// Nobody else may answer for that.
    #[error(
        "a fallback cannot answer for `{kind:?}`: give `Failed`, `Panicked`, `Invalid`, `TimedOut`, or `Denied` by a name"
    )]
    Kind {
        /// What was given.
        kind: ErrorKind,
    },
    /// It would never answer.
    #[error("a fallback on `[]` never answers: give at least one kind of error, such as `Failed`")]
    NoKinds,
}

/// One that has failed, and what with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Cause {
    /// What it is called.
    pub by: String,
    /// What it failed with.
    pub cause: String,
    /// What sort of end that was.
    pub kind: ErrorKind,
}

impl UserTexts for Cause {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        change(&mut self.cause);
    }
}

/// A fallback has answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FellBack {
    /// What it is called.
    pub by: String,
    /// Those that have failed before it, in order.
    pub after: Vec<Cause>,
}

/// All have failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Exhausted {
    /// All of them, in order.
    pub after: Vec<Cause>,
}

own_events! {
    FellBack = "answered" { after };
    Exhausted = "exhausted" { after };
}

impl<R: Runnable + 'static> Fallback<R>
where
    R::Input: Clone,
{
    /// Falls back to that.
    pub fn to(runnable: impl IntoShared<Runnable = R>) -> Self {
        Self::of(Arc::new(OfTypes(runnable.into_shared())))
    }

    /// And to that where it fails too.
    #[must_use]
    pub fn or<A>(self, runnable: impl IntoShared<Runnable = A>) -> Self
    where
        A: Runnable<Input = R::Input, Output = R::Output> + 'static,
    {
        self.and(Arc::new(OfTypes(runnable.into_shared())))
    }
}

impl Fallback<JsonRun> {
    /// Falls back to that, for runs of any type.
    #[must_use]
    pub fn any(runnable: Arc<dyn AnyRunnable>) -> Self {
        Self::of(Arc::new(runnable))
    }

    /// And to that where it fails too.
    #[must_use]
    pub fn or_any(self, runnable: Arc<dyn AnyRunnable>) -> Self {
        self.and(Arc::new(runnable))
    }
}

impl<K: Op> Fallback<K> {
    fn of(first: Arc<dyn Alternative<K::In, K::Out>>) -> Self {
        let on = vec![ErrorKind::Failed, ErrorKind::Panicked, ErrorKind::TimedOut];
        Self { alternatives: vec![first], on, own_events: OwnEvents::new("middleware.fallback") }
    }

    fn and(mut self, next: Arc<dyn Alternative<K::In, K::Out>>) -> Self {
        self.alternatives.push(next);
        self
    }

    /// On which kinds of errors it falls back. Default: `Failed`, `Panicked` and `TimedOut`.
    ///
    /// A denial it answers for only where it is named with who said no, such as
    /// `ErrorKind::Denied { by: "circuit_breaker".to_owned() }`.
    ///
    /// # Errors
    ///
    /// If there are none, or it is one that nobody may answer for: a halt, an abort, an interrupt, a drop, the request for
    /// a retry.
    pub fn on(mut self, kinds: impl IntoIterator<Item = ErrorKind>) -> Result<Self, FallbackError> {
        self.on = kinds.into_iter().collect();
        let may_catch = |kind: &ErrorKind| {
            !kind.is_control_flow() || matches!(kind, ErrorKind::TimedOut | ErrorKind::Denied { .. })
        };
        match self.on.iter().find(|kind| !may_catch(kind)) {
            Some(kind) => Err(FallbackError::Kind { kind: kind.clone() }),
            None if self.on.is_empty() => Err(FallbackError::NoKinds),
            None => Ok(self),
        }
    }

    /// The emitter of its own events.
    #[must_use]
    pub const fn emitter(&self) -> &Emitter {
        self.own_events.emitter()
    }

    fn catches(&self, error: &Error) -> bool {
        self.on.contains(error.kind())
    }

    /// Whether a run is one of those that it falls back to, or below one.
    fn is_behind(&self, ctx: &RunContext) -> bool {
        let mut runs = std::iter::successors(Some(ctx), |run| run.parent()).map(RunContext::instance);
        runs.any(|run| self.alternatives.iter().any(|alternative| alternative.emitter() == run.emitter()))
    }

    fn stack(&self) -> Stack<K> {
        Stack::builder().retry(FallbackLayer(self.clone())).build()
    }
}

impl<K: Op> Middleware for Fallback<K> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if self.is_behind(ctx) { Ok(()) } else { self.stack().bind(ctx) }
    }

    fn name(&self) -> &str {
        "fallback"
    }

    fn layers(&self) -> Vec<LayerInfo> {
        self.stack().layers()
    }
}

impl<K: Op> Clone for Fallback<K> {
    fn clone(&self) -> Self {
        Self { alternatives: self.alternatives.clone(), on: self.on.clone(), own_events: self.own_events.clone() }
    }
}

impl<K: Op> fmt::Debug for Fallback<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.alternatives.iter().map(|alternative| alternative.name()).collect();
        let kinds: Vec<_> = self.on.iter().map(|kind| format!("{kind:?}")).collect();
        write!(f, "to {}, on {}", names.join(", then "), kinds.join(", "))
    }
}
