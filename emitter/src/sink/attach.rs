//! Attaching sinks and streams to an emitter.

use std::sync::Arc;

use super::handle::Control;
use super::input::Input;
use super::queue::Queue;
use super::worker::{self, Tally};
use super::{EventStream, Overflow, Sink, SinkError, SinkHandle};
use crate::{Emitter, IntoMatcher, ListenError, Matcher, MatcherError, Options, Registration, Subscription};

impl Emitter {
    /// Sends records of all events that reach this emitter to a sink, which gets a thread of its own.
    ///
    /// It observes: it hears each event as the listeners left it. [`close`](SinkHandle::close) the handle to have the
    /// events of the last moments written before a program ends.
    ///
    /// # Errors
    ///
    /// If the sink's thread cannot be started.
    #[track_caller]
    pub fn pipe_to(&self, sink: impl Sink) -> Result<SinkHandle, SinkError> {
        self.pipe_to_matching(Matcher::every(), sink)
    }

    /// Sends records of the events that a matcher takes to a sink.
    ///
    /// # Errors
    ///
    /// If the matcher is empty or does not compile, the emitter declares its events otherwise, or the sink's thread
    /// cannot be started.
    #[track_caller]
    pub fn pipe_to_matching(&self, matcher: impl IntoMatcher, sink: impl Sink) -> Result<SinkHandle, SinkError> {
        let matcher = matcher.into_matcher().map_err(ListenError::from)?;
        let (input, control) = start(sink)?;
        Ok(SinkHandle::new(control, self.listen_for(Ok(matcher), input)?))
    }

    /// Listens, from now on, and gives what it hears as a stream of records.
    ///
    /// Of those that are not read it keeps the last `capacity`, at least 1.
    ///
    /// # Errors
    ///
    /// If the matcher is empty or does not compile, or the emitter declares its events otherwise.
    #[track_caller]
    pub fn stream(&self, matcher: impl IntoMatcher, capacity: usize) -> Result<EventStream, ListenError> {
        let queue = Arc::new(Queue::new(capacity, Overflow::DropOldest));
        let input = Input::new(Arc::clone(&queue), Overflow::DropOldest);
        Ok(EventStream::new(queue, self.listen_for(matcher.into_matcher(), input)?))
    }

    /// Removing listeners leaves it: what is piped goes on until it is unpiped (E9).
    #[track_caller]
    fn listen_for(&self, matcher: Result<Matcher, MatcherError>, input: Input) -> Result<Subscription, ListenError> {
        self.register(Registration::new(Options::new(), matcher, None, input.into_call()).for_pipe())
    }
}

/// Starts a sink's thread. Events enter by the input; once that is dropped, the sink is closed.
fn start<S: Sink>(sink: S) -> Result<(Input, Control), SinkError> {
    let overflow = sink.overflow();
    let queue = Arc::new(Queue::new(sink.capacity(), overflow));
    let tally = Arc::new(Tally::default());
    worker::start(sink, Arc::clone(&queue), Arc::clone(&tally)).map_err(SinkError::Thread)?;
    Ok((Input::new(Arc::clone(&queue), overflow), Control::new(queue, tally)))
}
