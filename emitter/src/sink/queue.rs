//! A backlog behind a lock: where emits meet the one that reads (E13).
//!
//! 1. The lock is held for a few assignments: no user code runs under it, wakers and dropped items included.
//! 2. The reader tells under the lock how it sleeps before it does, so a push knows whether to wake it and nobody
//!    sleeps through one. A reader that lingers is woken only by what cannot wait: a backlog that is half full, a
//!    flush, the close.
//! 3. After `close` nothing is taken in, so a take that saw the queue closed is the last one.
//! 4. A take empties the backlog: what had been accepted when a flush was asked for is in the batch that comes with it.
//! 5. `end` comes after everything else; who waits for a flush or for the end need not wait any longer.
//! 6. What has been read is given back, and each push drops one of it: memory that is freed by the threads that
//!    allocate it costs them nothing, and freed by the reader's it costs both more than all the rest. A reader that
//!    goes to sleep drops what is left, so that nothing stays.

use std::collections::VecDeque;
use std::mem;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use event_listener::{Event, EventListener};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Overflow;
use super::backlog::{Backlog, Entry, Offered};

/// How long a reader that has caught up collects before it asks to be woken by the next push: a busy emitter then
/// pays for one wake in hundreds of events instead of one each.
const LINGER: Duration = Duration::from_micros(200);

/// A bounded queue with one reader.
#[derive(Debug)]
pub(super) struct Queue<T> {
    state: Mutex<QueueState<T>>,
    /// There is something to do for the reader's thread.
    work: Condvar,
    /// There is room again.
    room: Event,
    /// A flush or the end has come.
    progress: Event,
    /// The thread that reads, if one does.
    thread: OnceLock<ThreadId>,
}

#[derive(Debug)]
struct QueueState<T> {
    backlog: Backlog<T>,
    /// What has been read, to be dropped (invariant 6).
    spent: VecDeque<Entry<T>>,
    reader: Reader,
    closed: bool,
    flush_wanted: u64,
    flush_done: u64,
    ended: bool,
}

/// What the reader is doing (invariant 2).
#[derive(Debug)]
enum Reader {
    /// It will look again by itself.
    Busy,
    /// Its thread sleeps for a moment.
    Lingers,
    /// Its thread sleeps.
    Sleeps,
    /// Its task waits.
    Waits(Waker),
}

/// What a reader has to do with the batch it took.
#[derive(Clone, Copy, Debug)]
pub(super) struct AfterBatch {
    /// A flush was asked for, with this ticket.
    pub(super) flush: Option<u64>,
    /// Nothing will come after this batch.
    pub(super) last: bool,
}

/// How much was offered, and how much of it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueCounts {
    pub(super) offered: u64,
    pub(super) lost: u64,
}

impl<T> Queue<T> {
    pub(super) fn new(capacity: usize, overflow: Overflow) -> Self {
        let state = Mutex::new(QueueState::new(Backlog::new(capacity, overflow)));
        let (room, progress) = (Event::new(), Event::new());
        Self { state, work: Condvar::new(), room, progress, thread: OnceLock::new() }
    }

    /// The current thread is the one that reads.
    pub(super) fn read_here(&self) {
        // Set once: a queue has one reader.
        let _ = self.thread.set(thread::current().id());
    }

    /// Whether the current thread is the one that reads: if it waited for the queue, it would wait for ever.
    pub(super) fn is_read_here(&self) -> bool {
        self.thread.get().is_some_and(|reader| *reader == thread::current().id())
    }

    /// Offers an item. A ticket means that it is beyond the capacity, and the offer is to wait: `admission.rs`.
    pub(super) fn push(&self, item: T) -> Option<u64> {
        match self.offer_to(self.state.lock(), item) {
            Offered::Waits(ticket) => Some(ticket),
            Offered::Held | Offered::Lost(_) => None,
        }
    }

    /// Offers an item only if there is room for it; tells whether that is settled.
    pub(super) fn try_push(&self, item: T) -> bool {
        let state = self.state.lock();
        if state.backlog.is_full() && !state.closed {
            // The item is dropped last, outside the lock (invariant 1).
            return false;
        }
        self.offer_to(state, item);
        true
    }

    /// Tells whether an offer made now would not have to wait.
    pub(super) fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.closed || !state.backlog.is_full()
    }

    fn offer_to(&self, mut state: MutexGuard<'_, QueueState<T>>, item: T) -> Offered<T> {
        if state.closed {
            drop(state);
            return Offered::Lost(Some(item));
        }
        let offered = state.backlog.offer(item);
        let urgent = state.backlog.is_half_full();
        let asleep = state.mark_awake(urgent);
        let spent = state.spent.pop_back();
        drop(state);
        self.wake(asleep);
        drop(spent);
        offered
    }

    /// Tells whether the offer with this ticket need not wait any longer: it has been taken, or nothing is taken in.
    pub(super) fn is_admitted(&self, ticket: u64) -> bool {
        let state = self.state.lock();
        state.closed || state.backlog.has_taken(ticket)
    }

    /// Gives up an offer that waits: its item is lost. After `close` it is delivered all the same.
    pub(super) fn withdraw(&self, ticket: u64) {
        let mut state = self.state.lock();
        let lost = if state.closed { None } else { state.backlog.withdraw(ticket) };
        drop(state);
        drop(lost);
    }

    /// Listens for a take that makes room, or for the close.
    pub(super) fn room(&self) -> EventListener {
        self.room.listen()
    }

    /// Takes nothing in any more and lets those go that wait for room; what has been accepted stays to be read.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let asleep = state.mark_awake(true);
        drop(state);
        self.wake(asleep);
        self.room.notify(usize::MAX);
    }

    /// Closes and drops what has not been read.
    pub(super) fn abandon(&self) {
        self.close();
        let mut unread = VecDeque::new();
        self.state.lock().backlog.take(&mut unread);
    }

    /// Asks the reader to flush after all that has been accepted (invariant 4).
    pub(super) fn request_flush(&self) -> u64 {
        let mut state = self.state.lock();
        state.flush_wanted += 1;
        let ticket = state.flush_wanted;
        let asleep = state.mark_awake(true);
        drop(state);
        self.wake(asleep);
        ticket
    }

    /// Tells those who wait that all flushes up to this one are done.
    pub(super) fn flushed(&self, ticket: u64) {
        self.state.lock().flush_done = ticket;
        self.wake_waiters();
    }

    /// Tells those who wait that nothing will happen any more (invariant 5).
    pub(super) fn end(&self) {
        self.close();
        self.state.lock().ended = true;
        self.wake_waiters();
    }

    pub(super) fn has_flushed(&self, ticket: u64) -> bool {
        let state = self.state.lock();
        state.ended || state.flush_done >= ticket
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// Listens for the next flush, end or nudge.
    pub(super) fn progress(&self) -> EventListener {
        self.progress.listen()
    }

    /// Makes those who wait for progress look again.
    pub(super) fn wake_waiters(&self) {
        self.progress.notify(usize::MAX);
    }

    pub(super) fn counts(&self) -> QueueCounts {
        let state = self.state.lock();
        QueueCounts { offered: state.backlog.offered(), lost: state.backlog.lost() }
    }

    /// Sleeps until there is something to do, or until a time; takes all there is into the empty `batch`.
    pub(super) fn wait(&self, batch: &mut VecDeque<Entry<T>>, until: Option<Instant>) -> AfterBatch {
        let mut state = self.state.lock();
        if state.is_idle() {
            state.reader = Reader::Lingers;
            self.work.wait_for(&mut state, LINGER);
        }
        if state.is_idle() {
            let spent = mem::take(&mut state.spent);
            MutexGuard::unlocked(&mut state, || drop(spent));
        }
        while state.is_idle() {
            state.reader = Reader::Sleeps;
            if self.sleep(&mut state, until) == Slept::ForLong {
                break;
            }
        }
        state.reader = Reader::Busy;
        let waited = state.backlog.take(batch);
        let after_batch = state.after_batch();
        drop(state);
        if waited {
            self.room.notify(usize::MAX);
        }
        after_batch
    }

    /// Empties a batch that has been read (invariant 6).
    pub(super) fn give_back(&self, batch: &mut VecDeque<Entry<T>>) {
        let mut state = self.state.lock();
        // As much as the next pushes can drop, and no more.
        if !state.closed && !state.backlog.would_fill(state.spent.len()) {
            state.spent.append(batch);
        }
        drop(state);
        batch.clear();
    }

    /// Takes what stands first, or has the task woken when there is something; none at the end.
    pub(super) fn poll_pop(&self, cx: &Context<'_>) -> Poll<Option<Entry<T>>> {
        if let Some(entry) = self.pop() {
            return Poll::Ready(Some(entry));
        }
        // Cloned and dropped outside the lock (invariant 1): a waker is the executor's code.
        let waker = cx.waker().clone();
        let mut state = self.state.lock();
        if let Some(entry) = state.backlog.pop() {
            return Poll::Ready(Some(entry));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        let before = mem::replace(&mut state.reader, Reader::Waits(waker));
        drop(state);
        drop(before);
        Poll::Pending
    }

    fn pop(&self) -> Option<Entry<T>> {
        self.state.lock().backlog.pop()
    }

    fn sleep(&self, state: &mut MutexGuard<'_, QueueState<T>>, until: Option<Instant>) -> Slept {
        let Some(until) = until else {
            self.work.wait(state);
            return Slept::UntilWoken;
        };
        if self.work.wait_until(state, until).timed_out() { Slept::ForLong } else { Slept::UntilWoken }
    }

    fn wake(&self, asleep: Reader) {
        match asleep {
            Reader::Busy => {}
            Reader::Lingers | Reader::Sleeps => {
                self.work.notify_one();
            }
            Reader::Waits(waker) => waker.wake(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slept {
    UntilWoken,
    ForLong,
}

impl<T> QueueState<T> {
    fn new(backlog: Backlog<T>) -> Self {
        let (spent, reader) = (VecDeque::new(), Reader::Busy);
        Self { backlog, spent, reader, closed: false, flush_wanted: 0, flush_done: 0, ended: false }
    }

    fn is_idle(&self) -> bool {
        self.backlog.is_empty() && !self.closed && self.flush_wanted == self.flush_done
    }

    /// Tells how the reader sleeps if it is to be woken, which it then is (invariant 2).
    fn mark_awake(&mut self, urgent: bool) -> Reader {
        match self.reader {
            Reader::Busy => Reader::Busy,
            Reader::Lingers if !urgent => Reader::Busy,
            Reader::Lingers | Reader::Sleeps | Reader::Waits(_) => mem::replace(&mut self.reader, Reader::Busy),
        }
    }

    fn after_batch(&self) -> AfterBatch {
        let flush = (self.flush_wanted > self.flush_done).then_some(self.flush_wanted);
        AfterBatch { flush, last: self.closed }
    }
}
