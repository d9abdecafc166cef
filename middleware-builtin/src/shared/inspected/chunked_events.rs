//! Text in chunks: each event with a registered name contains a chunk, and a filter may hold back a part of the text.
//!
//! 1. The text of each event is replaced with the text that the filter releases from this chunk and from earlier
//!    chunks. The filter holds back the rest.
//! 2. Text that is still held back when the run ends is emitted in one more event, a copy of the last event with that
//!    text.
//! 3. When an attempt is discarded, its held-back text is dropped (M7).
//! 4. When the filter refuses a text, no further text of the attempt passes: the text of the event with the refused
//!    chunk is emptied, and its emit fails.

use std::sync::Arc;

use emitree_emitter::{AnyEvent, BoxError, Event, EventMeta, Options};
use emitree_runtime::{AttemptDiscarded, Error, Result, RunContext, Stage, TextFilter};
use futures_core::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;

/// A function that makes the filter of one text.
pub(crate) type MakeFilter = Box<dyn Fn() -> Box<dyn TextFilter> + Send + Sync>;

/// A function that borrows the text of an event.
pub(crate) type TextAccessor<T> = Arc<dyn Fn(&mut T) -> &mut String + Send + Sync>;

/// The events with one name, whose text arrives in chunks.
pub(crate) struct ChunkedText<T> {
    pub(crate) name: String,
    pub(crate) text: TextAccessor<T>,
}

/// A [`ChunkedText`] of any payload type.
pub(crate) trait ChunkedEvents: Send + Sync {
    /// Returns the name of the events.
    fn name(&self) -> &str;
    /// Registers listeners that filter the text of one run's events.
    fn listen(&self, ctx: &RunContext, make: MakeFilter) -> Result<Arc<dyn HeldText>>;
}

/// The held-back text of a run's events.
pub(crate) trait HeldText: Send + Sync {
    /// Emits the text that is held back.
    fn flush<'a>(&'a self, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>>;
    /// Returns the error if text was refused.
    #[allow(dead_code, reason = "only `ExfilGuard` refuses text; `Redact` replaces it")]
    fn refused(&self) -> Option<Error>;
}

/// The text of one run's events.
struct TextStream<T> {
    name: String,
    text: TextAccessor<T>,
    make: MakeFilter,
    state: Mutex<StreamState<T>>,
}

struct StreamState<T> {
    filter: Box<dyn TextFilter>,
    last: Option<T>,
    /// The text of the last event while `flush` emits that event. It must not be filtered again.
    rest: Option<String>,
    refused: Option<Error>,
}

impl<T: Clone + Serialize + Send + Sync + 'static> ChunkedEvents for ChunkedText<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn listen(&self, ctx: &RunContext, make: MakeFilter) -> Result<Arc<dyn HeldText>> {
        // A run that filters its text itself builds its output from it: the output would lack text that is held back here.
        if ctx.emitter().filters_text(&self.name) {
            return Err(Error::new(format!(
                "`text_of(\"{0}\", ...)` on `{1}`: this run filters the text of `{0}` itself, in the events and in the \
                 output: remove `text_of`; if it is for an event `{0}` of your own, bind it to your runs only",
                self.name,
                ctx.name(),
            )));
        }
        let state = Mutex::new(StreamState { filter: make(), last: None, rest: None, refused: None });
        let stream = Arc::new(TextStream { name: self.name.clone(), text: Arc::clone(&self.text), make, state });
        let first = || ctx.emitter().with(Options::new().priority(i32::MAX));
        let passing = Arc::clone(&stream);
        let discarding = Arc::clone(&stream);
        first()
            .on(self.name.as_str(), move |event: &mut T, _: &EventMeta<'_>| Ok::<_, BoxError>(passing.pass(event)?))?;
        first().on(AttemptDiscarded::NAME, move |_: &mut AttemptDiscarded, _: &EventMeta<'_>| discarding.discard())?;
        Ok(stream)
    }
}

impl<T: Clone> TextStream<T> {
    /// Replaces the text of an event with the text that the filter releases.
    fn pass(&self, event: &mut T) -> Result<()> {
        let text = (self.text)(event);
        // This listener also receives the event that `flush` emits.
        if self.state.lock().is_rest(text) {
            return Ok(());
        }
        let chunk = std::mem::take(text);
        // Clone this event and drop the previous event without the lock: both call user code.
        let mut last = Some(event.clone());
        let clear = self.state.lock().push(&chunk, &mut last)?;
        *(self.text)(event) = clear;
        Ok(())
    }

    fn discard(&self) {
        let filter = (self.make)();
        let last = self.state.lock().clear(filter);
        drop(last);
    }

    /// Returns an event with the text that is held back, if there is any.
    fn last(&self) -> Result<Option<T>> {
        let (rest, last) = self.state.lock().finish()?;
        let Some(mut event) = last.filter(|_| !rest.is_empty()) else { return Ok(None) };
        (self.text)(&mut event).clone_from(&rest);
        self.state.lock().rest = Some(rest);
        Ok(Some(event))
    }
}

/// The operations under the lock. They call no user code: events are cloned, read and dropped without the lock.
impl<T> StreamState<T> {
    /// Returns `true` for the text of the event that `flush` emits. This text must not be filtered again.
    fn is_rest(&mut self, text: &str) -> bool {
        self.rest.take_if(|rest| rest == text).is_some()
    }

    /// Takes a chunk whose event is in `last`; returns the released text. The event is kept, and `last` receives the
    /// event that was kept before.
    fn push(&mut self, chunk: &str, last: &mut Option<T>) -> Result<String> {
        let clear = match &self.refused {
            Some(error) => return Err(error.clone()),
            None => self.filter.push(chunk).map_err(|error| self.refuse(error))?,
        };
        std::mem::swap(&mut self.last, last);
        Ok(clear)
    }

    /// Returns the text that is held back and the last event; an empty text and no event if text was refused.
    fn finish(&mut self) -> Result<(String, Option<T>)> {
        if self.refused.is_some() {
            return Ok((String::new(), None));
        }
        let rest = self.filter.finish().map_err(|error| self.refuse(error))?;
        Ok((rest, self.last.take()))
    }

    fn clear(&mut self, filter: Box<dyn TextFilter>) -> Option<T> {
        self.filter = filter;
        self.refused = None;
        self.last.take()
    }

    fn refuse(&mut self, error: Error) -> Error {
        self.refused = Some(error.clone());
        error
    }
}

impl<T: Clone + Serialize + Send + Sync + 'static> HeldText for TextStream<T> {
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

/// Registers listeners that are called before other listeners of `success` and `error`. They emit the text that is held
/// back, and then call a function.
pub(crate) fn flush_at_end<F>(held: &Arc<[Arc<dyn HeldText>]>, ctx: &RunContext, then: F) -> Result<()>
where
    F: Fn(RunContext) -> BoxFuture<'static, ()> + Clone + Send + Sync + 'static,
{
    for stage in [Stage::Success, Stage::Error] {
        let held = Arc::clone(held);
        let then = then.clone();
        let first = ctx.emitter().with(Options::new().priority(i32::MAX));
        first.on_async(stage, move |_: &mut dyn AnyEvent, _| {
            let held = Arc::clone(&held);
            let then = then.clone();
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

/// Registers observers of the run's `error` and `finish` that call a function. The function emits the findings of code
/// that could not await an emit.
pub(crate) fn emit_at_end<F>(ctx: &RunContext, emit: F) -> Result<()>
where
    F: Fn(RunContext) -> BoxFuture<'static, ()> + Clone + Send + Sync + 'static,
{
    for stage in [Stage::Error, Stage::Finish] {
        let emit = emit.clone();
        ctx.emitter().observe_async(stage, move |_: &dyn AnyEvent, _| {
            // Look up the current run on each call: a listener that owned its run would keep the run alive.
            let emitted = RunContext::current().map(&emit);
            Box::pin(async move {
                if let Some(emitted) = emitted {
                    emitted.await;
                }
                Ok(())
            })
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{OnceLock, Weak};

    use super::*;

    /// Holds all text until the end.
    struct Holding(String);

    impl TextFilter for Holding {
        fn push(&mut self, text: &str) -> Result<String> {
            self.0 += text;
            Ok(String::new())
        }

        fn finish(&mut self) -> Result<String> {
            Ok(std::mem::take(&mut self.0))
        }
    }

    #[derive(Default)]
    struct LockProbe {
        stream: OnceLock<Weak<TextStream<ProbedEvent>>>,
        /// The calls of user code, each with `true` if the lock was held.
        code: Mutex<Vec<(&'static str, bool)>>,
    }

    impl LockProbe {
        fn look(&self, code: &'static str) {
            let Some(stream) = self.stream.get().and_then(Weak::upgrade) else { return };
            self.code.lock().push((code, stream.state.is_locked()));
        }
    }

    /// An event that records whether the lock is held when it is cloned or dropped.
    struct ProbedEvent {
        text: String,
        probe: Arc<LockProbe>,
    }

    impl Clone for ProbedEvent {
        fn clone(&self) -> Self {
            self.probe.look("clone");
            Self { text: self.text.clone(), probe: Arc::clone(&self.probe) }
        }
    }

    impl Drop for ProbedEvent {
        fn drop(&mut self) {
            self.probe.look("drop");
        }
    }

    #[test]
    fn user_code_runs_with_no_lock_held() -> Result<()> {
        let text: TextAccessor<ProbedEvent> = Arc::new(|event| {
            event.probe.look("text");
            &mut event.text
        });
        let make: MakeFilter = Box::new(|| Box::new(Holding(String::new())));
        let state = Mutex::new(StreamState { filter: make(), last: None, rest: None, refused: None });
        let stream = Arc::new(TextStream { name: "told".to_owned(), text, make, state });
        let probe = Arc::<LockProbe>::default();
        probe.stream.get_or_init(|| Arc::downgrade(&stream));
        let event = |text: &str| ProbedEvent { text: text.to_owned(), probe: Arc::clone(&probe) };
        for text in ["a", "b"] {
            stream.pass(&mut event(text))?;
        }
        stream.discard();
        stream.pass(&mut event("c"))?;
        let mut last = stream.last()?.expect("something is held");
        assert_eq!(last.text, "c");
        stream.pass(&mut last)?;
        assert_eq!(last.text, "c", "text that has already been filtered passes unchanged");
        stream.pass(&mut event(""))?;
        assert!(stream.last()?.is_none());
        drop(last);
        let code = probe.code.lock();
        for what in ["text", "clone", "drop"] {
            assert!(code.iter().any(|(code, _)| *code == what), "no {what} in {code:?}");
        }
        assert!(code.iter().all(|(_, is_locked)| !is_locked), "{code:?}");
        Ok(())
    }
}
