//! Attaches sinks and streams to an emitter: creates the queue, starts the thread of a sink, and registers the input as
//! an observer.

use std::sync::Arc;

use super::handle::SinkControl;
use super::input::QueueInput;
use super::queue::Queue;
use super::tally::Tally;
use super::worker;
use super::{Detail, EventStream, Overflow, Sink, SinkError, SinkHandle};
use crate::{Emitter, IntoMatcher, ListenError, Matcher, MatcherError, Options, Registration, Subscription};

impl Emitter {
    /// Attaches a sink that receives records of all events that reach this emitter. The sink runs on its own thread.
    ///
    /// The sink is an observer: it receives each event with the changes made by all listeners. Call
    /// [`close`](SinkHandle::close) on the handle before the program ends, so that the last events are written.
    ///
    /// # Errors
    ///
    /// Returns an error if the sink's thread cannot be started, or if the emitter belongs to a run that has ended. In
    /// both cases, the sink is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use std::time::Duration;
    ///
    /// use emitree_emitter::{BoxError, Emitter, Sink, SinkRecord};
    ///
    /// struct Paths(Arc<Mutex<Vec<String>>>);
    ///
    /// impl Sink for Paths {
    ///     fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
    ///         self.0.lock().unwrap().extend(record.as_event().map(|event| event.path.to_string()));
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let (app, paths) = (Emitter::new().child("app")?, Arc::default());
    /// let sink = app.pipe_to(Paths(Arc::clone(&paths)))?;
    /// app.emit_now("start", &mut 1)?;
    ///
    /// assert!(sink.close_blocking(Duration::from_secs(10)).is_complete());
    /// assert_eq!(*paths.lock().unwrap(), ["app.start"]);
    /// # Ok::<(), BoxError>(())
    /// ```
    #[track_caller]
    pub fn pipe_to(&self, sink: impl Sink) -> Result<SinkHandle, SinkError> {
        let (input, control) = start(sink)?;
        Ok(SinkHandle::new(control, self.listen_for(Ok(Matcher::every()), input)?))
    }

    /// Returns a stream that receives records of all later events selected by a matcher.
    ///
    /// The stream buffers the last `capacity` unread events (at least one). Older unread events are lost and counted.
    ///
    /// # Errors
    ///
    /// Returns an error if the matcher is not valid, or if the run that the emitter belongs to has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use emitree_emitter::{BoxError, Emitter, SinkRecord};
    ///
    /// # futures_util::future::FutureExt::now_or_never(async {
    /// let emitter = Emitter::new();
    /// let mut counts = emitter.stream("count", 2)?;
    /// for n in 1..=3 {
    ///     emitter.emit("count", &mut { n }).await?;
    /// }
    ///
    /// assert!(matches!(counts.recv().await, Some(SinkRecord::Gap(gap)) if gap.lost == 1));
    /// let second = counts.recv().await.and_then(|record| record.as_event().map(|event| event.payload::<u32>()));
    /// assert_eq!(second.transpose()?, Some(2));
    /// # Ok::<(), BoxError>(())
    /// # }).unwrap()?;
    /// # Ok::<(), BoxError>(())
    /// ```
    #[track_caller]
    pub fn stream(&self, matcher: impl IntoMatcher, capacity: usize) -> Result<EventStream, ListenError> {
        let queue = Arc::new(Queue::new(capacity, Overflow::DropOldest));
        let input = QueueInput::new(Arc::clone(&queue), Overflow::DropOldest, Box::new(|_, _| Detail::Full));
        Ok(EventStream::new(queue, self.listen_for(matcher.into_matcher(), input)?))
    }

    /// Registers the input as persistent, so that `reset` and `off_matching` leave it in place (E9).
    #[track_caller]
    fn listen_for(
        &self,
        matcher: Result<Matcher, MatcherError>,
        input: QueueInput,
    ) -> Result<Subscription, ListenError> {
        self.register(Registration::new(Options::new().persistent(), matcher, None, input.into_call()))
    }
}

/// Starts the thread of a sink. Events enter through the returned input, and dropping the input closes the sink.
fn start<S: Sink>(sink: S) -> Result<(QueueInput, SinkControl), SinkError> {
    let overflow = sink.overflow();
    let detail = sink.detail();
    let queue = Arc::new(Queue::new(sink.capacity(), overflow));
    let tally = Arc::new(Tally::default());
    worker::start(sink, Arc::clone(&queue), Arc::clone(&tally)).map_err(SinkError::Thread)?;
    Ok((QueueInput::new(Arc::clone(&queue), overflow, detail), SinkControl::new(queue, tally)))
}
