//! Counting the runs below one that limits are bound to.
//!
//! 1. What counts stands in the context of the run that the limits are bound to, and knows the nearest one above.
//! 2. A run is counted in all or in none: nothing is counted before all have said yes, and none is unlocked before that.
//! 3. Locks are taken from below upwards, and then those of groups, which runs anywhere may share, by where they are in
//!    memory. No user code runs meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_runtime::{Result, RunContext};
use parking_lot::Mutex;

use super::count::Counts;
use super::{Limit, LimitsState, OnLimit, Reached, Scope};
use crate::shared::at_start::{Refusal, at_start};
use crate::shared::stop::Stop;

/// Limits as they are bound to a run.
pub(super) struct RunCounter {
    pub(super) limits: Arc<LimitsState>,
    pub(super) stop: Arc<Stop>,
    above: Option<Arc<Self>>,
    depth: usize,
    counts: Mutex<Counts>,
    /// Whether none above is of the same limits, which counts these runs in their groups already.
    counts_groups: bool,
    /// Whether any are bound to runs below: before, this is the nearest to all of them, and they need not be asked.
    encloses: AtomicBool,
}

/// The one that is nearest to a run, in the run's context.
struct NearestCounter(Arc<RunCounter>);

impl RunCounter {
    pub(super) fn begin(limits: &Arc<LimitsState>, ctx: &RunContext) -> Arc<Self> {
        let above = Self::of(ctx);
        let is_same = |counting: &&Arc<Self>| Arc::ptr_eq(&counting.limits, limits);
        let counts_groups = !above.iter().flat_map(|above| above.upwards()).any(|counting| is_same(&counting));
        let (limits, stop, counts, depth) = (Arc::clone(limits), Arc::default(), Mutex::default(), ctx.depth());
        above.iter().for_each(|above| above.encloses.store(true, Ordering::Release));
        let encloses = AtomicBool::new(false);
        let counting = Arc::new(Self { limits, stop, above, depth, counts, counts_groups, encloses });
        ctx.set_extension(NearestCounter(Arc::clone(&counting)));
        counting
    }

    /// Whether it counts a run for all above. What the run has itself is for the runs below it.
    pub(super) fn is_nearest(self: &Arc<Self>, run: &RunContext) -> bool {
        let is_own = |nearest: Arc<Self>| Arc::ptr_eq(&nearest, self);
        !self.encloses.load(Ordering::Acquire) || run.parent().and_then(Self::of).is_some_and(is_own)
    }

    fn of(ctx: &RunContext) -> Option<Arc<Self>> {
        ctx.extension::<NearestCounter>().map(|nearest| Arc::clone(&nearest.0))
    }

    /// This one, and those above.
    fn upwards(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        std::iter::successors(Some(self), |counting| counting.above.as_ref())
    }

    /// Counts a run here and above, or nowhere: then it says who refuses it, and why.
    pub(super) fn count(self: &Arc<Self>, run: &RunContext) -> Option<(Arc<Self>, Reached)> {
        let kind = run.kind();
        self.count_with(&CountedRun { depth: run.depth(), kind }, &|| self.count_in_groups(run, kind))
    }

    fn count_with(self: &Arc<Self>, run: &CountedRun<'_>, last: CountOutermost<'_>) -> Option<(Arc<Self>, Reached)> {
        let most = &self.limits.options.run;
        let mut counts = self.counts.lock();
        if let Some(reached) = self.too_deep(run).or_else(|| most.reached(run.kind, &counts, Scope::Run)) {
            return Some((Arc::clone(self), reached));
        }
        let refused = match &self.above {
            Some(above) => above.count_with(run, last),
            None => last(),
        };
        if refused.is_none() {
            most.count(run.kind, &mut counts);
        }
        refused
    }

    fn too_deep(&self, run: &CountedRun<'_>) -> Option<Reached> {
        let is_deeper = |most: &usize| run.depth.saturating_sub(self.depth) > *most;
        let most = self.limits.options.depth.filter(is_deeper)?;
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        Some(Reached { limit: Limit::Depth, scope: Scope::Run, most, kind: run.kind.to_owned() })
    }

    fn count_in_groups(self: &Arc<Self>, run: &RunContext, kind: &str) -> Option<(Arc<Self>, Reached)> {
        let counts = |(_, counting): &(usize, &Arc<Self>)| counting.counts_groups && counting.limits.has_groups();
        let mut all: Vec<_> = self.upwards().enumerate().filter(counts).collect();
        if all.is_empty() {
            return None;
        }
        let group_id = run.emitter().group_id()?;
        all.sort_unstable_by_key(|(_, counting)| Arc::as_ptr(&counting.limits));
        let mut locked: Vec<_> = all.iter().map(|(_, counting)| counting.limits.groups.lock()).collect();
        let counts = locked.iter_mut().map(|groups| groups.entry(group_id.into()).or_default());
        let mut counts: Vec<_> = all.iter().zip(counts).collect();
        // The nearest is asked first again.
        counts.sort_unstable_by_key(|((at, _), _)| *at);
        let refused = counts.iter().find_map(|((_, counting), counts)| {
            let reached = counting.limits.options.group.reached(kind, counts, Scope::Group)?;
            Some((Arc::clone(counting), reached))
        });
        if refused.is_none() {
            counts.iter_mut().for_each(|((_, counting), counts)| counting.limits.options.group.count(kind, counts));
        }
        refused
    }

    /// The run that would be one too many ends with its start.
    pub(super) fn refuse(&self, reached: Reached, run: &RunContext) -> Result<()> {
        let on_limit = self.limits.options.on_limit;
        let error = on_limit.error(&reached);
        let stops = (on_limit == OnLimit::End).then(|| (Arc::clone(&self.stop), error.clone()));
        at_start(run, &self.limits.own_events, reached, Some(Refusal { error, stops }))
    }
}

/// What is counted of a run.
struct CountedRun<'a> {
    depth: usize,
    kind: &'a str,
}

/// What is asked last, with all counts locked.
type CountOutermost<'a> = &'a dyn Fn() -> Option<(Arc<RunCounter>, Reached)>;
