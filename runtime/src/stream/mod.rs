//! A run as a stream of its events and its result (R11).

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
/// `E` is the type of the events: a boxed [`EventRecord`], or the type of the payload for [`Run::events_of`].
#[derive(Debug)]
#[non_exhaustive]
pub enum StreamItem<O, E = Box<EventRecord>> {
    /// An event of the run, or of a run below it.
    Event(E),
    /// The number of events that were lost since the last `Missed`, because the buffer was full or the clone of a
    /// payload panicked.
    Missed(u64),
    /// The run's result. It is the last item.
    Result(Result<O>),
}

/// A run as a stream: its events, then its result. Created by [`Run::events`], [`Run::events_of`] and
/// [`Run::into_stream`].
///
/// Polling the stream drives the run. The run is polled only when no event is ready to be read, so a slow reader slows
/// the run down. The buffer is bounded, because the run's tasks, other threads or even a single poll of the run may
/// emit many events. If there are more unread events than the [`capacity`](Self::capacity) allows, the oldest events
/// are dropped, and counted as [missed](StreamItem::Missed).
///
/// Dropping the stream drops the run. If the run has begun and its work is not over, this aborts the run.
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
/// # Attempts that are given up
///
/// If a [`map_output`](crate::map_output) may still request a retry, because
/// [`max_middleware_retries`](Run::max_middleware_retries) is not used up, the stream holds events back until the work
/// is over. It then leaves out the events of attempts that were given up, by the run or by a run below. Otherwise,
/// events are yielded immediately. In that case, after an `attempt_discarded` event, the reader should ignore the
/// events that the same run, and the runs below it, have emitted since its `start`. [`held`](Self::held) overrides this
/// choice.
///
/// # Events of runs below
///
/// A name without a dot matches the run's own events. Events of runs below are matched by paths:
/// `events("**.new_token")` or `events("model.new_token")`. A stream that was created by [`Run::events_of`] includes
/// events of runs below if you call [`nested(true)`](Self::nested).
#[must_use = "a stream does nothing until it is polled"]
pub struct RunStream<'a, R: Runnable, E = Box<EventRecord>> {
    /// The parent run, in which unread items are dropped (R1).
    parent: Option<RunContext>,
    run: Option<Run<'a, R>>,
    result: Option<Result<R::Output>>,
    buffer: Arc<StreamBuffer<E>>,
}

impl<'a, R: Runnable> Run<'a, R> {
    /// Returns the run as a stream of records of the events that match, followed by its result.
    ///
    /// `"new_token"` matches the run's own events with that name, and `"**.new_token"` matches the events of every run
    /// below as well. An invalid matcher is reported as the stream's result.
    ///
    /// A record holds the payload as JSON: read it as text with [`payload.get()`](serde_json::value::RawValue::get), or
    /// as any `Deserialize` type with [`payload()`](EventRecord::payload). [`events_of`](Self::events_of) yields the
    /// payloads themselves.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, StreamItem, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let count = runnable_fn("count", |to: u32, ctx: RunContext| async move {
    ///     for mut n in 1..=to {
    ///         ctx.emitter().emit("counted", &mut n).await?;
    ///     }
    ///     Ok("done".to_owned())
    /// });
    ///
    /// let mut stream = count.run(2).events("counted");
    /// for expected in ["1", "2"] {
    ///     let Some(StreamItem::Event(record)) = stream.recv().await else { panic!("an event") };
    ///     assert_eq!(record.payload.get(), expected);
    /// }
    /// assert!(matches!(stream.recv().await, Some(StreamItem::Result(Ok(result))) if result == "done"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn events(self, matcher: impl IntoMatcher) -> RunStream<'a, R> {
        self.stream(matcher, records)
    }

    /// Returns the run as a stream of its own events of one type, followed by its result.
    ///
    /// This method takes no matcher: the stream yields the events with the name [`Event::NAME`]. Each event is yielded
    /// as a clone of its payload, whose type need not be `Deserialize`. [`nested`](RunStream::nested) adds the events
    /// of the runs below. For a type that is not `Clone`, use `events(T::NAME)`.
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
    /// # Other types under that name
    ///
    /// If the run emits a payload of another type under the name of `T`, the emit fails with an error that names both
    /// types, as with [`on_event`](emitree_emitter::Emitter::on_event). If the work returns that error, it is the
    /// stream's result.
    #[track_caller]
    pub fn events_of<T: Event + Clone>(self) -> RunStream<'a, R, T> {
        // The stream's own listener is an observer, whose failures are isolated. The listener `check` makes the emit
        // fail if the payload has another type (E7).
        let check = Options::new().persistent().on_event(|_: &mut T, _| ());
        self.register(check).stream(Matcher::emitted(T::NAME), payloads::<T>)
    }

    /// Returns the run as a stream of all its events and all events of the runs below, followed by its result.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, StreamItem, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    /// let mut stream = double.run(4).into_stream();
    /// let mut names = Vec::new();
    /// while let Some(StreamItem::Event(record)) = stream.recv().await {
    ///     names.push(record.name().to_owned());
    /// }
    /// assert_eq!(names, ["start", "success", "finish"]);
    /// # }
    /// ```
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
    /// Sets whether the stream includes events of the runs below, as `events("**.new_token")` does. By default it does
    /// not.
    ///
    /// ```
    /// use emitree_emitter::{Event, EventName};
    /// use emitree_runtime::{RunContext, Runnable, StreamItem, runnable_fn};
    ///
    /// #[derive(Clone, serde::Serialize)]
    /// struct Token(String);
    ///
    /// impl Event for Token {
    ///     const NAME: EventName = EventName::new("token");
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let agent = runnable_fn("agent", |(): (), _: RunContext| async move {
    ///     let model = runnable_fn("model", |(): (), ctx: RunContext| async move {
    ///         ctx.emitter().emit_event(&mut Token("hello".to_owned())).await?;
    ///         Ok(())
    ///     });
    ///     model.run(()).await
    /// });
    /// let mut stream = agent.run(()).events_of::<Token>().nested(true);
    /// assert!(matches!(stream.recv().await, Some(StreamItem::Event(Token(text))) if text == "hello"));
    /// # }
    /// ```
    ///
    /// Events of runs below are skipped if they have the name of `T` but a payload of another type. If the run itself
    /// emits such an event, the emit fails.
    pub fn nested(self, nested: bool) -> Self {
        self.buffer.set_nested(nested);
        self
    }
}

impl<R: Runnable, E> RunStream<'_, R, E> {
    /// Sets how many unread events the buffer keeps. The default is 1,024. The minimum is 1, even if `capacity` is 0.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, StreamItem, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let count = runnable_fn("count", |(): (), ctx: RunContext| async move {
    ///     for mut n in 1..=3 {
    ///         ctx.emitter().emit("counted", &mut n).await?;
    ///     }
    ///     Ok(())
    /// });
    /// let mut stream = count.run(()).events("counted").capacity(1);
    /// assert!(matches!(stream.recv().await, Some(StreamItem::Missed(2))));
    /// let Some(StreamItem::Event(last)) = stream.recv().await else { panic!("the last event") };
    /// assert_eq!(last.payload.get(), "3");
    /// # }
    /// ```
    pub fn capacity(self, capacity: usize) -> Self {
        self.buffer.set_capacity(capacity);
        self
    }

    /// Sets whether events are held back until the work is over. By default the stream decides this as described in
    /// [Attempts that are given up](Self#attempts-that-are-given-up).
    pub fn held(self, held: bool) -> Self {
        self.buffer.set_held(held);
        self
    }

    /// Waits for the next item, and returns `None` after the result. It works like `StreamExt::next`.
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
    /// Dropping the future loses no items; the next call continues to drive the run.
    pub async fn recv(&mut self) -> Option<StreamItem<R::Output, E>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Polls the run. Returns `true` if the run is over.
    fn drive(&mut self, cx: &mut TaskContext<'_>) -> bool {
        let Some(run) = &mut self.run else { return true };
        if let Poll::Ready(result) = Pin::new(run).poll(cx) {
            (self.run, self.result) = (None, Some(result));
            // A run that failed at `bind` emits no lifecycle event, so its held events are also released here.
            self.buffer.on_work_done();
        }
        self.run.is_none()
    }
}

/// Only the future of the work is pinned, and this future is boxed.
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
            // Poll the run only once, and then look into the buffer again, so that the events of this poll are yielded
            // before the run continues (R11).
            driven = !self.drive(cx);
        }
    }
}

/// Closes the buffer before the run is dropped, so that the run's last events are not buffered any more.
impl<R: Runnable, E> Drop for RunStream<'_, R, E> {
    fn drop(&mut self) {
        let Self { parent, result, buffer, .. } = self;
        // Dropping unread items may call user code: runs that this code starts are children of the parent run (R1,
        // R14).
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
