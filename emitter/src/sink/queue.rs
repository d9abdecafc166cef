//! A backlog behind a lock, between the emits and the reader (E13).
//!
//! 1. The lock is held only for a short time. No user code runs while it is held, not even a waker or the drop of an
//!    item.
//! 2. Before the reader sleeps, it records under the lock how it sleeps. A push thus wakes it if necessary, and no
//!    wake-up is lost. A lingering reader is woken only for a half-full backlog, a flush or the close.
//! 3. After `close`, no item is accepted, so a take that finds the queue closed is the last take.
//! 4. A take empties the backlog. All items accepted before a flush was requested are thus in the batch that comes with
//!    the request, or in an earlier batch. Requests are taken in the order of their positions.
//! 5. The reader calls `end` last. Afterwards, no caller waits for a flush or for the end.
//! 6. Items that were read are given back, and each push drops one of them. Freeing memory is cheap on the thread that
//!    allocates it. On the reader's thread, it would cost both threads more than all other work of the queue. A reader
//!    that goes to sleep drops the remaining items.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use event_listener::{Event, EventListener};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Overflow;
use super::backlog::{Backlog, Entry, Offered};
use super::tally::Flush;

/// The time that a reader without work lingers before it goes to sleep. With a busy emitter, hundreds of events then
/// cost only one wake-up.
const LINGER: Duration = Duration::from_micros(200);

/// A bounded queue with one reader.
#[derive(Debug)]
pub(super) struct Queue<T> {
    state: Mutex<QueueState<T>>,
    /// Notified when the reader's thread has work.
    work: Condvar,
    /// Notified when there is room again, and at the close.
    room: Event,
    /// Notified after a flush and at the end.
    progress: Event,
    /// The reader's thread, if the reader is a thread.
    thread: OnceLock<ThreadId>,
}

#[derive(Debug)]
struct QueueState<T> {
    backlog: Backlog<T>,
    /// Items that were read and are to be dropped (invariant 6).
    spent: VecDeque<Entry<T>>,
    reader: ReaderState,
    closed: bool,
    /// Flushes that were requested and not taken.
    flushes: Vec<Arc<Flush>>,
    ended: bool,
}

/// The state of the reader (invariant 2).
#[derive(Debug)]
enum ReaderState {
    /// The reader will check the queue again by itself.
    Busy,
    /// The reader's thread sleeps for at most [`LINGER`].
    Lingers,
    /// The reader's thread sleeps until it is woken.
    Sleeps,
    /// The reader's task waits to be woken by this waker.
    Waits(Waker),
}

/// The tasks of the reader besides the entries of a batch.
#[derive(Debug)]
pub(super) struct AfterBatch {
    /// The flushes that were requested before or during the batch, by position (invariant 4).
    pub(super) flushes: Vec<Arc<Flush>>,
    /// `true` if no batch follows.
    pub(super) last: bool,
}

/// The number of items offered, and how many of them were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueCounts {
    pub(super) offered: u64,
    pub(super) lost: u64,
}

impl<T> Queue<T> {
    pub(super) fn new(capacity: usize, overflow: Overflow) -> Self {
        let state = Mutex::new(QueueState::new(Backlog::new(capacity, overflow)));
        let room = Event::new();
        let progress = Event::new();
        Self { state, work: Condvar::new(), room, progress, thread: OnceLock::new() }
    }

    /// Makes the current thread the reader.
    pub(super) fn read_here(&self) {
        // A queue has one reader, so only the first call has an effect.
        let _ = self.thread.set(thread::current().id());
    }

    /// Returns `true` if the current thread is the reader. The reader must not wait for the queue: the wait would never
    /// end.
    pub(super) fn is_read_here(&self) -> bool {
        self.thread.get().is_some_and(|reader| *reader == thread::current().id())
    }

    /// Offers an item. Returns a ticket if the item is above the capacity and the offer has to wait (`admission.rs`).
    pub(super) fn push(&self, item: T) -> Option<u64> {
        match self.offer_to(self.state.lock(), item) {
            Offered::Waits(ticket) => Some(ticket),
            Offered::Held | Offered::Lost(_) => None,
        }
    }

    /// Offers an item only if there is room. Returns `false` if there is no room. A closed queue takes the item and
    /// drops it.
    pub(super) fn try_push(&self, item: T) -> bool {
        let state = self.state.lock();
        if state.backlog.is_full() && !state.closed {
            // The item is dropped after the guard, outside the lock (invariant 1).
            return false;
        }
        self.offer_to(state, item);
        true
    }

    /// Returns `true` if an offer made now would not wait.
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
        // All decisions are made under the lock, and carried out after unlocking (invariants 1 and 2).
        let urgent = state.backlog.is_half_full();
        let asleep = state.mark_awake(urgent);
        // For each item that is pushed, one item that was read is dropped (invariant 6).
        let spent = state.spent.pop_back();
        drop(state);
        self.wake(asleep);
        drop(spent);
        offered
    }

    /// Returns `true` if the offer with this ticket need not wait any longer: it was taken, or the queue is closed.
    pub(super) fn is_admitted(&self, ticket: u64) -> bool {
        let state = self.state.lock();
        state.closed || state.backlog.has_taken(ticket)
    }

    /// Withdraws an offer that waits, and loses its item. Does nothing after `close`: the item is still delivered.
    pub(super) fn withdraw(&self, ticket: u64) {
        let mut state = self.state.lock();
        let lost = if state.closed { None } else { state.backlog.withdraw(ticket) };
        drop(state);
        drop(lost);
    }

    /// Returns a listener that is notified when a take makes room, and at the close.
    pub(super) fn room(&self) -> EventListener {
        self.room.listen()
    }

    /// Accepts no more items, and ends all waits for room. Accepted items are still delivered.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let asleep = state.mark_awake(true);
        drop(state);
        self.wake(asleep);
        self.room.notify(usize::MAX);
    }

    /// Closes the queue and drops the items that were not read.
    pub(super) fn abandon(&self) {
        self.close();
        let mut unread = VecDeque::new();
        // `unread` is dropped after the guard, outside the lock (invariant 1).
        self.state.lock().backlog.take(&mut unread);
    }

    /// Requests a flush after all items accepted so far (invariant 4).
    pub(super) fn request_flush(&self) -> Arc<Flush> {
        let mut state = self.state.lock();
        let flush = Arc::new(Flush::new(state.backlog.offered()));
        if !state.ended {
            state.flushes.push(Arc::clone(&flush));
        }
        let asleep = state.mark_awake(true);
        drop(state);
        self.wake(asleep);
        flush
    }

    /// Records that the reader has ended, and wakes all callers that wait for it (invariant 5).
    pub(super) fn end(&self) {
        self.close();
        self.state.lock().ended = true;
        self.wake_waiters();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// Returns a listener that is notified after the next flush, at the end, and by `wake_waiters`.
    pub(super) fn progress(&self) -> EventListener {
        self.progress.listen()
    }

    /// Makes all callers that wait for progress check again.
    pub(super) fn wake_waiters(&self) {
        self.progress.notify(usize::MAX);
    }

    pub(super) fn counts(&self) -> QueueCounts {
        let state = self.state.lock();
        QueueCounts { offered: state.backlog.offered(), lost: state.backlog.lost() }
    }

    /// Sleeps until there is work, at most until the time `until`, and then moves all entries into the empty `batch`.
    pub(super) fn wait(&self, batch: &mut VecDeque<Entry<T>>, until: Option<Instant>) -> AfterBatch {
        let mut state = self.state.lock();
        if state.is_idle() {
            // Linger for a moment first, because more items are likely (invariant 2).
            state.reader = ReaderState::Lingers;
            self.work.wait_for(&mut state, LINGER);
        }
        if state.is_idle() {
            // Before sleeping, drop the remaining items that were read (invariant 6).
            let spent = mem::take(&mut state.spent);
            MutexGuard::unlocked(&mut state, || drop(spent));
        }
        // Check again after each wake-up, which may be spurious.
        while state.is_idle() {
            state.reader = ReaderState::Sleeps;
            if self.sleep(&mut state, until) == WakeReason::TimedOut {
                break;
            }
        }
        state.reader = ReaderState::Busy;
        let waited = state.backlog.take(batch);
        let after_batch = AfterBatch { flushes: mem::take(&mut state.flushes), last: state.closed };
        drop(state);
        if waited {
            self.room.notify(usize::MAX);
        }
        after_batch
    }

    /// Empties a batch that was read (invariant 6).
    pub(super) fn give_back(&self, batch: &mut VecDeque<Entry<T>>) {
        let mut state = self.state.lock();
        // Keep the items for the next pushes to drop, unless enough are kept already.
        if !state.closed && !state.backlog.would_fill(state.spent.len()) {
            state.spent.append(batch);
        }
        drop(state);
        batch.clear();
    }

    /// Takes the first entry, or registers the task to be woken for the next entry. Returns `None` at the end.
    pub(super) fn poll_pop(&self, cx: &Context<'_>) -> Poll<Option<Entry<T>>> {
        if let Some(entry) = self.pop() {
            return Poll::Ready(Some(entry));
        }
        // A waker is the executor's code: it is cloned and dropped outside the lock (invariant 1).
        let waker = cx.waker().clone();
        let mut state = self.state.lock();
        // Check again and store the waker under the same lock, so that no push is missed (invariant 2).
        if let Some(entry) = state.backlog.pop() {
            return Poll::Ready(Some(entry));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        let before = mem::replace(&mut state.reader, ReaderState::Waits(waker));
        drop(state);
        drop(before);
        Poll::Pending
    }

    fn pop(&self) -> Option<Entry<T>> {
        self.state.lock().backlog.pop()
    }

    fn sleep(&self, state: &mut MutexGuard<'_, QueueState<T>>, until: Option<Instant>) -> WakeReason {
        let Some(until) = until else {
            self.work.wait(state);
            return WakeReason::Notified;
        };
        if self.work.wait_until(state, until).timed_out() { WakeReason::TimedOut } else { WakeReason::Notified }
    }

    fn wake(&self, asleep: ReaderState) {
        match asleep {
            ReaderState::Busy => {}
            ReaderState::Lingers | ReaderState::Sleeps => {
                self.work.notify_one();
            }
            ReaderState::Waits(waker) => waker.wake(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WakeReason {
    Notified,
    TimedOut,
}

impl<T> QueueState<T> {
    fn new(backlog: Backlog<T>) -> Self {
        let spent = VecDeque::new();
        let reader = ReaderState::Busy;
        Self { backlog, spent, reader, closed: false, flushes: Vec::new(), ended: false }
    }

    fn is_idle(&self) -> bool {
        self.backlog.is_empty() && !self.closed && self.flushes.is_empty()
    }

    /// Marks the reader as awake if it has to be woken, and returns the state in which it slept (invariant 2). Returns
    /// `Busy` if the reader does not have to be woken.
    fn mark_awake(&mut self, urgent: bool) -> ReaderState {
        match self.reader {
            ReaderState::Busy => ReaderState::Busy,
            ReaderState::Lingers if !urgent => ReaderState::Busy,
            ReaderState::Lingers | ReaderState::Sleeps | ReaderState::Waits(_) => {
                mem::replace(&mut self.reader, ReaderState::Busy)
            }
        }
    }
}
