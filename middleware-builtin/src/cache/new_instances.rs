//! Runnables that are made anew for each call, so that the cache of each instance stays empty.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use emitree_emitter::Emitter;
use emitree_runtime::{AsInstance, RunContext};
use parking_lot::Mutex;

use crate::shared::own_events::run_label;

/// The number of instances of one name after which a warning is logged.
const MAX_INSTANCES: usize = 32;
/// The maximum number of names that are watched.
const MAX_NAMES: usize = 64;

/// The instances of each kind and name that had a miss, and no hit.
#[derive(Default)]
pub(super) struct NewInstances {
    names: Mutex<HashMap<String, Watched>>,
    /// The number of names with more than one instance. While this is 0, a hit takes no lock.
    suspects: AtomicUsize,
}

enum Watched {
    /// The instances are kept, so that no new instance gets the address of an earlier one.
    Instances(Vec<Emitter>),
    /// There was a hit, or a warning.
    Settled,
}

impl NewInstances {
    /// Counts the instance of a run that had a miss. Warns if it is one of many.
    pub(super) fn missed(&self, ctx: &RunContext) {
        let label = run_label(ctx);
        let mut names = self.names.lock();
        if names.len() >= MAX_NAMES && !names.contains_key(&label) {
            return;
        }
        let watched = names.entry(label.clone()).or_insert_with(|| Watched::Instances(Vec::new()));
        let Watched::Instances(instances) = watched else { return };
        if instances.contains(ctx.instance_emitter()) {
            return;
        }
        instances.push(ctx.instance_emitter().clone());
        let count = instances.len();
        if count == 2 {
            self.suspects.fetch_add(1, Ordering::Relaxed);
        }
        if count < MAX_INSTANCES {
            return;
        }
        let settled = self.settle(watched);
        // The instances are user code, and are dropped without the lock.
        drop(names);
        drop(settled);
        ctx.warn_once("cache.by_name", || {
            format!(
                "a cache has seen {count} instances of {label}, and none of them twice with one input, because each \
                 instance has its own entries: keep one instance, or write `Cache::json().by_name()` to share the \
                 entries of instances with the same kind and name"
            )
        });
    }

    /// Notes that an instance with the kind and name of the run had a hit.
    pub(super) fn hit(&self, ctx: &RunContext) {
        if self.suspects.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut names = self.names.lock();
        let settled = names.get_mut(&run_label(ctx)).map(|watched| self.settle(watched));
        drop(names);
        drop(settled);
    }

    fn settle(&self, watched: &mut Watched) -> Watched {
        let before = std::mem::replace(watched, Watched::Settled);
        if matches!(&before, Watched::Instances(instances) if instances.len() > 1) {
            self.suspects.fetch_sub(1, Ordering::Relaxed);
        }
        before
    }
}
