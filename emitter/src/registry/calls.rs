//! Counts the calls of a listener that are under way, where somebody may wait for their end (E9).
//!
//! 1. A call is counted before it is made, in the same step that finds out whether it may be made.
//! 2. Once `end` has returned, no `begin` succeeds; those that did before are counted until they finish.
//! 3. Each `begin`, also one that does not succeed, is followed by one `finish`. One that comes after `end` says so: somebody may
//!    wait for it.

use crate::sync::{AtomicUsize, Ordering};

const ENDED: usize = 1 << (usize::BITS - 1);

/// How many calls are under way, and whether there may be more.
#[derive(Debug)]
pub(crate) struct Calls(AtomicUsize);

impl Calls {
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Counts a call; returns whether it may be made.
    pub(crate) fn begin(&self) -> bool {
        self.0.fetch_add(1, Ordering::AcqRel) & ENDED == 0
    }

    /// Takes a call off the count; returns whether somebody may wait for that.
    pub(crate) fn finish(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) & ENDED != 0
    }

    /// Lets no further call be made.
    pub(crate) fn end(&self) {
        self.0.fetch_or(ENDED, Ordering::AcqRel);
    }

    pub(crate) fn under_way(&self) -> usize {
        self.0.load(Ordering::Acquire) & !ENDED
    }
}
