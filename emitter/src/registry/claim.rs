//! Limits how often a listener runs (E8), and ends its calls (E9).
//!
//! 1. `left` is `UNLIMITED`, or the number of calls left. At 0, no call is left, and the value never changes again.
//! 2. A call is claimed before it is made, and no more claims succeed than were allowed.
//! 3. After `end` has returned, no claim succeeds.

use crate::sync::{AtomicUsize, Ordering};

const UNLIMITED: usize = usize::MAX;

/// The calls that a listener has left.
#[derive(Debug)]
pub(crate) struct Claims {
    left: AtomicUsize,
}

impl Claims {
    pub(crate) fn unlimited() -> Self {
        Self { left: AtomicUsize::new(UNLIMITED) }
    }

    pub(crate) fn times(n: usize) -> Self {
        Self { left: AtomicUsize::new(n.min(UNLIMITED - 1)) }
    }

    /// Claims one call. Returns `false` if no call is left.
    #[inline]
    pub(crate) fn claim(&self) -> bool {
        self.claim_unlimited() || self.claim_limited()
    }

    /// Claims one call if the listener has no limit. This costs one load, and there is nothing to do after the call.
    #[inline]
    pub(crate) fn claim_unlimited(&self) -> bool {
        self.left.load(Ordering::Acquire) == UNLIMITED
    }

    #[cold]
    fn claim_limited(&self) -> bool {
        // One step reads and decrements: of two threads that claim the last call, one fails (invariant 2).
        self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left: usize| left.checked_sub(1)).is_ok()
    }

    /// Makes all further claims fail. Returns `true` if calls were left.
    pub(crate) fn end(&self) -> bool {
        // If several threads call `end` concurrently, only one of them finds calls left and returns `true`.
        self.left.swap(0, Ordering::AcqRel) != 0
    }

    /// Returns `true` if no call is left.
    pub(crate) fn is_spent(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }
}
