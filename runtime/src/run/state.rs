//! The state of a run in one atomic word: stopped or settled, closed, released, ended (R7, R13, R14).
//!
//! 1. A bit that is added stays, except that `end` may lose a bit that another thread adds at the same time.
//! 2. `STOPPED` and `SETTLED` race, and the bit that is added first wins: a settled run can no longer be stopped, and
//!    `settle` reports an earlier stop.
//! 3. The reason for a stop is written before `STOPPED`, and never again: the first reason wins.
//! 4. A `stop` that loses to another `stop` adds `STOPPED` too: once any `stop` has returned, the run is not open.
//! 5. Of `TASKS` and `SETTLED`, the bit that is added first wins: a settled run takes no tasks. A run with tasks is not
//!    closed when it is settled, because its tasks may begin runs until they have ended.
//! 6. `SETTLED` and `CLOSED` are sequentially consistent with the registration of tasks and children: either a run that
//!    ends sees the task or child, or the code that registers it sees the bit.
//! 7. Of `CHAINED` and `WORKING`, the bit that is added first wins: either a chain is added before the work begins, and
//!    the work passes through it, or the chain is refused.
//! 8. `BOUND` is added after a binding, and `RELEASED` is added before the bindings of the run are dropped. The code
//!    that adds the second of the two bits sees both, and drops the binding.

use crate::sync::{AtomicU16, OnceLock, Ordering};

/// The run was stopped before it was settled.
const STOPPED: u16 = 1;
/// The run's work is over: the run cannot be stopped any more.
const SETTLED: u16 = 2;
/// The run accepts no more children.
const CLOSED: u16 = 4;
/// The run and all runs below it have ended.
const ENDED: u16 = 8;
/// The run has, or has had, tasks. Also set if a task is refused because the run is settled.
const TASKS: u16 = 16;
/// The run has bindings, which have to be dropped at its end.
const BOUND: u16 = 32;
/// The run has dropped its bindings, or is about to drop them.
const RELEASED: u16 = 64;
/// The run has a chain, which its values pass through.
const CHAINED: u16 = 128;
/// The run's work has begun: no chain is added from now on.
const WORKING: u16 = 256;

const fn is_open(word: u16) -> bool {
    word & (STOPPED | SETTLED) == 0
}

#[derive(Debug)]
pub(crate) struct RunState<S> {
    word: AtomicU16,
    stop: OnceLock<S>,
}

impl<S> RunState<S> {
    pub(crate) fn open() -> Self {
        Self { word: AtomicU16::new(0), stop: OnceLock::new() }
    }

    /// Returns the state of a run that is made with bindings.
    pub(crate) fn bound() -> Self {
        Self { word: AtomicU16::new(BOUND), stop: OnceLock::new() }
    }

    /// Stops the run unless it has already been stopped or settled. Returns `true` if this call stopped it.
    pub(crate) fn stop(&self, stop: S) -> bool {
        if !self.is_open() {
            return false;
        }
        // Written before the bit: a thread that sees the bit finds the reason (invariant 3).
        let is_first = self.stop.set(stop).is_ok();
        // A `stop` that loses to another `stop` adds the bit too, so that the run is stopped when that call returns
        // (invariant 4).
        let stopped = |word| is_open(word).then_some(word | STOPPED);
        let stopped = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, stopped);
        is_first && stopped.map_or_else(|word| word & STOPPED != 0, |_| true)
    }

    /// Returns `true` if the run may still be stopped.
    pub(crate) fn is_open(&self) -> bool {
        is_open(self.word.load(Ordering::Acquire))
    }

    /// Settles the run.
    ///
    /// # Errors
    ///
    /// Returns the reason for the stop if the run had already been stopped.
    pub(crate) fn settle(&self) -> Result<(), &S> {
        self.outcome(self.word.fetch_or(SETTLED, Ordering::SeqCst))
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.word.load(Ordering::SeqCst) & SETTLED != 0
    }

    /// Settles the run. A run without tasks is closed as well, and released if nothing is bound to it. For most runs,
    /// one atomic exchange does all of this.
    pub(crate) fn settle_and_close(&self) -> Result<(), &S> {
        let settled = |word| {
            Some(match (word & TASKS, word & BOUND) {
                (0, 0) => word | SETTLED | CLOSED | RELEASED,
                (0, _) => word | SETTLED | CLOSED,
                _ => word | SETTLED,
            })
        };
        let word = self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, settled);
        self.outcome(word.unwrap_or_else(|word| word))
    }

    /// Marks the run as having tasks. Returns `false` if the run is settled and takes no tasks.
    pub(crate) fn take_task(&self) -> bool {
        self.word.fetch_or(TASKS, Ordering::SeqCst) & SETTLED == 0
    }

    /// Returns `true` if the run has had a task, or has refused a task because the run was settled.
    pub(crate) fn has_tasks(&self) -> bool {
        self.word.load(Ordering::SeqCst) & TASKS != 0
    }

    pub(crate) fn close(&self) {
        self.word.fetch_or(CLOSED, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.word.load(Ordering::SeqCst) & CLOSED != 0
    }

    /// Marks the run as bound and as having a chain, which the caller has made. Returns `true` if the run has a chain
    /// afterwards. A run without a chain refuses the new chain once the work has begun or the run was released.
    pub(crate) fn add_chain(&self) -> bool {
        let chained = |word| (word & (CHAINED | WORKING | RELEASED) == 0).then_some(word | CHAINED | BOUND);
        let added = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, chained);
        added.map_or_else(|word| word & CHAINED != 0, |_| true)
    }

    /// Marks the work as begun. Returns `true` if the run has a chain. Otherwise, no chain can be added any more.
    pub(crate) fn begin_work(&self) -> bool {
        self.word.fetch_or(WORKING, Ordering::AcqRel) & CHAINED != 0
    }

    pub(crate) fn has_chain(&self) -> bool {
        self.word.load(Ordering::Acquire) & CHAINED != 0
    }

    /// Marks the run as bound, after something was bound to it. Returns `false` if the run is released: then the caller
    /// drops the binding.
    pub(crate) fn bind(&self) -> bool {
        self.word.fetch_or(BOUND, Ordering::AcqRel) & RELEASED == 0
    }

    /// Releases the run. Returns `true` if something is bound that the caller has to drop. Later bindings are dropped
    /// by the code that binds them.
    #[inline]
    pub(crate) fn release(&self) -> bool {
        // A run that was released when it was settled has no bindings, and needs no atomic exchange.
        self.word.load(Ordering::Acquire) & RELEASED == 0 && self.word.fetch_or(RELEASED, Ordering::AcqRel) & BOUND != 0
    }

    pub(crate) fn is_released(&self) -> bool {
        self.word.load(Ordering::Acquire) & RELEASED != 0
    }

    /// Marks the run as ended, after it was settled and released.
    pub(crate) fn end(&self) {
        // A bit that another thread adds between load and store may get lost: after `RELEASED`, no decision depends on
        // such a bit.
        let word = self.word.load(Ordering::Relaxed);
        self.word.store(word | ENDED, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.word.load(Ordering::Acquire) & ENDED != 0
    }

    /// Returns the reason if the run was stopped.
    #[inline]
    pub(crate) fn stopped(&self) -> Option<&S> {
        self.outcome(self.word.load(Ordering::Acquire)).err()
    }

    #[inline]
    fn outcome(&self, word: u16) -> Result<(), &S> {
        match word & STOPPED {
            0 => Ok(()),
            _ => self.stop.get().map_or(Ok(()), Err),
        }
    }
}
