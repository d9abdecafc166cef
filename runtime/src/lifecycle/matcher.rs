//! The instance of a run, and matchers of lifecycle events (R3).

use std::sync::Arc;

use emitree_emitter::{Emitter, EventMeta, IntoMatcher, Matcher, MatcherError, matcher_fn};
use uuid::Uuid;

use crate::{RunContext, Runnable, Stage};

/// The identity of the runnable that a run belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance(Emitter);

impl Instance {
    pub(crate) const fn new(emitter: Emitter) -> Self {
        Self(emitter)
    }

    /// Returns the instance's emitter.
    #[must_use]
    pub const fn emitter(&self) -> &Emitter {
        &self.0
    }
}

/// A value that identifies an instance: a [`Runnable`], a [`RunContext`] or an [`Instance`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be converted to an instance",
    label = "expected a `Runnable`, a `RunContext` or an `Instance`"
)]
pub trait AsInstance {
    /// Returns the emitter that identifies the instance.
    fn instance_emitter(&self) -> &Emitter;
}

impl<R: Runnable> AsInstance for R {
    fn instance_emitter(&self) -> &Emitter {
        self.emitter()
    }
}

impl<T: AsInstance + ?Sized> AsInstance for Arc<T> {
    fn instance_emitter(&self) -> &Emitter {
        (**self).instance_emitter()
    }
}

impl AsInstance for Instance {
    fn instance_emitter(&self) -> &Emitter {
        &self.0
    }
}

impl AsInstance for RunContext {
    fn instance_emitter(&self) -> &Emitter {
        self.instance_ref()
    }
}

/// A matcher of lifecycle events. Created by [`lifecycle_of`] and [`lifecycle`].
#[must_use = "a matcher does nothing until a listener is registered with it"]
#[derive(Clone, Debug)]
pub struct LifecycleOf {
    /// `None` matches the runs of every instance.
    instance: Option<Emitter>,
    only: Option<Vec<Stage>>,
    parent_run: Option<Uuid>,
    except: Vec<Emitter>,
    filters_types: bool,
}

/// Returns a matcher for the events `start`, `success`, `error` and `finish` of all runs of an instance.
///
/// By default nested events are not matched: on a run's own emitter, the matcher matches only the events of that run.
///
/// If the listener takes a payload type that differs from the event's, the run fails at `start` or `success`, no matter
/// on which emitter the listener is registered. The error names both types. At `error` and `finish`, and for observers,
/// the error is logged and counted instead. With [nested](emitree_emitter::Options::nested) events, or with
/// [`of_types`](LifecycleOf::of_types), events of other types are skipped.
///
/// ```
/// use emitree_emitter::Emitter;
/// use emitree_runtime::{RunContext, Runnable, Stage, Start, lifecycle_of, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// Emitter::root().on(lifecycle_of(&double).only([Stage::Start]), |start: &mut Start<u32, u32>, _| start.input += 1)?;
/// assert_eq!(double.run(1).await?, 4);
/// # Ok(())
/// # }
/// ```
pub fn lifecycle_of(instance: &(impl AsInstance + ?Sized)) -> LifecycleOf {
    let instance = instance.instance_emitter().clone();
    LifecycleOf { instance: Some(instance), ..lifecycle() }
}

/// Returns a matcher for the events `start`, `success`, `error` and `finish` of all runs of all instances.
///
/// If the listener takes a payload type that differs from the type of the emitter's own event, the run fails, as
/// described for [`Stage`]. Events that are not the emitter's own are skipped if their type differs.
///
/// ```
/// use emitree_emitter::{AnyEvent, Emitter};
/// use emitree_runtime::{RunContext, Runnable, Stage, lifecycle, runnable_fn};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let started = Arc::new(AtomicU32::new(0));
/// let count = Arc::clone(&started);
/// Emitter::root().observe(lifecycle().only([Stage::Start]), move |_: &dyn AnyEvent, _| {
///     count.fetch_add(1, Ordering::Relaxed);
/// })?;
/// runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) }).run(1).await?;
/// runnable_fn("greet", |name: String, _: RunContext| async move { Ok(format!("hello, {name}")) }).run("Ada".into()).await?;
/// assert_eq!(started.load(Ordering::Relaxed), 2);
/// # Ok(())
/// # }
/// ```
pub const fn lifecycle() -> LifecycleOf {
    LifecycleOf { instance: None, only: None, parent_run: None, except: Vec::new(), filters_types: false }
}

impl LifecycleOf {
    /// Matches only these stages.
    pub fn only(mut self, stages: impl IntoIterator<Item = Stage>) -> Self {
        self.only = Some(stages.into_iter().collect());
        self
    }

    /// Matches only runs whose parent is the run with this id.
    pub const fn parent_run(mut self, run_id: Uuid) -> Self {
        self.parent_run = Some(run_id);
        self
    }

    /// Excludes the runs of an instance.
    pub fn except(mut self, other: &(impl AsInstance + ?Sized)) -> Self {
        self.except.push(other.instance_emitter().clone());
        self
    }

    /// Skips events whose type differs from the listener's, instead of failing. Use it if runs of several types share an
    /// emitter.
    pub const fn of_types(mut self) -> Self {
        self.filters_types = true;
        self
    }

    fn matches(&self, meta: &EventMeta<'_>) -> bool {
        let Some(stage) = Stage::of(meta) else { return false };
        let run = meta.source();
        self.only.as_ref().is_none_or(|only| only.contains(&stage))
            && self.instance.as_ref().is_none_or(|instance| run.is_run_of(instance))
            && !self.except.iter().any(|other| run.is_run_of(other))
            && self.parent_run.is_none_or(|id| meta.trace().and_then(|trace| trace.parent_run_id) == Some(id))
    }
}

impl IntoMatcher for LifecycleOf {
    fn into_matcher(self) -> Result<Matcher, MatcherError> {
        // The names let the emitter skip this matcher for all other events without calling it.
        let filters_types = self.filters_types;
        let is_of_one = self.instance.is_some();
        let names = match &self.only {
            Some(only) => only.iter().map(|stage| stage.event_name()).collect(),
            None => Stage::ALL.map(Stage::event_name).to_vec(),
        };
        let matcher = matcher_fn(move |meta| self.matches(meta)).named(names);
        match (filters_types, is_of_one) {
            (true, _) => matcher.of_types(),
            // The runs of one instance are expected to have the same types, so a listener of another type is a mistake,
            // on any emitter (E7).
            (false, true) => matcher.of_one_source(),
            (false, false) => matcher,
        }
        .into_matcher()
    }
}
