//! Limits on the number and the depth of runs: [`Limits`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use emitree_emitter::Namespace;
use emitree_runtime::{
    AnyRun, Description, Error, Layer, Middleware, Next, Op, Phase, Result, RunContext, Stack, Summary,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::shared::built_in::{built_in, debug_as};
use crate::shared::own_events::{OwnEvents, own_events};
use crate::shared::runs::Runs;
use crate::shared::selected_below::SelectedBelow;
use crate::shared::stop::Stop;
use count::{Counts, MaxRuns};
use run_counter::RunCounter;

mod count;
mod run_counter;

/// A middleware that limits how many runs are started below a run or in a group, and how deeply runs are nested. The
/// number of runs is limited in total, by kind, or both.
///
/// If limits are bound to a run, they count all runs below that run, at any depth, but not the run itself. Each run
/// that limits are bound to has its own counts. Limits accept runs of any type and read no values. A run is counted
/// once, when it begins, however often it is attempted.
///
/// If limits are bound below other limits, a run is counted by all of these limits. If any of them refuses the run,
/// none of them counts it. If several limits would refuse the run, the nearest limits refuse it; groups are checked
/// last.
///
/// ```
/// use std::sync::Arc;
/// use emitree_middleware::Limits;
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let double = Arc::new(runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) }));
/// let greedy = runnable_fn("greedy", move |times: u32, _: RunContext| {
///     let double = Arc::clone(&double);
///     async move {
///         let mut last = 0;
///         for n in 0..times {
///             last = double.run(n).await?;
///         }
///         Ok(last)
///     }
/// })
/// .middleware(Limits::builder().runs(2).depth(1).build());
///
/// assert_eq!(greedy.run(2).await?, 2);
/// let error = greedy.run(3).await.unwrap_err();
/// assert_eq!(error.to_string(), "at most 2 runs are allowed below the run that sets the limit");
/// # Ok(())
/// # }
/// ```
///
/// # Options
///
/// Without options, nothing is limited; a limit of `0` allows no run.
///
/// | | limits |
/// |---|---|
/// | [`runs`](LimitsBuilder::runs), [`of_kind`](LimitsBuilder::of_kind) | runs below the run that the limits are bound to |
/// | [`group_runs`](LimitsBuilder::group_runs), [`group_of_kind`](LimitsBuilder::group_of_kind) | runs of one group, below all runs that the same limits are bound to; runs without a group are not counted |
/// | [`depth`](LimitsBuilder::depth) | levels below the run that the limits are bound to: level 1 consists of the runs that this run starts itself |
///
/// # Order
///
/// A run that exceeds a limit ends in these steps:
///
/// 1. Its middlewares are bound, and the limit is checked.
/// 2. It starts. The first listener of `start` emits `middleware.limits.reached`, and ends the run.
/// 3. Its other listeners of `start`, its input middlewares, its layers and its work are not called.
///
/// [`OnLimit`] selects how the run ends. By default, the run is denied. With [`OnLimit::Fail`], it fails. With
/// [`OnLimit::End`], it is halted together with the run that the limits are bound to, even if the work of that outer
/// run handles the error.
///
/// # Its own events
///
/// `middleware.limits.reached`, a [`Reached`], at the start of a run that exceeds a limit.
///
/// # What it remembers
///
/// The counts of the runs below a run are dropped with that run. Counts of groups are kept by the limits and their
/// clones until [`forget_group`](Self::forget_group) is called.
#[derive(Clone)]
pub struct Limits(Arc<LimitsState>);

struct LimitsState {
    options: LimitsOptions,
    /// One for each kind that has a maximum: warns if the kind is misspelled (M12).
    kinds: Vec<SelectedBelow>,
    groups: Mutex<HashMap<Box<str>, Counts>>,
    own_events: OwnEvents,
}

#[derive(Clone, Default)]
struct LimitsOptions {
    run: MaxRuns,
    group: MaxRuns,
    depth: Option<usize>,
    on_limit: OnLimit,
}

/// The way in which a run that exceeds a limit ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnLimit {
    /// The run is denied; its caller may handle the denial and continue.
    #[default]
    Deny,
    /// The run fails with an ordinary error, which layers of the runs above may catch or retry.
    Fail,
    /// The run is halted together with the run that the limits are bound to.
    End,
}

/// The kind of limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// The number of runs.
    Runs,
    /// The number of runs of a kind.
    Kind,
    /// The depth of nested runs.
    Depth,
}

/// The runs that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Scope {
    /// The runs below the run that the limits are bound to.
    Run,
    /// The runs of a group.
    Group,
}

/// A limit is reached: one more run would exceed the limit. `Reached` is emitted as `middleware.limits.reached`. With
/// [`OnLimit::Fail`], it is also the cause of the error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reached {
    /// The kind of limit.
    pub limit: Limit,
    /// The runs that are counted together.
    pub scope: Scope,
    /// The maximum.
    pub most: u64,
    /// The kind of the run that was refused.
    pub kind: String,
}

own_events! { Reached = "reached"; }

impl std::error::Error for Reached {}

impl Limits {
    /// Returns a builder without limits.
    pub fn builder() -> LimitsBuilder {
        LimitsBuilder(LimitsOptions::default())
    }

    /// Resets the counts of a group.
    pub fn forget_group(&self, group_id: &str) {
        self.0.groups.lock().remove(group_id);
    }
}

/// Builds [`Limits`]. Returned by [`Limits::builder`].
#[must_use = "nothing is limited until it is built"]
pub struct LimitsBuilder(LimitsOptions);

impl LimitsBuilder {
    /// Limits the number of runs below the run that the limits are bound to.
    pub fn runs(mut self, most: u64) -> Self {
        self.0.run.set_all(most);
        self
    }

    /// Limits the number of runs of a kind below the run that the limits are bound to. A further call for the same kind
    /// replaces the limit.
    pub fn of_kind(mut self, kind: impl Into<Cow<'static, str>>, most: u64) -> Self {
        self.0.run.set_kind(kind.into(), most);
        self
    }

    /// Limits the number of runs in each group.
    pub fn group_runs(mut self, most: u64) -> Self {
        self.0.group.set_all(most);
        self
    }

    /// Limits the number of runs of a kind in each group. A further call for the same kind replaces the limit.
    pub fn group_of_kind(mut self, kind: impl Into<Cow<'static, str>>, most: u64) -> Self {
        self.0.group.set_kind(kind.into(), most);
        self
    }

    /// Limits how many levels of runs are nested below the run that the limits are bound to.
    pub fn depth(mut self, most: usize) -> Self {
        self.0.depth = Some(most);
        self
    }

    /// Sets how a run that exceeds a limit ends. Default: [`OnLimit::Deny`].
    pub fn on_limit(mut self, on_limit: OnLimit) -> Self {
        self.0.on_limit = on_limit;
        self
    }

    /// Builds the [`Limits`].
    #[must_use]
    pub fn build(self) -> Limits {
        let kinds = self.0.run.kinds().chain(self.0.group.kinds());
        let kinds = kinds.map(|kind| SelectedBelow::new("limits", Runs::of_kind(kind.clone()))).collect();
        Limits(Arc::new(LimitsState {
            options: self.0,
            kinds,
            groups: Mutex::default(),
            own_events: OwnEvents::new(Namespace::new("middleware.limits")),
        }))
    }
}

debug_as!(LimitsBuilder, |this| this.0);

built_in!(Limits, |this| this.0.own_events);

impl Middleware for Limits {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let counter = RunCounter::begin(&self.0, ctx);
        if self.0.options.on_limit == OnLimit::End {
            // Without the layer, nothing could end the work of the run that the limits are bound to. The other two
            // modes need no layer.
            stop_layer(&counter.stop).bind(ctx)?;
        }
        ctx.bind_nested(CountRun(counter));
        self.0.kinds.iter().try_for_each(|kind| kind.bind(ctx))
    }

    fn name(&self) -> &str {
        "limits"
    }

    fn describe(&self) -> Description<'_> {
        let description = Description::of(self);
        if self.0.options.on_limit != OnLimit::End {
            return description;
        }
        description.with_layers(|| stop_layer(&Arc::default()).layers())
    }
}

fn stop_layer(stop: &Arc<Stop>) -> Stack<AnyRun> {
    Stack::builder().layer_in(Phase::Observe, LimitsLayer(Arc::clone(stop))).build()
}

debug_as!(Limits, |this| this.0.options);

impl fmt::Debug for LimitsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let depth = self.depth.iter().map(|most| format!("depth {most}"));
        let counted = self.run.describe("").chain(self.group.describe(" in a group"));
        let all: Vec<_> = counted.chain(depth).collect();
        let end = match self.on_limit {
            OnLimit::Deny => "denies",
            OnLimit::Fail => "fails",
            OnLimit::End => "ends the run",
        };
        write!(f, "at most {}: {end}", all.join(", "))
    }
}

/// A middleware that counts the run to which it is bound.
struct CountRun(Arc<RunCounter>);

impl Middleware for CountRun {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        // Several limits may be bound above a run. Only the nearest counter acts here; it calls the counters above it,
        // so that each counter counts the run once.
        if !self.0.is_nearest(ctx) {
            return Ok(());
        }
        self.0.count(ctx).map_or(Ok(()), |(by, reached)| by.refuse(reached, ctx))
    }

    fn name(&self) -> &str {
        "limits"
    }
}

debug_as!(CountRun, |this| this.0.limits.options);

impl LimitsState {
    fn has_groups(&self) -> bool {
        !self.options.group.is_none()
    }
}

impl OnLimit {
    fn error(self, reached: &Reached) -> Error {
        let error = match self {
            Self::Deny => Error::denied("limits", reached.to_string()),
            Self::End => Error::halted("limits", reached.to_string()),
            Self::Fail => Error::from(reached.clone()),
        };
        error.detail("limit", reached.limit.as_str()).detail("most", reached.most)
    }
}

impl Limit {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::Kind => "kind",
            Self::Depth => "depth",
        }
    }
}

/// Halts the work when a run below reaches a limit.
#[derive(Debug)]
struct LimitsLayer(Arc<Stop>);

impl<O: Op> Layer<O> for LimitsLayer {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        self.0.unless(next.run(input)).await
    }

    fn name(&self) -> &str {
        "limits"
    }

    fn debug_summary(&self) -> Summary {
        "ends when a limit is reached".into()
    }
}
