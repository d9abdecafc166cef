//! What a stream hears of a run, and holds until it is sure of it (R11, M7).
//!
//! 1. An event is cloned, or made a record, dropped and announced to the reader outside of the lock: all of that is the
//!    code of users or of an executor.
//! 2. At most `capacity` events are kept. What is lost are the oldest, so `missed` counts events from before all that are kept;
//!    one whose payload panics when it is cloned is counted there too.
//! 3. An event that is held knows in which runs it was emitted: a run that gives an attempt up takes back what it has emitted,
//!    and what the runs below it have, which may be over by then.

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

/// As many events as are kept for a reader, unless told otherwise.
const CAPACITY: usize = 1024;

/// Listens on the run, from before its `start`, and keeps an `E` of each event.
pub(crate) struct StreamBuffer<E> {
    state: Mutex<BufferState<E>>,
}

struct BufferState<E> {
    capacity: usize,
    nested: bool,
    /// Once the run has begun. It holds what listens here.
    run: Option<WeakRun>,
    held: Option<bool>,
    kept: VecDeque<KeptEvent<E>>,
    missed: u64,
    /// The work is over: nothing will be taken back.
    is_work_done: bool,
    /// Nobody reads any more.
    closed: bool,
    reader: Option<Waker>,
}

/// What there is to be read.
pub(crate) enum BufferedItem<E> {
    Event(E),
    /// So many events were lost here.
    Missed(u64),
}

struct KeptEvent<E> {
    event: E,
    origin: EventOrigin,
}

/// Where an event comes from.
struct EventOrigin {
    /// The run that emitted it, if one did.
    own: Option<Uuid>,
    is_start: bool,
    /// The runs that it happened in, innermost first; none if it is not held.
    runs: SmallVec<[Uuid; 4]>,
}

impl EventOrigin {
    /// Of an event that is being heard, inside of its run.
    fn of(meta: &EventMeta<'_>, is_held: bool) -> Self {
        let current = if is_held { RunContext::current() } else { None };
        let runs = successors(current.as_ref(), |run| run.parent()).map(RunContext::run_id).collect();
        let own = meta.trace().map(|trace| trace.run_id);
        Self { own, is_start: Stage::of(meta) == Some(Stage::Start), runs }
    }

    /// Whether it is from an attempt of that run, or from below; the `start` of the run stands for all attempts.
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

    /// The work is over.
    pub(crate) fn on_work_done(&self) {
        let mut state = self.state.lock();
        state.is_work_done = true;
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Nobody reads any more: keeps nothing from now on.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let unread = (mem::take(&mut state.kept), state.reader.take());
        drop(state);
        drop(unread);
    }

    /// The next that may be shown.
    pub(crate) fn poll_next(&self, cx: &TaskContext<'_>) -> Poll<BufferedItem<E>> {
        let is_holding = self.is_holding();
        let mut state = self.state.lock();
        if let Some(item) = state.next(is_holding) {
            return Poll::Ready(item);
        }
        drop(state);
        // Cloned and dropped outside of the lock (invariant 1), and then another look: what came meanwhile woke nobody.
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

    /// Keeps an event.
    fn receive(&self, meta: &EventMeta<'_>, event: impl FnOnce() -> E) {
        if self.state.lock().closed {
            return;
        }
        let origin = EventOrigin::of(meta, self.is_holding());
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

    /// Takes back what an attempt of a run has emitted, and the runs below it, if it is still held (invariant 3).
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

    /// Whether what is heard may have to be taken back, and is not shown before.
    fn is_holding(&self) -> bool {
        let state = self.state.lock();
        let (is_work_done, held, run) = (state.is_work_done, state.held, state.run.clone());
        drop(state);
        // Looked at outside of the lock: this may be the last to hold the run.
        let may_retry = |run: RunContext| run.bindings().existing().is_some_and(|chain| chain.may_retry_output());
        !is_work_done && held.unwrap_or_else(|| run.and_then(|run| run.upgrade()).is_some_and(may_retry))
    }
}

/// Counts an event as missed whose payload panics when it is cloned.
struct CountMissedOnDrop<'a, E>(&'a StreamBuffer<E>);

impl<E> Drop for CountMissedOnDrop<'_, E> {
    fn drop(&mut self) {
        self.0.state.lock().missed += 1;
    }
}

impl<E> BufferState<E> {
    /// What stands first, unless it is held.
    fn next(&mut self, is_holding: bool) -> Option<BufferedItem<E>> {
        if is_holding && !self.is_work_done {
            return None;
        }
        match mem::take(&mut self.missed) {
            0 => self.kept.pop_front().map(|kept| BufferedItem::Event(kept.event)),
            missed => Some(BufferedItem::Missed(missed)),
        }
    }

    /// Gives back what there is no room for: the oldest (invariant 2).
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

/// What binds it.
pub(crate) struct StreamBinding<E> {
    pub(crate) buffer: Arc<StreamBuffer<E>>,
    pub(crate) matcher: Result<Matcher, MatcherError>,
    pub(crate) listener: MakeListener<E>,
}

/// Makes the listener that keeps events; the flag says whether those of runs below are asked for.
pub(crate) type MakeListener<E> = fn(Arc<StreamBuffer<E>>, Matcher, bool) -> Registration;

/// Keeps events of any type, as records.
pub(crate) fn records(buffer: Arc<StreamBuffer<Box<EventRecord>>>, matcher: Matcher, _: bool) -> Registration {
    Options::new().observe(matcher, move |event: &dyn AnyEvent, meta: &EventMeta<'_>| {
        buffer.receive(meta, || Box::new(meta.to_record(event)));
    })
}

/// Keeps events of one type, as they are.
pub(crate) fn payloads<T: Event + Clone>(buffer: Arc<StreamBuffer<T>>, matcher: Matcher, nested: bool) -> Registration {
    let listener = move |event: &T, meta: &EventMeta<'_>| buffer.receive(meta, || event.clone());
    if nested {
        Options::new().nested(true).observe(|meta: &EventMeta<'_>| is_named(meta, T::NAME.as_str()), listener)
    } else {
        Options::new().observe(matcher, listener)
    }
}

/// Whether the path ends with the name, which may have a dot.
fn is_named(meta: &EventMeta<'_>, name: &str) -> bool {
    let is_last = name.ends_with(meta.name());
    let before = if is_last { meta.path().strip_suffix(name) } else { None };
    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

impl<E: Send + 'static> Middleware for StreamBinding<E> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let Self { buffer, matcher, listener } = self;
        // Before the stream listens, so that it is asked before: what it hears from then on is the next attempt's.
        let first = || Options::new().priority(i32::MAX).nested(true);
        let discard_from = Arc::clone(buffer);
        let is_discarded = |meta: &EventMeta<'_>| meta.name() == AttemptDiscarded::NAME.as_str();
        let take_back = first().observe(is_discarded, move |_: &AttemptDiscarded, meta: &EventMeta<'_>| {
            if let Some(trace) = meta.trace() {
                discard_from.discard(trace.run_id);
            }
        });
        // As a pipe is: it stays when the listeners of the run are removed.
        ctx.emitter().register(take_back.for_pipe())?;
        let until_done = Arc::clone(buffer);
        let is_end = |meta: &EventMeta<'_>| matches!(Stage::of(meta), Some(Stage::Success | Stage::Error));
        let marks_done =
            Options::new().observe(is_end, move |_: &dyn AnyEvent, _: &EventMeta<'_>| until_done.on_work_done());
        ctx.emitter().register(marks_done.for_pipe())?;
        let mut state = buffer.state.lock();
        state.run = Some(ctx.downgrade());
        let nested = state.nested;
        drop(state);
        ctx.emitter().register(listener(Arc::clone(buffer), matcher.clone()?, nested).for_pipe())?;
        Ok(())
    }

    fn name(&self) -> &str {
        "events"
    }
}

/// Which events it takes.
impl<E> fmt::Debug for StreamBinding<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.matcher {
            Ok(matcher) => matcher.fmt(f),
            Err(error) => error.fmt(f),
        }
    }
}
