//! Remembers that an emitter and all emitters above it have no listeners (E15). Later checks then need not walk up the
//! tree.
//!
//! 1. A call that adds a listener or pipe first stores it where a search finds it, and then increases an epoch.
//!    Listeners in runs have a separate epoch, because they do not affect emitters outside runs.
//! 2. The epoch is read before the search for listeners. If the epoch is unchanged later, no registration has completed
//!    since.
//! 3. Removing a listener does not change the epoch. At worst, a check walks up the tree and finds nothing.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the listeners and pipes added outside runs, in all trees of the process. Starts at 1, so that 0 means that
/// nothing is remembered.
static LISTENER_EPOCH: OwnCacheLine = OwnCacheLine(AtomicU64::new(1));

/// Counts the listeners and pipes added in runs, in all trees of the process.
static RUN_LISTENER_EPOCH: OwnCacheLine = OwnCacheLine(AtomicU64::new(0));

/// A counter that is alone on its cache lines. Every run reads the epochs, and a write to a neighboring value would
/// make each run fetch the line again.
#[repr(align(128))]
struct OwnCacheLine(AtomicU64);

/// Records that a listener or pipe was added outside runs.
pub(crate) fn invalidate() {
    LISTENER_EPOCH.0.fetch_add(1, Ordering::Release);
}

/// Records that a listener or pipe was added in a run.
pub(crate) fn invalidate_in_runs() {
    RUN_LISTENER_EPOCH.0.fetch_add(1, Ordering::Release);
}

/// Remembers that a run and all emitters above it have no listeners. A runtime with deeply nested runs uses this cache.
///
/// ```
/// use emitree_emitter::rt::NoListenerCache;
/// use emitree_emitter::Emitter;
///
/// let (emitter, cache) = (Emitter::new(), NoListenerCache::new());
/// let epoch = NoListenerCache::epoch();
/// assert!(!emitter.has_listeners());
/// cache.remember(epoch);
/// assert!(cache.holds(epoch));
/// ```
#[derive(Debug, Default)]
pub struct NoListenerCache(AtomicU64);

impl NoListenerCache {
    /// Creates an empty cache.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns a number that changes when a listener or a pipe is added to any emitter of the process. Read it before
    /// you look for listeners.
    #[must_use]
    pub fn epoch() -> u64 {
        // Both counters only grow, so the sum is unchanged only if both counters are unchanged.
        LISTENER_EPOCH.0.load(Ordering::Acquire) + RUN_LISTENER_EPOCH.0.load(Ordering::Acquire)
    }

    /// Returns `true` if [`remember`](Self::remember) was last called with this epoch.
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
    /// Returns `true` if an emitter outside runs has no listeners. Calls `look` if the cache is out of date.
    #[inline]
    pub(crate) fn holds_or(&self, look: impl FnOnce() -> bool) -> bool {
        // Read the epoch before calling `look`, so that a listener that is added meanwhile changes the epoch
        // (invariant 2).
        let epoch = LISTENER_EPOCH.0.load(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == epoch || self.look(epoch, look)
    }

    #[cold]
    fn look(&self, epoch: u64, look: impl FnOnce() -> bool) -> bool {
        let has_no_listeners = look();
        if has_no_listeners {
            self.0.store(epoch, Ordering::Relaxed);
        }
        has_no_listeners
    }
}

#[cfg(test)]
mod tests {
    use super::{NoListenerCache, invalidate};
    use crate::Emitter;
    use crate::rt::RunLinks;

    /// Other tests of the process may also invalidate the cache, which then calls `look` again.
    #[test]
    fn the_absence_of_listeners_is_cached_until_the_cache_is_invalidated() {
        let cache = NoListenerCache::new();
        let mut looks = 0;
        while looks < 3 && !cache.holds_or(|| false) {
            looks += 1;
        }
        assert_eq!(looks, 3, "the walk is repeated each time");
        let is_remembered =
            |cache: &NoListenerCache| (0..1000).any(|_| cache.holds_or(|| true) && cache.holds_or(|| false));
        assert!(is_remembered(&cache));
        invalidate();
        assert!(!cache.holds_or(|| false));
        assert!(is_remembered(&cache));
    }

    #[test]
    fn a_listener_of_a_run_does_not_invalidate_caches_outside_runs() {
        let run = Emitter::new().for_run(RunLinks::new());
        let is_kept = |_| {
            let cache = NoListenerCache::new();
            let listens = cache.holds_or(|| true) && run.on("x", |_: &mut u32, _| ()).is_ok();
            listens && cache.holds_or(|| false)
        };
        assert!((0..1000).any(is_kept));
    }
}
