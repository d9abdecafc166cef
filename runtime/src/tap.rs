//! What a stream hears of a run, and holds until it is sure of it (R11, M7).
//!
//! Held events know in which runs they were emitted: a run that gives an attempt up takes back what it has emitted, and what
//! the runs below it have, which may be over by then.

use std::collections::VecDeque;
use std::fmt;
use std::iter::successors;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use emitree_emitter::{
    AnyEvent, Event, EventMeta, EventRecord, EventStream, Matcher, MatcherError, Options, SinkRecord,
};
use futures_core::Stream;
use parking_lot::Mutex;
use smallvec::SmallVec;
use uuid::Uuid;

use crate::attempt::AttemptDiscarded;
use crate::context::WeakRun;
use crate::{Middleware, Result, RunContext, Stage};

/// As many events as are kept for a reader, unless told otherwise.
const CAPACITY: usize = 1024;

/// Listens on the run, from before its `start`.
pub(crate) struct Tap {
    matcher: Result<Matcher, MatcherError>,
    state: Mutex<State>,
}

struct State {
    capacity: usize,
    /// Once the run has begun. It holds what listens here.
    run: Option<WeakRun>,
    held: Option<bool>,
    events: Option<EventStream>,
    /// Where those that are held come from, about in order.
    origins: VecDeque<Origin>,
    /// Read before the others: what was not taken back.
    kept: VecDeque<(Heard, Option<Origin>)>,
    /// The work is over: nothing will be taken back.
    passed: bool,
}

/// What there is to be read.
pub(crate) enum Heard {
    Event(Box<EventRecord>),
    /// So many events were lost here.
    Missed(u64),
}

impl Heard {
    const fn events(&self) -> u64 {
        match self {
            Self::Event(_) => 1,
            Self::Missed(missed) => *missed,
        }
    }
}

impl From<SinkRecord> for Heard {
    fn from(record: SinkRecord) -> Self {
        match record {
            SinkRecord::Event(event) => Self::Event(event),
            SinkRecord::Gap(gap) => Self::Missed(gap.lost),
            // Of a kind that is not known here.
            _ => Self::Missed(1),
        }
    }
}

/// The runs that an event happened in, innermost first.
struct Origin {
    event: Uuid,
    runs: SmallVec<[Uuid; 4]>,
}

impl Origin {
    /// Of an event that is being heard, inside of its run.
    fn of(meta: &EventMeta<'_>) -> Self {
        let current = RunContext::current();
        let runs = successors(current.as_ref(), |run| run.parent()).map(RunContext::run_id);
        Self { event: meta.id(), runs: runs.collect() }
    }
}

impl Tap {
    pub(crate) fn new(matcher: Result<Matcher, MatcherError>) -> Self {
        let (kept, origins) = (VecDeque::new(), VecDeque::new());
        let state = State { capacity: CAPACITY, run: None, held: None, events: None, kept, origins, passed: false };
        Self { matcher, state: Mutex::new(state) }
    }

    pub(crate) fn set_capacity(&self, capacity: usize) {
        self.state.lock().capacity = capacity.max(1);
    }

    pub(crate) fn set_held(&self, held: bool) {
        self.state.lock().held = Some(held);
    }

    /// The work is over.
    pub(crate) fn pass(&self) {
        let mut state = self.state.lock();
        state.passed = true;
        state.origins.clear();
    }

    /// The next that may be shown.
    pub(crate) fn poll_heard(&self, cx: &mut TaskContext<'_>) -> Poll<Option<Heard>> {
        let mut state = self.state.lock();
        if state.is_holding() { Poll::Pending } else { state.poll_next(cx).map(|next| Some(next?.0)) }
    }

    /// Notes where an event comes from that will be held.
    fn note(&self, meta: &EventMeta<'_>) {
        let mut state = self.state.lock();
        if state.is_holding() {
            // Of more, the oldest are lost.
            if state.origins.len() == state.capacity {
                state.origins.pop_front();
            }
            state.origins.push_back(Origin::of(meta));
        }
    }

    /// Takes back what an attempt of a run has emitted, and the runs below it, if it is still held: all but its own `start`.
    fn discard(&self, by: Uuid) {
        let mut state = self.state.lock();
        if !state.is_holding() {
            return;
        }
        let mut cx = TaskContext::from_waker(Waker::noop());
        let mut kept = VecDeque::new();
        while let Poll::Ready(Some((heard, origin))) = state.poll_next(&mut cx) {
            if !is_of_attempt(&heard, origin.as_ref(), by) {
                kept.push_back((heard, origin));
            }
        }
        state.keep(kept);
    }
}

/// Whether it was emitted in an attempt of that run, or below.
fn is_of_attempt(heard: &Heard, origin: Option<&Origin>, by: Uuid) -> bool {
    // What was lost was lost to whoever reads.
    let Heard::Event(event) = heard else { return false };
    let trace = event.trace.as_ref();
    let is_own = trace.is_some_and(|trace| trace.run_id == by);
    let is_its = origin.map_or(is_own, |origin| origin.runs.contains(&by));
    is_its && !(is_own && Stage::of_record(event) == Some(Stage::Start))
}

impl State {
    fn run(&self) -> Option<RunContext> {
        self.run.as_ref()?.upgrade()
    }

    /// Whether what is heard may have to be taken back, and is not shown before.
    fn is_holding(&self) -> bool {
        let may_retry = |run: RunContext| run.slot().existing().is_some_and(|chain| chain.may_retry_output());
        !self.passed && self.held.unwrap_or_else(|| self.run().is_some_and(may_retry))
    }

    fn poll_next(&mut self, cx: &mut TaskContext<'_>) -> Poll<Option<(Heard, Option<Origin>)>> {
        match (self.kept.pop_front(), &mut self.events) {
            (Some(kept), _) => Poll::Ready(Some(kept)),
            (None, Some(events)) => Pin::new(events).poll_next(cx).map(|record| {
                let heard = record?.into();
                let origin = self.origin_of(&heard);
                Some((heard, origin))
            }),
            (None, None) => Poll::Pending,
        }
    }

    /// Events that were noted before it may come later: those of several threads overtake each other. The origins of those
    /// that were lost stay until there are too many.
    fn origin_of(&mut self, heard: &Heard) -> Option<Origin> {
        let Heard::Event(event) = heard else { return None };
        let at = self.origins.iter().position(|origin| origin.event == event.id)?;
        self.origins.remove(at)
    }

    /// Of more than there is room for, the oldest are lost.
    fn keep(&mut self, mut kept: VecDeque<(Heard, Option<Origin>)>) {
        let too_many = kept.len().saturating_sub(self.capacity);
        let missed = kept.drain(..too_many).map(|(heard, _)| heard.events()).sum();
        if missed > 0 {
            kept.push_front((Heard::Missed(missed), None));
        }
        self.kept = kept;
    }
}

/// What binds it.
pub(crate) struct Tapping(pub(crate) Arc<Tap>);

impl Middleware for Tapping {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let Self(tap) = self;
        // Before the stream listens, so that it is asked before: what it hears from then on is the next attempt's.
        let first = || Options::new().priority(i32::MAX).nested(true);
        let discarding = Arc::clone(tap);
        let is_discarded = |meta: &EventMeta<'_>| meta.name() == AttemptDiscarded::NAME.as_str();
        ctx.emitter().with(first()).observe(is_discarded, move |_: &AttemptDiscarded, meta: &EventMeta<'_>| {
            if let Some(trace) = meta.trace() {
                discarding.discard(trace.run_id);
            }
        })?;
        let passing = Arc::clone(tap);
        let is_end = |meta: &EventMeta<'_>| matches!(Stage::of(meta), Some(Stage::Success | Stage::Error));
        ctx.emitter().observe(is_end, move |_: &dyn AnyEvent, _: &EventMeta<'_>| passing.pass())?;
        let (matcher, noting) = (tap.matcher.clone()?, Arc::clone(tap));
        ctx.emitter().observe(matcher.clone(), move |_: &dyn AnyEvent, meta: &EventMeta<'_>| noting.note(meta))?;
        let mut state = tap.state.lock();
        state.events = Some(ctx.emitter().stream(matcher, state.capacity)?);
        state.run = Some(ctx.downgrade());
        Ok(())
    }

    fn name(&self) -> &str {
        "events"
    }
}

/// Which events it takes.
impl fmt::Debug for Tapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.matcher {
            Ok(matcher) => matcher.fmt(f),
            Err(error) => error.fmt(f),
        }
    }
}
