//! A run as a stream of its events, and then its result (R11).

pub(crate) mod buffer;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use emitree_emitter::{Event, EventRecord, IntoMatcher, Matcher, Options};
use futures_core::Stream;

use crate::context::current::enter_some;
use crate::stream::buffer::{BufferedItem, MakeListener, StreamBinding, StreamBuffer, payloads, records};
use crate::{Result, Run, RunContext, Runnable};

/// An item of a [`RunStream`].
///
/// `E` is what the stream gives of an event: its record, or with [`Run::events_of`] its payload.
#[derive(Debug)]
#[non_exhaustive]
pub enum StreamItem<O, E = Box<EventRecord>> {
    /// An event of the run, or of a run below it.
    Event(E),
    /// So many events were missed here, because they came faster than they were read.
    Missed(u64),
    /// The run's result; nothing comes after it.
    Result(Result<O>),
}

/// A run under way, as a stream: its events as they come, then its result.
///
/// Made by [`Run::events`], [`Run::events_of`] and [`Run::into_stream`]. Polling it drives the run, and reading is what lets the run go on:
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
/// `events("model.new_token")`. A stream of one type takes them with [`nested`](Self::nested).
#[must_use = "a stream does nothing until it is polled"]
pub struct RunStream<'a, R: Runnable, E = Box<EventRecord>> {
    /// The run above: what is not read is dropped in it.
    parent: Option<RunContext>,
    run: Option<Run<'a, R>>,
    result: Option<Result<R::Output>>,
    buffer: Arc<StreamBuffer<E>>,
}

impl<'a, R: Runnable> Run<'a, R> {
    /// Returns the run as a stream of the records of those of its events that match, and then of its result.
    ///
    /// A record has the payload as JSON, so any payload can be read: as text with
    /// [`payload.get()`](serde_json::value::RawValue::get), or as a type that is `Deserialize` with
    /// [`payload()`](EventRecord::payload). [`events_of`](Self::events_of) gives payloads as they are.
    ///
    /// `"new_token"` takes the run's own events of that name, `"**.new_token"` also those of every run below. An invalid
    /// matcher is reported as the stream's result.
    pub fn events(self, matcher: impl IntoMatcher) -> RunStream<'a, R> {
        self.stream(matcher, records)
    }

    /// Returns the run as a stream of its own events of one type, and then of its result.
    ///
    /// The type says under which name they are emitted, so there is no matcher, and an item is a clone of the payload: it
    /// need not be `Deserialize`, and no JSON is written. [`nested`](RunStream::nested) adds the events of the runs below.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, StreamItem, runnable_fn};
    /// use emitree_emitter::{Event, EventName};
    /// use futures_util::StreamExt;
    ///
    /// #[derive(Clone, serde::Serialize)]
    /// struct Token { text: String, logprob: f32 }
    ///
    /// impl Event for Token {
    ///     const NAME: EventName = EventName::new("token");
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let write = runnable_fn("write", |words: Vec<String>, ctx: RunContext| async move {
    ///     for text in &words {
    ///         ctx.emitter().emit_event(&mut Token { text: text.clone(), logprob: -0.5 }).await?;
    ///     }
    ///     Ok(words.len())
    /// });
    ///
    /// let mut text = String::new();
    /// let mut stream = write.run(vec!["to".into(), "be".into()]).events_of::<Token>();
    /// while let Some(item) = stream.next().await {
    ///     match item {
    ///         StreamItem::Event(token) => text += &token.text,
    ///         StreamItem::Missed(missed) => text += &format!("({missed} tokens missed)"),
    ///         StreamItem::Result(written) => assert_eq!(written.unwrap(), 2),
    ///         _ => {}
    ///     }
    /// }
    /// assert_eq!(text, "tobe");
    /// # }
    /// ```
    ///
    /// A type that is not `Clone` is streamed as JSON: `events(Token::NAME)`.
    ///
    /// # Errors of type
    ///
    /// If the run emits something else under that name, the emit is an error that names both types, as with
    /// [`on_event`](emitree_emitter::Emitter::on_event); if the work passes it on, it is the stream's result.
    #[track_caller]
    pub fn events_of<T: Event + Clone>(self) -> RunStream<'a, R, T> {
        // The stream only observes, and the failure of an observer is isolated. This listener makes a payload of another
        // type an error of the emit (E7).
        let check = Options::new().on_event(|_: &mut T, _| ());
        self.register(check.for_pipe()).stream(Matcher::emitted(T::NAME), payloads::<T>)
    }

    /// Returns the run as a stream of all its events, and of those below, and then of its result.
    pub fn into_stream(self) -> RunStream<'a, R> {
        self.events("*.*")
    }

    fn stream<E: Send + 'static>(self, matcher: impl IntoMatcher, listener: MakeListener<E>) -> RunStream<'a, R, E> {
        let buffer = Arc::new(StreamBuffer::new());
        let binding = StreamBinding { buffer: Arc::clone(&buffer), matcher: matcher.into_matcher(), listener };
        RunStream { parent: self.parent().cloned(), run: Some(self.middleware(binding)), result: None, buffer }
    }
}

impl<R: Runnable, T: Event + Clone> RunStream<'_, R, T> {
    /// Sets whether events of the runs below are taken too, as `events("**.new_token")` takes them; off unless set.
    ///
    /// Events that have the name and another type are not taken if they come from below; the run's own are an error.
    pub fn nested(self, nested: bool) -> Self {
        self.buffer.set_nested(nested);
        self
    }
}

impl<R: Runnable, E> RunStream<'_, R, E> {
    /// Keeps at most this many events that were not read yet; 1,024 unless set, at least 1.
    pub fn capacity(self, capacity: usize) -> Self {
        self.buffer.set_capacity(capacity);
        self
    }

    /// Holds events until the output has passed, or shows them as they come.
    pub fn held(self, held: bool) -> Self {
        self.buffer.set_held(held);
        self
    }

    /// Waits for the next item; `None` after the result. For code that has no `StreamExt::next` at hand.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, StreamItem, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    /// let mut stream = double.run(4).events("progress");
    /// assert!(matches!(stream.recv().await, Some(StreamItem::Result(Ok(8)))));
    /// assert!(stream.recv().await.is_none());
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped; the run goes on with the next call.
    pub async fn recv(&mut self) -> Option<StreamItem<R::Output, E>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Drives the run; true if it is over.
    fn drive(&mut self, cx: &mut TaskContext<'_>) -> bool {
        let Some(run) = &mut self.run else { return true };
        if let Poll::Ready(result) = Pin::new(run).poll(cx) {
            (self.run, self.result) = (None, Some(result));
            self.buffer.on_work_done();
        }
        self.run.is_none()
    }
}

/// Nothing in it is pinned but the boxed future of the work.
impl<R: Runnable, E> Unpin for RunStream<'_, R, E> {}

impl<R: Runnable, E> Stream for RunStream<'_, R, E> {
    type Item = StreamItem<R::Output, E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        let mut driven = false;
        loop {
            match self.buffer.poll_next(cx) {
                Poll::Ready(BufferedItem::Event(event)) => return Poll::Ready(Some(StreamItem::Event(event))),
                Poll::Ready(BufferedItem::Missed(missed)) => return Poll::Ready(Some(StreamItem::Missed(missed))),
                Poll::Pending => {}
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

/// The run is dropped after it, and emits its end to nobody here. What the drop of unread values starts belongs to the run above (R1).
impl<R: Runnable, E> Drop for RunStream<'_, R, E> {
    fn drop(&mut self) {
        let Self { parent, result, buffer, .. } = self;
        enter_some(parent.as_ref(), || {
            buffer.close();
            drop(result.take());
        });
    }
}

impl<R: Runnable, E> fmt::Debug for RunStream<'_, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunStream").field("run", &self.run).finish_non_exhaustive()
    }
}
