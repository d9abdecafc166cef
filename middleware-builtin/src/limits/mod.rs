//! How many runs may be started, and how deep: [`Limits`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use emitree_runtime::{
    AnyRun, Error, Layer, LayerInfo, Middleware, Next, Op, Phase, Result, RunContext, Stack, Summary,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::shared::built_in::{built_in, debug_as};
use crate::shared::own_events::{OwnEvents, own_events};
use crate::shared::stop::Stop;
use count::{Counts, MaxRuns};
use run_counter::RunCounter;

mod count;
mod run_counter;

/// Limits how many runs are started below a run or in a group, of all kinds or of one, and how deep.
///
/// Bound to a run, it counts the runs below that one, however deep, and not the run itself; each run that it is bound to
/// counts for itself. It works on runs of any type and looks at no value. A run is counted when it begins, once however
/// often it is attempted. Where limits are bound within limits, it is counted in all of them or, if one of them refuses it,
/// in none; of several that would, the nearest to it does, and what is counted below a run comes before groups.
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
/// assert_eq!(error.to_string(), "no more than 2 runs below the run that sets the limit");
/// # Ok(())
/// # }
/// ```
///
/// # Options
///
/// Nothing is limited by default; `0` allows none.
///
/// | | counted |
/// |---|---|
/// | [`runs`](LimitsBuilder::runs), [`of_kind`](LimitsBuilder::of_kind) | below the run it is bound to |
/// | [`group_runs`](LimitsBuilder::group_runs), [`group_of_kind`](LimitsBuilder::group_of_kind) | below all runs of a group that the same limits are bound to; runs without a group are not |
/// | [`depth`](LimitsBuilder::depth) | how many levels below the run it is bound to: 1 is what that one starts itself |
///
/// # When a limit is reached
///
/// The run that would be one too many starts, and ends before anything of it begins: before other listeners of its
/// `start`, input middlewares and layers. [`OnLimit`] says how: it is denied, which is the default, or fails, or the run
/// that the limits are bound to ends with it, halted, whatever its work makes of the error.
///
/// # Its own events
///
/// `middleware.limits.reached`, a [`Reached`], at the start of a run that is one too many.
///
/// # What it remembers
///
/// Counts below a run live as long as that run. Counts of groups are kept by the limits and their clones until
/// [`forget_group`](Self::forget_group).
#[derive(Clone)]
pub struct Limits(Arc<LimitsState>);

struct LimitsState {
    options: LimitsOptions,
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

/// What happens when a limit is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnLimit {
    /// The run that is one too many is denied; whoever started it may go on without.
    #[default]
    Deny,
    /// It fails, as work does: whatever catches or retries failures does so.
    Fail,
    /// It is halted, and so is the run that the limits are bound to.
    End,
}

/// Which limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// The number of runs.
    Runs,
    /// The number of runs of a kind.
    Kind,
    /// How deep runs are nested.
    Depth,
}

/// What is counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Scope {
    /// What is below a run.
    Run,
    /// What is below the runs of a group.
    Group,
}

/// A limit is reached: one run more would be too many. As an event, and as the cause of what fails by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reached {
    /// Which limit it is.
    pub limit: Limit,
    /// What is counted together.
    pub scope: Scope,
    /// The limit.
    pub most: u64,
    /// The kind of the run that is one too many.
    pub kind: String,
}

own_events! { Reached = "reached"; }

impl std::error::Error for Reached {}

impl Limits {
    /// Limits nothing yet.
    pub fn builder() -> LimitsBuilder {
        LimitsBuilder(LimitsOptions::default())
    }

    /// Forgets what was counted of a group.
    pub fn forget_group(&self, group_id: &str) {
        self.0.groups.lock().remove(group_id);
    }
}

/// Options of [`Limits`]. Made by [`Limits::builder`].
#[must_use = "nothing is limited until it is built"]
pub struct LimitsBuilder(LimitsOptions);

impl LimitsBuilder {
    /// So many runs below the run.
    pub fn runs(mut self, most: u64) -> Self {
        self.0.run.set_all(most);
        self
    }

    /// So many runs of a kind below the run.
    pub fn of_kind(mut self, kind: impl Into<Cow<'static, str>>, most: u64) -> Self {
        self.0.run.set_kind(kind.into(), most);
        self
    }

    /// So many runs below all runs of a group.
    pub fn group_runs(mut self, most: u64) -> Self {
        self.0.group.set_all(most);
        self
    }

    /// So many runs of a kind below all runs of a group.
    pub fn group_of_kind(mut self, kind: impl Into<Cow<'static, str>>, most: u64) -> Self {
        self.0.group.set_kind(kind.into(), most);
        self
    }

    /// So many levels below the run.
    pub fn depth(mut self, most: usize) -> Self {
        self.0.depth = Some(most);
        self
    }

    /// What happens when a limit is reached: by default [`OnLimit::Deny`].
    pub fn on_limit(mut self, on_limit: OnLimit) -> Self {
        self.0.on_limit = on_limit;
        self
    }

    /// Builds the [`Limits`].
    #[must_use]
    pub fn build(self) -> Limits {
        Limits(Arc::new(LimitsState {
            options: self.0,
            groups: Mutex::default(),
            own_events: OwnEvents::new("middleware.limits"),
        }))
    }
}

debug_as!(LimitsBuilder, |this| this.0);

built_in!(Limits, |this| this.0.own_events);

impl Middleware for Limits {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let counting = RunCounter::begin(&self.0, ctx);
        if self.0.options.on_limit == OnLimit::End {
            ends(&counting.stop).bind(ctx)?;
        }
        ctx.bind_nested(CountRun(counting));
        Ok(())
    }

    fn name(&self) -> &str {
        "limits"
    }

    fn layers(&self) -> Vec<LayerInfo> {
        if self.0.options.on_limit == OnLimit::End { ends(&Arc::default()).layers() } else { Vec::new() }
    }
}

fn ends(stop: &Arc<Stop>) -> Stack<AnyRun> {
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

/// Counts a run below.
struct CountRun(Arc<RunCounter>);

impl Middleware for CountRun {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        // A nearer one asks this too.
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
        error.context("limit", reached.limit.as_str()).context("most", reached.most)
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

/// Ends the work when a limit is reached below.
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
