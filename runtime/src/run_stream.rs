//! A run as a stream of its events, and then its result (R11).

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use emitree_emitter::{
    Event, EventMeta, EventRecord, EventStream, IntoMatcher, Matcher, MatcherError, Options, Record,
};
use futures_core::Stream;
use parking_lot::Mutex;

use crate::attempt::AttemptDiscarded;
use crate::context::WeakRun;
use crate::{Middleware, Result, Run, RunContext, Runnable, Stage};

/// As many events as are kept for a reader, unless told otherwise.
const CAPACITY: usize = 1024;

/// What comes out of a [`RunStream`].
#[derive(Debug)]
#[non_exhaustive]
pub enum StreamItem<O> {
    /// An event of the run, or of one below.
    Event(Box<EventRecord>),
    /// So many events were missed here, because they came faster than they were read.
    Missed(u64),
    /// The run's result; nothing comes after it.
    Result(Result<O>),
}

/// A run under way, as a stream: its events as they come, then its result.
///
/// Made by [`Run::events`] and [`Run::into_stream`]. Polling it drives the run, and reading is what lets the run go on:
/// it is polled only when no event is left to be read. Events that one poll of it, its tasks or other threads emit
/// beyond the capacity take the place of the oldest, and are counted. Dropping the stream drops the run, and aborts it
/// (R8).
///
/// ```
/// use emitree_runtime::{RunContext, Runnable, StreamItem, runnable_fn};
/// use futures_util::StreamExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let write = runnable_fn("write", |words: Vec<String>, ctx: RunContext| async move {
///     for word in &words {
///         ctx.emitter().emit("new_token", &mut word.clone()).await?;
///     }
///     Ok(words.len())
/// });
///
/// let mut text = String::new();
/// let mut stream = write.run(vec!["to".into(), "be".into()]).events("new_token");
/// while let Some(item) = stream.next().await {
///     match item {
///         StreamItem::Event(token) => text += &token.payload::<String>().unwrap(),
///         StreamItem::Result(written) => assert_eq!(written.unwrap(), 2),
///         other => panic!("{other:?}"),
///     }
/// }
/// assert_eq!(text, "tobe");
/// # }
/// ```
///
/// # Attempts that start again
///
/// Where an output middleware may ask for a retry ([`max_middleware_retries`](Run::max_middleware_retries) is not 0),
/// events are held until the output has passed, and those of attempts that were given up are not shown; otherwise they
/// are shown as they come, and `attempt_discarded` takes back what came since `start`. [`held`](Self::held) chooses.
#[must_use = "a stream does nothing until it is polled"]
pub struct RunStream<'a, R: Runnable> {
    run: Option<Run<'a, R>>,
    result: Option<Result<R::Output>>,
    tap: Arc<Tap>,
}

impl<'a, R: Runnable> Run<'a, R> {
    /// The run as a stream of those of its events that match, and then its result. A matcher that is none comes out as
    /// the result.
    pub fn events(self, matcher: impl IntoMatcher) -> RunStream<'a, R> {
        let tap = Arc::new(Tap::new(matcher.into_matcher()));
        RunStream { run: Some(self.middleware(Tapping(Arc::clone(&tap)))), result: None, tap }
    }

    /// The run as a stream of all its events, and of those below, and then its result.
    pub fn into_stream(self) -> RunStream<'a, R> {
        self.events("*.*")
    }
}

impl<R: Runnable> RunStream<'_, R> {
    /// Keeps at most so many events that were not read yet; 1,024 unless told otherwise, at least 1.
    pub fn capacity(self, capacity: usize) -> Self {
        self.tap.state.lock().capacity = capacity.max(1);
        self
    }

    /// Holds events until the output has passed, or shows them as they come.
    pub fn held(self, held: bool) -> Self {
        self.tap.state.lock().held = Some(held);
        self
    }

    /// Drives the run; true if it is over.
    fn drive(&mut self, cx: &mut TaskContext<'_>) -> bool {
        let Some(run) = &mut self.run else { return true };
        if let Poll::Ready(result) = Pin::new(run).poll(cx) {
            (self.run, self.result) = (None, Some(result));
            self.tap.state.lock().passed = true;
        }
        self.run.is_none()
    }
}

/// Nothing in it is pinned but the boxed future of the work.
impl<R: Runnable> Unpin for RunStream<'_, R> {}

impl<R: Runnable> Stream for RunStream<'_, R> {
    type Item = StreamItem<R::Output>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        let mut driven = false;
        loop {
            if let Poll::Ready(Some(record)) = self.tap.poll_record(cx) {
                return Poll::Ready(Some(item(record)));
            }
            if self.run.is_none() {
                return Poll::Ready(self.result.take().map(StreamItem::Result));
            }
            if driven {
                return Poll::Pending;
            }
            // Once, and then another look: what it has emitted is to be read now.
            driven = !self.drive(cx);
        }
    }
}

fn item<O>(record: Record) -> StreamItem<O> {
    match record {
        Record::Event(event) => StreamItem::Event(event),
        Record::Gap(gap) => StreamItem::Missed(gap.lost),
        // Of a kind that is not known here.
        _ => StreamItem::Missed(1),
    }
}

impl<R: Runnable> fmt::Debug for RunStream<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunStream").field("run", &self.run).finish_non_exhaustive()
    }
}

/// Listens on the run, from before its `start`.
struct Tap {
    matcher: Result<Matcher, MatcherError>,
    state: Mutex<State>,
}

struct State {
    capacity: usize,
    /// Once the run has begun. It holds what listens here.
    run: Option<WeakRun>,
    held: Option<bool>,
    events: Option<EventStream>,
    /// Read before the others.
    kept: VecDeque<Record>,
    /// The work is over: nothing will be taken back.
    passed: bool,
}

impl Tap {
    fn new(matcher: Result<Matcher, MatcherError>) -> Self {
        let (run, held, events, kept) = (None, None, None, VecDeque::new());
        Self { matcher, state: Mutex::new(State { capacity: CAPACITY, run, held, events, kept, passed: false }) }
    }

    /// The next record that may be shown.
    fn poll_record(&self, cx: &mut TaskContext<'_>) -> Poll<Option<Record>> {
        let mut state = self.state.lock();
        if state.is_holding() { Poll::Pending } else { state.poll_record(cx) }
    }

    /// Takes back what an attempt has emitted, if it is still held: all but the run's own `start`.
    fn discard(&self) {
        let mut state = self.state.lock();
        if !state.is_holding() {
            return;
        }
        let run_id = state.run().map(|run| run.run_id());
        let is_start = |event: &EventRecord| {
            Stage::of_record(event) == Some(Stage::Start) && event.trace.map(|trace| trace.run_id) == run_id
        };
        let mut cx = TaskContext::from_waker(Waker::noop());
        let mut kept = VecDeque::new();
        while let Poll::Ready(Some(record)) = state.poll_record(&mut cx) {
            if matches!(&record, Record::Event(event) if is_start(event)) {
                kept.push_back(record);
            }
        }
        state.kept = kept;
    }
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

    fn poll_record(&mut self, cx: &mut TaskContext<'_>) -> Poll<Option<Record>> {
        match (self.kept.pop_front(), &mut self.events) {
            (Some(record), _) => Poll::Ready(Some(record)),
            (None, Some(events)) => Pin::new(events).poll_next(cx),
            (None, None) => Poll::Pending,
        }
    }
}

/// What binds it.
struct Tapping(Arc<Tap>);

impl Middleware for Tapping {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let (discarding, passing) = (Arc::clone(&self.0), Arc::clone(&self.0));
        // Before the stream listens, so that it is asked before: what it hears from then on is the next attempt's.
        ctx.emitter()
            .with(Options::new().priority(i32::MAX))
            .observe(AttemptDiscarded::NAME, move |_: &AttemptDiscarded, _: &EventMeta<'_>| discarding.discard())?;
        let is_end = |meta: &EventMeta<'_>| matches!(Stage::of(meta), Some(Stage::Success | Stage::Error));
        ctx.emitter().observe(is_end, move |_: &dyn emitree_emitter::AnyEvent, _: &EventMeta<'_>| {
            passing.state.lock().passed = true;
        })?;
        let mut state = self.0.state.lock();
        let matcher = self.0.matcher.clone()?;
        state.events = Some(ctx.emitter().stream(matcher, state.capacity)?);
        state.run = Some(ctx.downgrade());
        Ok(())
    }

    fn name(&self) -> &str {
        "events"
    }
}
