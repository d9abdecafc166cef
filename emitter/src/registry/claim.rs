//! How often a listener may still run (E8), and that it never runs again (E9).
//!
//! 1. `left` is `UNLIMITED`, `COUNTED`, which is no limit either, or how many calls are left; 0 is the end and is never left.
//! 2. A call is claimed before it is made: at most as many claims succeed as were allowed.
//! 3. Once `end` has returned, no claim succeeds.

use crate::sync::{AtomicUsize, Ordering};

const UNLIMITED: usize = usize::MAX;
/// No limit, but there is something to see to at each call: it is not claimed on the short way.
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

    /// Without limit, for a listener whose calls are counted.
    pub(crate) fn counted() -> Self {
        Self { left: AtomicUsize::new(COUNTED) }
    }

    pub(crate) fn times(n: usize) -> Self {
        Self { left: AtomicUsize::new(n.min(COUNTED - 1)) }
    }

    /// Claims one call.
    #[inline]
    pub(crate) fn claim(&self) -> bool {
        self.claim_unlimited() || self.claim_limited()
    }

    /// Claims one call of a listener that may be called without limit: one load, and nothing to see to afterwards.
    #[inline]
    pub(crate) fn claim_unlimited(&self) -> bool {
        self.left.load(Ordering::Acquire) == UNLIMITED
    }

    #[cold]
    fn claim_limited(&self) -> bool {
        let one_less = |left| match left {
            0 => None,
            UNLIMITED | COUNTED => Some(left),
            left => Some(left - 1),
        };
        self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok()
    }

    /// Leaves nothing to claim; tells whether this was what ended it.
    pub(crate) fn end(&self) -> bool {
        self.left.swap(0, Ordering::AcqRel) != 0
    }

    /// Tells whether nothing is left.
    pub(crate) fn is_spent(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// The same number of calls, to be claimed separately (E16).
    pub(crate) fn fork(&self) -> Self {
        Self { left: AtomicUsize::new(self.left.load(Ordering::Acquire)) }
    }
}
