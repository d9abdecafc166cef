//! Counts the calls of a listener that are under way, so that a caller of `off_and_wait` can wait for their end (E9).
//!
//! 1. A call is counted before it is made, in the same atomic step that checks whether it may be made.
//! 2. After `end` has returned, no `begin` succeeds. Calls that began before are counted until they finish.
//! 3. Each `begin`, successful or not, is followed by one `finish`. A `finish` after `end` returns `true`, because a
//!    caller of `off_and_wait` may be waiting.

use crate::sync::{AtomicUsize, Ordering};

/// The highest bit, set by `end`. The lower bits hold the count.
const ENDED: usize = 1 << (usize::BITS - 1);

/// The number of calls under way, and a bit that is set once no more calls may begin.
#[derive(Debug)]
pub(crate) struct Calls(AtomicUsize);

impl Calls {
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Counts a call. Returns `true` if the call may be made.
    pub(crate) fn begin(&self) -> bool {
        // One step counts and checks, so that a call either is counted before `end`, or sees the end (invariant 1).
        self.0.fetch_add(1, Ordering::AcqRel) & ENDED == 0
    }

    /// Stops counting a call. Returns `true` if a caller may be waiting for the call to end.
    pub(crate) fn finish(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) & ENDED != 0
    }

    /// Prevents further calls from beginning.
    pub(crate) fn end(&self) {
        self.0.fetch_or(ENDED, Ordering::AcqRel);
    }

    pub(crate) fn under_way(&self) -> usize {
        self.0.load(Ordering::Acquire) & !ENDED
    }
}
