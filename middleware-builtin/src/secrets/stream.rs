//! Text that comes in events, bit by bit, on its way through something that may hold some of it back.
//!
//! 1. An event goes on with what is clear of its text and of the text before it; the rest is held.
//! 2. What is held when the run is over comes as one more event: a copy of the last one, with that text.
//! 3. An attempt that is given up takes what is held with it (M7).
//! 4. Once a text was refused, nothing of it goes on: the event that brought it is emptied, and its emit fails.

use std::sync::Arc;

use emitree_emitter::{AnyEvent, BoxError, Event, EventMeta, Options};
use emitree_runtime::{AttemptDiscarded, Error, Result, RunContext, Stage};
use futures_core::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;

/// What text passes, bit by bit.
pub(crate) trait Passage: Send {
    /// Takes more text, and gives what is clear.
    fn push(&mut self, text: &str) -> Result<String>;
    /// Gives the rest.
    fn finish(&mut self) -> Result<String>;
    /// Forgets what it holds.
    fn clear(&mut self);
}

/// Where the text of an event is.
pub(crate) type Text<T> = Arc<dyn Fn(&mut T) -> &mut String + Send + Sync>;

/// Events whose text was declared.
pub(crate) struct TextOf<T> {
    pub(crate) name: String,
    pub(crate) text: Text<T>,
}

/// The same, whatever their type.
pub(crate) trait Declared: Send + Sync {
    /// What they are called.
    fn name(&self) -> &str;
    /// Has the text of one run's events pass.
    fn listen(&self, ctx: &RunContext, passage: Box<dyn Passage>) -> Result<Arc<dyn Held>>;
}

/// What is held of a run's events.
pub(crate) trait Held: Send + Sync {
    /// Emits it.
    fn flush<'a>(&'a self, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>>;
    /// Why text was refused, if any was.
    #[allow(dead_code, reason = "a redaction refuses nothing")]
    fn refused(&self) -> Option<Error>;
}

/// The text of one run's events.
struct Stream<T> {
    name: String,
    text: Text<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    passage: Box<dyn Passage>,
    last: Option<T>,
    /// On its way as an event: it is clear already.
    rest: Option<String>,
    refused: Option<Error>,
}

impl<T: Clone + Serialize + Send + Sync + 'static> Declared for TextOf<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn listen(&self, ctx: &RunContext, passage: Box<dyn Passage>) -> Result<Arc<dyn Held>> {
        let state = Mutex::new(State { passage, last: None, rest: None, refused: None });
        let stream = Arc::new(Stream { name: self.name.clone(), text: Arc::clone(&self.text), state });
        let first = || ctx.emitter().with(Options::new().priority(i32::MAX));
        let (passing, discarding) = (Arc::clone(&stream), Arc::clone(&stream));
        first()
            .on(self.name.as_str(), move |event: &mut T, _: &EventMeta<'_>| Ok::<_, BoxError>(passing.pass(event)?))?;
        first().on(AttemptDiscarded::NAME, move |_: &mut AttemptDiscarded, _: &EventMeta<'_>| discarding.discard())?;
        Ok(stream)
    }
}

impl<T: Clone> Stream<T> {
    /// Has an event go on with what is clear.
    fn pass(&self, event: &mut T) -> Result<()> {
        let text = (self.text)(event);
        let mut state = self.state.lock();
        if state.rest.take_if(|rest| rest == text).is_some() {
            return Ok(());
        }
        let chunk = std::mem::take(text);
        let clear = match &state.refused {
            Some(error) => Err(error.clone()),
            None => state.passage.push(&chunk),
        };
        match clear {
            Ok(clear) => *text = clear,
            Err(error) => return Err(state.refuse(error)),
        }
        state.last = Some(event.clone());
        Ok(())
    }

    fn discard(&self) {
        let mut state = self.state.lock();
        state.passage.clear();
        (state.last, state.refused) = (None, None);
    }

    /// The event that is still to come.
    fn last(&self) -> Result<Option<T>> {
        let mut state = self.state.lock();
        if state.refused.is_some() {
            return Ok(None);
        }
        let rest = state.passage.finish().map_err(|error| state.refuse(error))?;
        let Some(mut event) = state.last.take().filter(|_| !rest.is_empty()) else { return Ok(None) };
        state.rest = Some(rest.clone());
        *(self.text)(&mut event) = rest;
        Ok(Some(event))
    }
}

impl<T> State<T> {
    fn refuse(&mut self, error: Error) -> Error {
        self.passage.clear();
        self.refused = Some(error.clone());
        error
    }
}

impl<T: Clone + Serialize + Send + Sync + 'static> Held for Stream<T> {
    fn flush<'a>(&'a self, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(mut event) = self.last()? else { return Ok(()) };
            ctx.emitter().emit(self.name.as_str(), &mut event).await?;
            Ok(())
        })
    }

    fn refused(&self) -> Option<Error> {
        self.state.lock().refused.clone()
    }
}

/// What is held comes out before others hear that the run is over; then something is done besides.
pub(crate) fn flush_at_end<F>(held: &Arc<[Arc<dyn Held>]>, ctx: &RunContext, then: F) -> Result<()>
where
    F: Fn(RunContext) -> BoxFuture<'static, ()> + Clone + Send + Sync + 'static,
{
    for stage in [Stage::Success, Stage::Error] {
        let (held, then) = (Arc::clone(held), then.clone());
        let first = ctx.emitter().with(Options::new().priority(i32::MAX));
        first.on_async(stage, move |_: &mut dyn AnyEvent, _| {
            let (held, then) = (Arc::clone(&held), then.clone());
            Box::pin(async move {
                let Some(ctx) = RunContext::current() else { return Ok(()) };
                for stream in &*held {
                    stream.flush(&ctx).await?;
                }
                then(ctx).await;
                Ok(())
            })
        })?;
    }
    Ok(())
}
