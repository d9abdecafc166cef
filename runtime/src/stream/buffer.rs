//! The buffer between a run and the reader of its stream (R11, M7).
//!
//! 1. The lock is not held while events are cloned, converted into records or dropped, or while the reader is woken,
//!    because all of this may call user code or an executor.
//! 2. The buffer keeps at most `capacity` events. The oldest events are dropped first and counted in `missed`, so the
//!    missed events came before the kept events. An event whose clone panics is counted immediately, possibly before
//!    older events are read.
//! 3. While events are held back, each is stored with the runs in which it was emitted. When a run gives up an attempt,
//!    the events of the attempt are removed, including events of runs below that have already ended.

use std::collections::VecDeque;
use std::fmt;
use std::iter::successors;
use std::mem;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use emitree_emitter::{AnyEvent, Event, EventMeta, EventRecord, Matcher, MatcherError, Options, Registration};
use parking_lot::Mutex;
use smallvec::SmallVec;
use uuid::Uuid;

use crate::chain::attempts::AttemptDiscarded;
use crate::context::WeakRun;
use crate::{Middleware, Result, RunContext, Stage};

/// The default capacity.
const CAPACITY: usize = 1024;

/// Buffers an `E` for each matching event that is emitted after the stream's listeners were bound.
pub(crate) struct StreamBuffer<E> {
    state: Mutex<BufferState<E>>,
}

struct BufferState<E> {
    capacity: usize,
    nested: bool,
    /// The run, once it has begun. Weak, because the run owns the listeners that own the buffer.
    run: Option<WeakRun>,
    held: Option<bool>,
    kept: VecDeque<KeptEvent<E>>,
    missed: u64,
    /// Set when the work is over. From then on, events are neither held back nor discarded with their attempt.
    is_work_done: bool,
    /// Set when the stream is dropped.
    closed: bool,
    reader: Option<Waker>,
}

/// The next item for the reader.
pub(crate) enum BufferedItem<E> {
    Event(E),
    /// The number of events that were lost since the last `Missed`.
    Missed(u64),
}

struct KeptEvent<E> {
    event: E,
    origin: EventOrigin,
}

/// The runs in which an event was emitted.
struct EventOrigin {
    /// The run that emitted the event, if it was emitted by a run.
    own: Option<Uuid>,
    is_start: bool,
    /// The run in which the event was emitted and the runs above, innermost first. Empty unless events are held back.
    runs: SmallVec<[Uuid; 4]>,
}

impl EventOrigin {
    /// Returns the origin of an event. Must be called in a listener of the event, because the current run is then the
    /// event's run.
    fn of(meta: &EventMeta<'_>, is_held: bool) -> Self {
        let current = if is_held { RunContext::current() } else { None };
        let runs = successors(current.as_ref(), |run| run.parent()).map(RunContext::run_id).collect();
        let own = meta.trace().map(|trace| trace.run_id);
        Self { own, is_start: Stage::of(meta) == Some(Stage::Start), runs }
    }

    /// Returns `true` if the event belongs to an attempt of run `by`. The run's own `start` belongs to no attempt.
    fn is_of_attempt(&self, by: Uuid) -> bool {
        let is_own = self.own == Some(by);
        (is_own || self.runs.contains(&by)) && !(is_own && self.is_start)
    }
}

impl<E> StreamBuffer<E> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(BufferState {
                capacity: CAPACITY,
                nested: false,
                run: None,
                held: None,
                kept: VecDeque::new(),
                missed: 0,
                is_work_done: false,
                closed: false,
                reader: None,
            }),
        }
    }

    pub(crate) fn set_capacity(&self, capacity: usize) {
        self.state.lock().capacity = capacity.max(1);
    }

    pub(crate) fn set_held(&self, held: bool) {
        self.state.lock().held = Some(held);
    }

    pub(crate) fn set_nested(&self, nested: bool) {
        self.state.lock().nested = nested;
    }

    /// Marks the work as over, and thereby releases the events that were held back.
    pub(crate) fn on_work_done(&self) {
        let mut state = self.state.lock();
        state.is_work_done = true;
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Drops all buffered events. No further events are buffered.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let unread = (mem::take(&mut state.kept), state.reader.take());
        // Unlock before user values are dropped (invariant 1).
        drop(state);
        drop(unread);
    }

    /// Returns the next item that the reader may see, or registers the reader's waker.
    pub(crate) fn poll_next(&self, cx: &TaskContext<'_>) -> Poll<BufferedItem<E>> {
        let is_holding = self.is_holding();
        let mut state = self.state.lock();
        if let Some(item) = state.next(is_holding) {
            return Poll::Ready(item);
        }
        drop(state);
        // The waker is cloned outside the lock (invariant 1). Look again afterwards: an event that arrived meanwhile
        // has not woken the reader.
        let waker = cx.waker().clone();
        let mut state = self.state.lock();
        if let Some(item) = state.next(is_holding) {
            return Poll::Ready(item);
        }
        let before = state.reader.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }

    /// Buffers the event that `event` returns.
    fn receive(&self, meta: &EventMeta<'_>, event: impl FnOnce() -> E) {
        if self.state.lock().closed {
            return;
        }
        let origin = EventOrigin::of(meta, self.is_holding());
        // If `event` panics, the guard counts the event as missed (invariant 2).
        let unless_missed = CountMissedOnDrop(self);
        let kept = KeptEvent { event: event(), origin };
        mem::forget(unless_missed);
        let mut state = self.state.lock();
        let lost = state.keep(kept);
        let reader = state.reader.take();
        drop(state);
        drop(lost);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Removes the events of an attempt of run `by`, if events are still held back (invariant 3).
    fn discard(&self, by: Uuid) {
        if !self.is_holding() {
            return;
        }
        let mut state = self.state.lock();
        let kept = mem::take(&mut state.kept);
        let (discarded, kept): (VecDeque<_>, VecDeque<_>) =
            kept.into_iter().partition(|kept| kept.origin.is_of_attempt(by));
        state.kept = kept;
        drop(state);
        drop(discarded);
    }

    /// Returns `true` while events are held back, in case the attempt that emitted them is given up.
    fn is_holding(&self) -> bool {
        let state = self.state.lock();
        let is_work_done = state.is_work_done;
        let held = state.held;
        let run = state.run.clone();
        drop(state);
        // Upgrade the run outside the lock: the upgraded handle may be the last one, and dropping it then drops the
        // run's values (invariant 1).
        let may_retry = |run: RunContext| run.existing_chain().is_some_and(|chain| chain.may_retry_output());
        !is_work_done && held.unwrap_or_else(|| run.and_then(|run| run.upgrade()).is_some_and(may_retry))
    }
}

/// A guard that counts an event as missed when the guard is dropped.
struct CountMissedOnDrop<'a, E>(&'a StreamBuffer<E>);

impl<E> Drop for CountMissedOnDrop<'_, E> {
    fn drop(&mut self) {
        self.0.state.lock().missed += 1;
    }
}

impl<E> BufferState<E> {
    /// Takes the number of missed events if there are any, or else the first event. Takes nothing while events are held
    /// back.
    fn next(&mut self, is_holding: bool) -> Option<BufferedItem<E>> {
        if is_holding && !self.is_work_done {
            return None;
        }
        match mem::take(&mut self.missed) {
            0 => self.kept.pop_front().map(|kept| BufferedItem::Event(kept.event)),
            missed => Some(BufferedItem::Missed(missed)),
        }
    }

    /// Adds an event, and removes the oldest event if the buffer is full. If the buffer is closed, the event is not
    /// added. Returns the event that was removed or not added, if any; the caller has to drop it outside the lock
    /// (invariants 1 and 2).
    fn keep(&mut self, kept: KeptEvent<E>) -> Option<KeptEvent<E>> {
        if self.closed {
            return Some(kept);
        }
        let is_full = self.kept.len() >= self.capacity;
        let lost = if is_full { self.kept.pop_front() } else { None };
        self.missed += u64::from(is_full);
        self.kept.push_back(kept);
        lost
    }
}

/// The middleware that registers the listeners of a stream.
pub(crate) struct StreamBinding<E> {
    pub(crate) buffer: Arc<StreamBuffer<E>>,
    pub(crate) matcher: Result<Matcher, MatcherError>,
    pub(crate) listener: MakeListener<E>,
}

/// A function that creates a stream's listener. The `bool` argument is the value set by `RunStream::nested`, or else
/// `false`.
pub(crate) type MakeListener<E> = fn(Arc<StreamBuffer<E>>, Matcher, bool) -> Registration;

/// Creates an observer that buffers records of events of any type.
pub(crate) fn records(buffer: Arc<StreamBuffer<Box<EventRecord>>>, matcher: Matcher, _: bool) -> Registration {
    Options::new().persistent().observe(matcher, move |event: &dyn AnyEvent, meta: &EventMeta<'_>| {
        buffer.receive(meta, || Box::new(meta.to_record(event)));
    })
}

/// Creates an observer that buffers clones of events of one type.
pub(crate) fn payloads<T: Event + Clone>(buffer: Arc<StreamBuffer<T>>, matcher: Matcher, nested: bool) -> Registration {
    let listener = move |event: &T, meta: &EventMeta<'_>| buffer.receive(meta, || event.clone());
    let options = Options::new().persistent();
    if nested {
        options.nested(true).observe(|meta: &EventMeta<'_>| is_named(meta, T::NAME.as_str()), listener)
    } else {
        options.observe(matcher, listener)
    }
}

/// Returns `true` if the path of the event ends with the name, which may have dots.
fn is_named(meta: &EventMeta<'_>, name: &str) -> bool {
    let is_last = name.ends_with(meta.name());
    let before = if is_last { meta.path().strip_suffix(name) } else { None };
    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

impl<E: Send + 'static> Middleware for StreamBinding<E> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let Self { buffer, matcher, listener } = self;
        // This observer is registered first and with the highest priority, so that the events of the discarded attempt
        // are removed before the stream's own listener receives `attempt_discarded`. That event and all later events
        // are kept.
        let first = || Options::new().priority(i32::MAX).nested(true).persistent();
        let discard_from = Arc::clone(buffer);
        let is_discarded = |meta: &EventMeta<'_>| meta.name() == AttemptDiscarded::NAME.as_str();
        let take_back = first().observe(is_discarded, move |_: &AttemptDiscarded, meta: &EventMeta<'_>| {
            if let Some(trace) = meta.trace() {
                discard_from.discard(trace.run_id);
            }
        });
        // All three are persistent, so that `reset` and `off_matching` do not remove them with the run's other listeners.
        ctx.emitter().register(take_back)?;
        let until_done = Arc::clone(buffer);
        let is_end = |meta: &EventMeta<'_>| matches!(Stage::of(meta), Some(Stage::Success | Stage::Error));
        let marks_done = Options::new()
            .persistent()
            .observe(is_end, move |_: &dyn AnyEvent, _: &EventMeta<'_>| until_done.on_work_done());
        ctx.emitter().register(marks_done)?;
        let mut state = buffer.state.lock();
        state.run = Some(ctx.downgrade());
        let nested = state.nested;
        drop(state);
        ctx.emitter().register(listener(Arc::clone(buffer), matcher.clone()?, nested))?;
        Ok(())
    }

    fn name(&self) -> &str {
        "events"
    }
}

/// Prints the matcher, or the error of an invalid matcher.
impl<E> fmt::Debug for StreamBinding<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.matcher {
            Ok(matcher) => matcher.fmt(f),
            Err(error) => error.fmt(f),
        }
    }
}
