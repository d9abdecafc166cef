//! What has become of a run, in one word: stopped or settled, closed, ended (R7, R13).
//!
//! 1. Bits are only ever added.
//! 2. Of `STOPPED` and `SETTLED`, which race, the first decides: nothing is stopped that is settled, and who settles
//!    learns whether it was stopped before.
//! 3. Why it was stopped is written before `STOPPED` is, and never again: the first reason wins.
//! 4. Whoever finds it being stopped adds `STOPPED` too: once a `stop` has returned, it is not open.
//! 5. Of `TASKS` and `SETTLED` the first decides: what is settled takes no tasks. What has tasks is not closed with being
//!    settled, for those may begin runs until they have ended.
//! 6. `SETTLED` and `CLOSED` are added, and looked at by who spawns or begins below, in one order with what those leave
//!    there: either sees the other.
//! 7. Of `CHAINED` and `WORKING` the first decides: a chain is added before the work begins, and then the work passes it, or it is
//!    refused.
//! 8. Whoever binds something to it adds `BOUND` after it has left it there, and the end adds `RELEASED` before it looks: who
//!    comes second sees both, and lets it go.

use crate::sync::{AtomicU16, OnceLock, Ordering};

/// It was aborted, before it was settled.
const STOPPED: u16 = 1;
/// Its work is over: nothing stops it any more.
const SETTLED: u16 = 2;
/// What is started in it from now on is not below it.
const CLOSED: u16 = 4;
/// All of it is over.
const ENDED: u16 = 8;
/// It has tasks, or had.
const TASKS: u16 = 16;
/// Something was bound to it that has to be let go.
const BOUND: u16 = 32;
/// It has let go of what was bound, or is about to.
const RELEASED: u16 = 64;
/// Its values pass a chain.
const CHAINED: u16 = 128;
/// Its work has begun: no chain is added from now on.
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

    /// That of a run to which something is bound from the beginning.
    pub(crate) fn bound() -> Self {
        Self { word: AtomicU16::new(BOUND), stop: OnceLock::new() }
    }

    /// Stops it, unless it was stopped or settled before; tells whether this did it.
    pub(crate) fn stop(&self, stop: S) -> bool {
        if !self.is_open() {
            return false;
        }
        let is_first = self.stop.set(stop).is_ok();
        let stopped = |word| is_open(word).then_some(word | STOPPED);
        let stopped = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, stopped);
        is_first && stopped.map_or_else(|word| word & STOPPED != 0, |_| true)
    }

    /// Whether it may still be stopped.
    pub(crate) fn is_open(&self) -> bool {
        is_open(self.word.load(Ordering::Acquire))
    }

    /// Settles it: gives why it was stopped, if it was before.
    pub(crate) fn settle(&self) -> Result<(), &S> {
        self.outcome(self.word.fetch_or(SETTLED, Ordering::SeqCst))
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.word.load(Ordering::SeqCst) & SETTLED != 0
    }

    /// Settles it; without tasks closes it, and without bindings releases it as well.
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

    /// It is about to get a task; tells whether it may.
    pub(crate) fn take_task(&self) -> bool {
        self.word.fetch_or(TASKS, Ordering::SeqCst) & SETTLED == 0
    }

    /// Whether there ever was a task. Asked once it is settled.
    pub(crate) fn has_tasks(&self) -> bool {
        self.word.load(Ordering::SeqCst) & TASKS != 0
    }

    pub(crate) fn close(&self) {
        self.word.fetch_or(CLOSED, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.word.load(Ordering::SeqCst) & CLOSED != 0
    }

    /// Adds the chain, which has been made, and binds it. Returns `false` if the work has begun without one.
    pub(crate) fn add_chain(&self) -> bool {
        let chained = |word| (word & (CHAINED | WORKING | RELEASED) == 0).then_some(word | CHAINED | BOUND);
        let added = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, chained);
        added.map_or_else(|word| word & CHAINED != 0, |_| true)
    }

    /// Begins the work. Returns `true` if its values pass a chain.
    pub(crate) fn begin_work(&self) -> bool {
        self.word.fetch_or(WORKING, Ordering::AcqRel) & CHAINED != 0
    }

    pub(crate) fn has_chain(&self) -> bool {
        self.word.load(Ordering::Acquire) & CHAINED != 0
    }

    /// Something has been bound to it. Returns `false` if it has let go already: then whoever bound it lets it go.
    pub(crate) fn bind(&self) -> bool {
        self.word.fetch_or(BOUND, Ordering::AcqRel) & RELEASED == 0
    }

    /// Releases it. Returns `true` if something is bound that the caller drops; what is bound from now on is dropped by its binder.
    #[inline]
    pub(crate) fn release(&self) -> bool {
        // Released when it was settled: nothing was bound then.
        self.word.load(Ordering::Acquire) & RELEASED == 0 && self.word.fetch_or(RELEASED, Ordering::AcqRel) & BOUND != 0
    }

    pub(crate) fn is_released(&self) -> bool {
        self.word.load(Ordering::Acquire) & RELEASED != 0
    }

    /// Ends it, once it has been settled, closed and released: what others add then says nothing any more.
    pub(crate) fn end(&self) {
        let word = self.word.load(Ordering::Relaxed);
        self.word.store(word | ENDED, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.word.load(Ordering::Acquire) & ENDED != 0
    }

    /// Why it was stopped, if it was.
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
