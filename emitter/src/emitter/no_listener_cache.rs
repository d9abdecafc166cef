//! What an emitter outside of runs remembers of having found nobody who listens (E15): the next look does not go up the
//! tree again.
//!
//! 1. Whoever listens, or lays a pipe, can be found before it is counted, and is counted before that call returns. Those in
//!    runs are counted apart, and seen by runs that are nested deep: the others would see all of them, and are walked.
//! 2. The count is read before anybody is looked for. As long as it stands, nobody has come.
//! 3. Who goes is not counted: to be taken for heard costs a look, no more.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many have begun to listen outside of runs, in all trees of the process; from 1.
static LISTENER_EPOCH: Alone = Alone(AtomicU64::new(1));

/// How many have begun to listen in runs, in all trees of the process.
static RUN_LISTENER_EPOCH: Alone = Alone(AtomicU64::new(0));

/// On cache lines of its own: all runs read it, and what is written beside it would be fetched again for nothing.
#[repr(align(128))]
struct Alone(AtomicU64);

/// Somebody listens who did not before.
pub(crate) fn invalidate() {
    LISTENER_EPOCH.0.fetch_add(1, Ordering::Release);
}

/// Somebody listens in a run who did not before.
pub(crate) fn invalidate_in_runs() {
    RUN_LISTENER_EPOCH.0.fetch_add(1, Ordering::Release);
}

/// Remembers that a run has no listeners, in itself and in all that is above it. For a runtime whose runs are nested deep.
///
/// ```
/// use emitree_emitter::rt::NoListenerCache;
/// use emitree_emitter::Emitter;
///
/// let (emitter, cache) = (Emitter::new(), NoListenerCache::new());
/// let epoch = NoListenerCache::epoch();
/// assert!(!emitter.is_heard());
/// cache.remember(epoch);
/// assert!(cache.holds(epoch));
/// ```
#[derive(Debug, Default)]
pub struct NoListenerCache(AtomicU64);

impl NoListenerCache {
    /// Creates one that remembers nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns a number that changes when a listener or a pipe is added to any emitter of the process. Read it before you look
    /// for listeners.
    #[must_use]
    pub fn epoch() -> u64 {
        // Both only grow: their sum is the same only if both are.
        LISTENER_EPOCH.0.load(Ordering::Acquire) + RUN_LISTENER_EPOCH.0.load(Ordering::Acquire)
    }

    /// Returns `true` if no listeners were found at this epoch.
    #[must_use]
    pub fn holds(&self, epoch: u64) -> bool {
        self.0.load(Ordering::Relaxed) == epoch
    }

    /// Remembers that no listeners were found at an epoch.
    pub fn remember(&self, epoch: u64) {
        self.0.store(epoch, Ordering::Relaxed);
    }
}

/// The count at which nobody was found; 0 before.
pub(crate) struct Quiet(AtomicU64);

impl Quiet {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether nobody listens; `look` is asked where that is not known.
    #[inline]
    pub(crate) fn holds(&self, look: impl FnOnce() -> bool) -> bool {
        let comers = LISTENER_EPOCH.0.load(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == comers || self.find(comers, look)
    }

    #[cold]
    fn find(&self, comers: u64, look: impl FnOnce() -> bool) -> bool {
        let is_quiet = look();
        if is_quiet {
            self.0.store(comers, Ordering::Relaxed);
        }
        is_quiet
    }
}

#[cfg(test)]
mod tests {
    use super::{Quiet, invalidate};
    use crate::Emitter;
    use crate::rt::RunLinks;

    /// Other tests of the process may invalidate it as well: then it looks once more.
    #[test]
    fn nobody_is_looked_for_again_before_somebody_has_come() {
        let (quiet, mut looks) = (Quiet::new(), 0);
        while looks < 3 && !quiet.holds(|| false) {
            looks += 1;
        }
        assert_eq!(looks, 3, "somebody is looked for each time");
        let is_remembered = |quiet: &Quiet| (0..1000).any(|_| quiet.holds(|| true) && quiet.holds(|| false));
        assert!(is_remembered(&quiet));
        invalidate();
        assert!(!quiet.holds(|| false));
        assert!(is_remembered(&quiet));
    }

    #[test]
    fn who_listens_in_a_run_disturbs_nobody_else() {
        let run = Emitter::new().for_run(RunLinks::new());
        let is_calm = |_| {
            let quiet = Quiet::new();
            let listens = quiet.holds(|| true) && run.on("x", |_: &mut u32, _| ()).is_ok();
            listens && quiet.holds(|| false)
        };
        assert!((0..1000).any(is_calm));
    }
}
