//! Counts the runs below a run that limits are bound to.
//!
//! 1. A `RunCounter` is an extension of the run that its limits are bound to, and links to the nearest counter above.
//! 2. A run is counted by all counters or by none: no count changes before every counter has accepted the run, and all
//!    locks are held until then.
//! 3. Locks are taken from the nearest counter upwards. Then the locks of the groups are taken in the order of their
//!    addresses, because unrelated runs may share groups. No user code runs under a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_runtime::{Result, RunContext};
use parking_lot::Mutex;

use super::count::Counts;
use super::{Limit, LimitsState, OnLimit, Reached, Scope};
use crate::shared::at_start::{Refusal, at_start};
use crate::shared::stop::Stop;

/// The limits that are bound to one run, with their counts.
pub(super) struct RunCounter {
    pub(super) limits: Arc<LimitsState>,
    pub(super) stop: Arc<Stop>,
    above: Option<Arc<Self>>,
    depth: usize,
    counts: Mutex<Counts>,
    /// `true` if this counter counts groups. If the same limits are also bound further up, the counter there already
    /// counts the runs below in their groups.
    counts_groups: bool,
    /// `true` if limits are also bound further down. While this is `false`, this counter is the nearest counter of all
    /// runs below, so no lookup is needed.
    encloses: AtomicBool,
}

/// The extension of a run by which the runs below it find their nearest counter.
struct NearestCounter(Arc<RunCounter>);

impl RunCounter {
    pub(super) fn begin(limits: &Arc<LimitsState>, ctx: &RunContext) -> Arc<Self> {
        let above = Self::of(ctx);
        let is_same = |counter: &&Arc<Self>| Arc::ptr_eq(&counter.limits, limits);
        let counts_groups = !above.iter().flat_map(|above| above.upwards()).any(|counter| is_same(&counter));
        let limits = Arc::clone(limits);
        let stop = Arc::default();
        let counts = Mutex::default();
        let depth = ctx.depth();
        // Set `encloses` before this counter is visible: from now on, the counter above is not the nearest counter of
        // every run.
        above.iter().for_each(|above| above.encloses.store(true, Ordering::Release));
        let encloses = AtomicBool::new(false);
        let counter = Arc::new(Self { limits, stop, above, depth, counts, counts_groups, encloses });
        ctx.set_extension(NearestCounter(Arc::clone(&counter)));
        counter
    }

    /// Returns `true` if this counter is the nearest counter above a run. If limits are bound to the run itself, their
    /// counter counts only the runs below it.
    pub(super) fn is_nearest(self: &Arc<Self>, run: &RunContext) -> bool {
        let is_own = |nearest: Arc<Self>| Arc::ptr_eq(&nearest, self);
        !self.encloses.load(Ordering::Acquire) || run.parent().and_then(Self::of).is_some_and(is_own)
    }

    fn of(ctx: &RunContext) -> Option<Arc<Self>> {
        ctx.extension::<NearestCounter>().map(|nearest| Arc::clone(&nearest.0))
    }

    /// Returns this counter and the counters above it.
    fn upwards(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        std::iter::successors(Some(self), |counter| counter.above.as_ref())
    }

    /// Counts a run here and in all counters above. If a counter refuses the run, no counter counts it, and the
    /// refusing counter is returned with the limit.
    pub(super) fn count(self: &Arc<Self>, run: &RunContext) -> Option<(Arc<Self>, Reached)> {
        let kind = run.kind();
        self.count_with(&CountedRun { depth: run.depth(), kind }, &|| self.count_in_groups(run, kind))
    }

    fn count_with(self: &Arc<Self>, run: &CountedRun<'_>, last: CountOutermost<'_>) -> Option<(Arc<Self>, Reached)> {
        let most = &self.limits.options.run;
        // Keep this lock until the counters above have accepted the run, so that no other run takes the last place
        // meanwhile (2).
        let mut counts = self.counts.lock();
        if let Some(reached) = self.too_deep(run).or_else(|| most.reached(run.kind, &counts, Scope::Run)) {
            return Some((Arc::clone(self), reached));
        }
        // The recursion locks the nearest counter first (3). The outermost counter checks the groups last.
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
        let counts = |(_, counter): &(usize, &Arc<Self>)| counter.counts_groups && counter.limits.has_groups();
        let mut all: Vec<_> = self.upwards().enumerate().filter(counts).collect();
        if all.is_empty() {
            return None;
        }
        let group_id = run.emitter().group_id()?;
        // Every run locks the groups in the same order, wherever it is in the tree, so two runs never deadlock.
        all.sort_unstable_by_key(|(_, counter)| Arc::as_ptr(&counter.limits));
        let mut locked: Vec<_> = all.iter().map(|(_, counter)| counter.limits.groups.lock()).collect();
        let counts = locked.iter_mut().map(|groups| groups.entry(group_id.into()).or_default());
        let mut counts: Vec<_> = all.iter().zip(counts).collect();
        // Restore the order from the nearest counter upwards, so that the nearest limits are checked first.
        counts.sort_unstable_by_key(|((at, _), _)| *at);
        let refused = counts.iter().find_map(|((_, counter), counts)| {
            let reached = counter.limits.options.group.reached(kind, counts, Scope::Group)?;
            Some((Arc::clone(counter), reached))
        });
        if refused.is_none() {
            counts.iter_mut().for_each(|((_, counter), counts)| counter.limits.options.group.count(kind, counts));
        }
        refused
    }

    /// Ends a refused run at its `start`.
    pub(super) fn refuse(&self, reached: Reached, run: &RunContext) -> Result<()> {
        let on_limit = self.limits.options.on_limit;
        let error = on_limit.error(&reached);
        let stops = (on_limit == OnLimit::End).then(|| (Arc::clone(&self.stop), error.clone()));
        at_start(run, &self.limits.own_events, reached, Some(Refusal { error, stops }))
    }
}

/// The properties of a run that is counted.
struct CountedRun<'a> {
    depth: usize,
    kind: &'a str,
}

/// Checks and counts groups. Called last, while the counts of all counters are locked.
type CountOutermost<'a> = &'a dyn Fn() -> Option<(Arc<RunCounter>, Reached)>;
