//! A run as a stream of its events, and then its result (R11).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use emitree_emitter::{EventRecord, IntoMatcher};
use futures_core::Stream;

use crate::tap::{Heard, Tap, Tapping};
use crate::{Result, Run, Runnable};

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
/// events are held until the output has passed, and those of attempts that were given up, by the run or by one below it, are not
/// shown; otherwise they are shown as they come, and `attempt_discarded` takes back what came since `start`.
/// [`held`](Self::held) chooses.
///
/// # Events of runs below
///
/// A name without a dot is one of the run's own events. Those of runs below have paths: `events("**.new_token")`, or
/// `events("model.new_token")`.
#[must_use = "a stream does nothing until it is polled"]
pub struct RunStream<'a, R: Runnable> {
    run: Option<Run<'a, R>>,
    result: Option<Result<R::Output>>,
    tap: Arc<Tap>,
}

impl<'a, R: Runnable> Run<'a, R> {
    /// The run as a stream of those of its events that match, and then its result. A matcher that is none comes out as
    /// the result. `"new_token"` is its own, `"**.new_token"` also that of every run below.
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
    /// Keeps at most so many events that were not read yet; 1,024 unless told otherwise, at least 1. Where some were taken back,
    /// as many again may be kept of those before.
    pub fn capacity(self, capacity: usize) -> Self {
        self.tap.set_capacity(capacity);
        self
    }

    /// Holds events until the output has passed, or shows them as they come.
    pub fn held(self, held: bool) -> Self {
        self.tap.set_held(held);
        self
    }

    /// Drives the run; true if it is over.
    fn drive(&mut self, cx: &mut TaskContext<'_>) -> bool {
        let Some(run) = &mut self.run else { return true };
        if let Poll::Ready(result) = Pin::new(run).poll(cx) {
            (self.run, self.result) = (None, Some(result));
            self.tap.pass();
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
            if let Poll::Ready(Some(heard)) = self.tap.poll_heard(cx) {
                return Poll::Ready(Some(item(heard)));
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

fn item<O>(heard: Heard) -> StreamItem<O> {
    match heard {
        Heard::Event(event) => StreamItem::Event(event),
        Heard::Missed(missed) => StreamItem::Missed(missed),
    }
}

impl<R: Runnable> fmt::Debug for RunStream<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunStream").field("run", &self.run).finish_non_exhaustive()
    }
}
