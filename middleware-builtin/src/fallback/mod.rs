//! Alternatives that answer when a run fails: [`Fallback`].

mod alternative;
mod layer;

use std::fmt;
use std::sync::Arc;

use emitree_emitter::{Emitter, Namespace};
use emitree_runtime::{
    AnyRunnable, Description, Error, ErrorKind, IntoShared, JsonRun, Middleware, Op, Result, RunContext, Runnable,
    Stack,
};
use serde::{Deserialize, Serialize};

use crate::shared::own_events::{OwnEvents, UserTexts, own_events};
use alternative::{Alternative, OfTypes};
use layer::FallbackLayer;

/// A middleware that answers with the output of an alternative when a run fails. The alternatives are tried in order.
///
/// The alternatives run nested in the failed run. Each alternative receives the input that the fallback's layer
/// received. The first output is the result. If all alternatives fail, the result is the error of the last alternative,
/// with the earlier failures in its detail `after`. If an alternative ends in a way that is not [caught](Self::on), the
/// remaining alternatives are not tried.
///
/// - [`to`](Self::to) takes runnables of the same types as the runs that the fallback is bound to. A run of other types
///   fails with an error that names the types.
/// - [`any`](Self::any) passes values as JSON, and can be bound to runs of any type. If a value does not fit its type,
///   the run fails with an error that locates the mismatch.
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
/// # Order
///
/// The layer belongs to [`Phase::Retry`](emitree_runtime::Phase::Retry). If the fallback is bound before a `Retry`, the
/// alternatives run after the last attempt; if it is bound after the `Retry`, they run in each attempt.
///
/// With [`for_tree`](emitree_runtime::for_tree), the fallback is also bound to every run below, except to the runs of
/// the alternatives and the runs below them: otherwise, the alternatives would fall back to themselves.
///
/// # Its own events
///
/// `middleware.fallback.answered`, a [`FellBack`], when an alternative has answered; `middleware.fallback.exhausted`,
/// an [`Exhausted`], when all alternatives have failed. If a failed attempt has emitted events, `attempt_discarded` is
/// emitted on the run before the next alternative starts, as with a `Retry`.
///
/// # Cancel safety
///
/// Dropping the run also drops the running alternative, which ends the alternative's run.
pub struct Fallback<K: Op> {
    alternatives: Vec<Arc<dyn Alternative<K::In, K::Out>>>,
    on: Vec<ErrorKind>,
    own_events: OwnEvents,
}

/// An invalid choice of error kinds for [`Fallback::on`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FallbackError {
    /// Errors of this kind cannot be caught.
    #[error(
        "a fallback cannot catch `{kind:?}`: list `Failed`, `Panicked`, `Invalid`, `TimedOut`, or `Denied` with a guard's name"
    )]
    Kind {
        /// The kind that was passed.
        kind: ErrorKind,
    },
    /// No kinds were passed, so the fallback would never answer.
    #[error("a fallback on `[]` never answers: list at least one kind of error, such as `Failed`")]
    NoKinds,
}

/// A runnable that has failed, and its error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Cause {
    /// The name of the runnable.
    pub by: String,
    /// The error's message.
    pub cause: String,
    /// The error's kind.
    pub kind: ErrorKind,
}

impl UserTexts for Cause {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        change(&mut self.cause);
    }
}

/// An alternative has answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FellBack {
    /// The name of the alternative.
    pub by: String,
    /// The runnables that failed before the alternative, in order.
    pub after: Vec<Cause>,
}

/// The run and all alternatives have failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Exhausted {
    /// All failures, in order.
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
    /// Creates a fallback to a runnable with the same input and output types as the run.
    pub fn to(runnable: impl IntoShared<Runnable = R>) -> Self {
        Self::of(Arc::new(OfTypes(runnable.into_shared())))
    }

    /// Adds an alternative, which is tried if the previous alternatives fail.
    #[must_use]
    pub fn or<A>(self, runnable: impl IntoShared<Runnable = A>) -> Self
    where
        A: Runnable<Input = R::Input, Output = R::Output> + 'static,
    {
        self.and(Arc::new(OfTypes(runnable.into_shared())))
    }
}

impl Fallback<JsonRun> {
    /// Creates a fallback to any runnable, for runs of any type.
    #[must_use]
    pub fn any(runnable: Arc<dyn AnyRunnable>) -> Self {
        Self::of(Arc::new(runnable))
    }

    /// Adds an alternative, which is tried if the previous alternatives fail.
    #[must_use]
    pub fn or_any(self, runnable: Arc<dyn AnyRunnable>) -> Self {
        self.and(Arc::new(runnable))
    }
}

impl<K: Op> Fallback<K> {
    fn of(first: Arc<dyn Alternative<K::In, K::Out>>) -> Self {
        let on = vec![ErrorKind::Failed, ErrorKind::Panicked, ErrorKind::TimedOut];
        Self { alternatives: vec![first], on, own_events: OwnEvents::new(Namespace::new("middleware.fallback")) }
    }

    fn and(mut self, next: Arc<dyn Alternative<K::In, K::Out>>) -> Self {
        self.alternatives.push(next);
        self
    }

    /// Sets the kinds of errors that are caught. Default: `Failed`, `Panicked` and `TimedOut`.
    ///
    /// A denial is caught only if it is listed with the name of its guard, such as `ErrorKind::Denied { by:
    /// "circuit_breaker".to_owned() }`.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no kinds, or if a kind cannot be caught: a halt, an abort, an interrupt, a drop or
    /// a request for a retry.
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

    /// Returns the emitter of the fallback's own events.
    #[must_use]
    pub const fn emitter(&self) -> &Emitter {
        self.own_events.emitter()
    }

    fn catches(&self, error: &Error) -> bool {
        self.on.contains(error.kind())
    }

    /// Returns `true` if a run belongs to an alternative, or is below such a run.
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

    fn describe(&self) -> Description<'_> {
        Description::of(self).with_layers(|| self.stack().layers())
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
