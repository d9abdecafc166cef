//! Limits how often a listener runs (E8), and ends its calls (E9).
//!
//! 1. `left` is `UNLIMITED`, `COUNTED` (also without a limit), or the number of calls left. At 0, no call is left,
//!    and the value never changes again.
//! 2. A call is claimed before it is made, and no more claims succeed than were allowed.
//! 3. After `end` has returned, no claim succeeds.

use crate::sync::{AtomicUsize, Ordering};

const UNLIMITED: usize = usize::MAX;
/// There is no limit, but each call is counted and must not take the short path of `claim_unlimited`.
const COUNTED: usize = UNLIMITED - 1;

/// The calls that a listener has left.
#[derive(Debug)]
pub(crate) struct Claims {
    left: AtomicUsize,
}

impl Claims {
    pub(crate) fn unlimited() -> Self {
        Self { left: AtomicUsize::new(UNLIMITED) }
    }

    /// Creates claims without a limit for a listener whose calls are counted.
    pub(crate) fn counted() -> Self {
        Self { left: AtomicUsize::new(COUNTED) }
    }

    pub(crate) fn times(n: usize) -> Self {
        Self { left: AtomicUsize::new(n.min(COUNTED - 1)) }
    }

    /// Claims one call. Returns `false` if no call is left.
    #[inline]
    pub(crate) fn claim(&self) -> bool {
        self.claim_unlimited() || self.claim_limited()
    }

    /// Claims one call if the listener has no limit and its calls are not counted. This costs one load, and there is
    /// nothing to do after the call.
    #[inline]
    pub(crate) fn claim_unlimited(&self) -> bool {
        self.left.load(Ordering::Acquire) == UNLIMITED
    }

    #[cold]
    fn claim_limited(&self) -> bool {
        // One step reads and decrements: of two threads that claim the last call, one fails (invariant 2).
        let one_less = |left| match left {
            0 => None,
            UNLIMITED | COUNTED => Some(left),
            left => Some(left - 1),
        };
        self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok()
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

    /// Returns separate claims for the number of calls that are left (E16).
    pub(crate) fn fork(&self) -> Self {
        Self { left: AtomicUsize::new(self.left.load(Ordering::Acquire)) }
    }
}
