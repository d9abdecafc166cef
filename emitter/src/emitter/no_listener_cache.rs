//! What an emitter outside of runs remembers of having found nobody who listens (E15): the next look does not go up the
//! tree again.
//!
//! 1. Whoever listens, or lays a pipe, can be found before it is counted, and is counted before that call returns. Those in
//!    runs are counted apart, and seen by runs that are nested deep: the others would see all of them, and are walked.
//! 2. The count is read before anybody is looked for. As long as it stands, nobody has come.
//! 3. Who goes is not counted: to be taken for heard costs a look, no more.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many have begun to listen outside of runs, in all trees of the process; from 1.
static LISTENER_EPOCH: OwnCacheLine = OwnCacheLine(AtomicU64::new(1));

/// How many have begun to listen in runs, in all trees of the process.
static RUN_LISTENER_EPOCH: OwnCacheLine = OwnCacheLine(AtomicU64::new(0));

/// On cache lines of its own: all runs read it, and what is written beside it would be fetched again for nothing.
#[repr(align(128))]
struct OwnCacheLine(AtomicU64);

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

impl NoListenerCache {
    /// Whether nobody listens here or above, on an emitter outside of runs; `look` is asked where that is not known.
    #[inline]
    pub(crate) fn holds_or(&self, look: impl FnOnce() -> bool) -> bool {
        let epoch = LISTENER_EPOCH.0.load(Ordering::Acquire);
        self.holds(epoch) || self.look(epoch, look)
    }

    #[cold]
    fn look(&self, epoch: u64, look: impl FnOnce() -> bool) -> bool {
        let has_no_listeners = look();
        if has_no_listeners {
            self.remember(epoch);
        }
        has_no_listeners
    }
}

#[cfg(test)]
mod tests {
    use super::{NoListenerCache, invalidate};
    use crate::Emitter;
    use crate::rt::RunLinks;

    /// Other tests of the process may invalidate it as well: then it looks once more.
    #[test]
    fn listeners_are_looked_for_again_only_after_one_was_added() {
        let (cache, mut looks) = (NoListenerCache::new(), 0);
        while looks < 3 && !cache.holds_or(|| false) {
            looks += 1;
        }
        assert_eq!(looks, 3, "somebody is looked for each time");
        let is_remembered =
            |cache: &NoListenerCache| (0..1000).any(|_| cache.holds_or(|| true) && cache.holds_or(|| false));
        assert!(is_remembered(&cache));
        invalidate();
        assert!(!cache.holds_or(|| false));
        assert!(is_remembered(&cache));
    }

    #[test]
    fn a_listener_of_a_run_invalidates_no_cache_outside_of_runs() {
        let run = Emitter::new().for_run(RunLinks::new());
        let is_kept = |_| {
            let cache = NoListenerCache::new();
            let listens = cache.holds_or(|| true) && run.on("x", |_: &mut u32, _| ()).is_ok();
            listens && cache.holds_or(|| false)
        };
        assert!((0..1000).any(is_kept));
    }
}
