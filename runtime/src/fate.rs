//! Whether a run was stopped before it was over: the two race, and one of them comes first (R7).
//!
//! 1. `state` leaves `OPEN` once, for `STOPPED` or for `CLOSED`, and stays there.
//! 2. Why it was stopped is written before `STOPPED` is, and never again: the first reason wins.
//! 3. So the end of the work, asking once with `close`, knows for good whether it was aborted.

use crate::sync::{AtomicU8, OnceLock, Ordering};

const OPEN: u8 = 0;
const STOPPED: u8 = 1;
const CLOSED: u8 = 2;

/// Open, until it is stopped for a reason, or closed.
#[derive(Debug)]
pub(crate) struct Fate<S> {
    state: AtomicU8,
    stop: OnceLock<S>,
}

impl<S> Fate<S> {
    pub(crate) fn open() -> Self {
        Self { state: AtomicU8::new(OPEN), stop: OnceLock::new() }
    }

    /// Stops it, unless it was stopped or closed before; tells whether this did it.
    pub(crate) fn stop(&self, stop: S) -> bool {
        self.state.load(Ordering::Acquire) == OPEN && self.stop.set(stop).is_ok() && self.leave(STOPPED)
    }

    /// Closes it, unless it was stopped before: then it gives why.
    pub(crate) fn close(&self) -> Result<(), &S> {
        if self.leave(CLOSED) {
            return Ok(());
        }
        self.stopped().map_or(Ok(()), Err)
    }

    /// Why it was stopped, if it was.
    #[inline]
    pub(crate) fn stopped(&self) -> Option<&S> {
        if self.state.load(Ordering::Acquire) == STOPPED { self.stop.get() } else { None }
    }

    fn leave(&self, to: u8) -> bool {
        self.state.compare_exchange(OPEN, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
