//! The atomic step that decides between the function of a tool call and the end of the call's turn.
//!
//! Invariants, which a loom model checks:
//!
//! 1. A call is open until it is either started or closed. Then it stays as it is.
//! 2. The function of a call is called only if [`WorkStarted::call`] returned `true`. A call that was closed while it
//!    was open is therefore never executed, and its result may state so (A1).

use std::sync::Arc;

use crate::sync::{AtomicU8, Ordering};

const OPEN: u8 = 0;
/// A layer that may do the work itself was entered.
const STARTED: u8 = 1;
/// The function was called.
const CALLED: u8 = 2;
const CLOSED: u8 = 3;

/// The state of a tool call, which the call's turn and the tool's run share. An agent adds it to the run as an
/// extension.
#[derive(Clone, Debug)]
pub(crate) struct WorkStarted {
    state: Arc<AtomicU8>,
    /// The number of the agent's attempt in which the call was made.
    attempt: u32,
}

impl WorkStarted {
    pub(crate) fn in_attempt(attempt: u32) -> Self {
        Self { state: Arc::new(AtomicU8::new(OPEN)), attempt }
    }

    pub(crate) const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Marks the call as started, before a layer is entered that may do the work itself. Returns `false` if the call is
    /// closed; then its function must not be called.
    pub(crate) fn start(&self) -> bool {
        // A tool that is retried starts its call again.
        self.leave(OPEN, STARTED).map_or_else(|found| found != CLOSED, |_| true)
    }

    /// Marks the call as started, before its function is called. Returns `false` if the call is closed; then its function
    /// must not be called.
    pub(crate) fn call(&self) -> bool {
        self.start() && self.leave(STARTED, CALLED).map_or_else(|found| found == CALLED, |_| true)
    }

    /// Closes the call, so that its function is not called from now on. Returns `true` if the call had been started.
    pub(crate) fn close(&self) -> bool {
        matches!(self.leave(OPEN, CLOSED), Err(STARTED | CALLED))
    }

    /// Returns `true` if the call has been started.
    pub(crate) fn has_started(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), STARTED | CALLED)
    }

    /// Returns `true` if the function of the call has been called.
    pub(crate) fn is_called(&self) -> bool {
        self.state.load(Ordering::Acquire) == CALLED
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSED
    }

    fn leave(&self, from: u8, to: u8) -> Result<u8, u8> {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
    }
}
