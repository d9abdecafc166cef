//! What an emitter outside of runs remembers of having found nobody who listens (E15): the next look does not go up the
//! tree again.
//!
//! 1. Whoever listens outside of runs, or lays a pipe there, can be found before it is counted, and is counted before
//!    that call returns. What happens in runs is not counted: it would be seen by all, and they are walked.
//! 2. The count is read before anybody is looked for. As long as it stands, nobody has come.
//! 3. Who goes is not counted: to be taken for heard costs a look, no more.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many have begun to listen outside of runs, in all trees of the process; from 1.
static COMERS: Alone = Alone(AtomicU64::new(1));

/// On cache lines of its own: all runs read it, and what is written beside it would be fetched again for nothing.
#[repr(align(128))]
struct Alone(AtomicU64);

/// Somebody listens who did not before.
pub(crate) fn disturb() {
    COMERS.0.fetch_add(1, Ordering::Release);
}

/// The count at which nobody was found; 0 before.
#[derive(Default)]
pub(crate) struct Quiet(AtomicU64);

impl Quiet {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether nobody listens; `look` is asked where that is not known.
    #[inline]
    pub(crate) fn holds(&self, look: impl FnOnce() -> bool) -> bool {
        let comers = COMERS.0.load(Ordering::Acquire);
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
