//! Text that comes in events, bit by bit.
//!
//! 1. An event goes on with what is clear of its text and of the text before it; the rest is held.
//! 2. What is held when the run is over comes as one more event: a copy of the last one, with that text.
//! 3. An attempt that is given up takes what is held with it (M7).

use std::sync::Arc;

use emitree_emitter::{Event, EventMeta, Options};
use emitree_runtime::{AttemptDiscarded, Result, RunContext};
use futures_core::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;

use super::core::Redactor;
use super::event::Place;
use crate::secrets::{Chunks, Piece};

/// The text of events of one type.
pub(super) struct TextOf<T> {
    pub(super) name: String,
    pub(super) text: Arc<dyn Fn(&mut T) -> &mut String + Send + Sync>,
}

/// Events whose text was declared.
pub(super) trait Declared: Send + Sync {
    /// Listens on a run.
    fn listen(&self, ctx: &RunContext, redactor: &Arc<Redactor>) -> Result<Arc<dyn Held>>;
}

/// What is held of a run's events.
pub(super) trait Held: Send + Sync {
    /// Emits it.
    fn flush<'a>(&'a self, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>>;
}

/// The text of one run's events.
struct Stream<T> {
    name: String,
    text: Arc<dyn Fn(&mut T) -> &mut String + Send + Sync>,
    redactor: Arc<Redactor>,
    state: Mutex<State<T>>,
}

struct State<T> {
    chunks: Chunks,
    last: Option<T>,
    /// On its way as an event: it is clear already.
    rest: Option<String>,
}

impl<T: Clone + Serialize + Send + Sync + 'static> Declared for TextOf<T> {
    fn listen(&self, ctx: &RunContext, redactor: &Arc<Redactor>) -> Result<Arc<dyn Held>> {
        let state = State { chunks: redactor.settings.scanner.chunks(), last: None, rest: None };
        let (name, text) = (self.name.clone(), Arc::clone(&self.text));
        let stream = Arc::new(Stream { name, text, redactor: Arc::clone(redactor), state: Mutex::new(state) });
        let first = || ctx.emitter().with(Options::new().priority(i32::MAX));
        let (passing, discarding) = (Arc::clone(&stream), Arc::clone(&stream));
        first().on(self.name.as_str(), move |event: &mut T, _: &EventMeta<'_>| passing.pass(event))?;
        first().on(AttemptDiscarded::NAME, move |_: &mut AttemptDiscarded, _: &EventMeta<'_>| discarding.discard())?;
        Ok(stream)
    }
}

impl<T: Clone> Stream<T> {
    /// Has an event go on with what is clear.
    fn pass(&self, event: &mut T) {
        let text = (self.text)(event);
        let mut state = self.state.lock();
        if state.rest.as_ref() == Some(text) {
            state.rest = None;
            return;
        }
        let mut clear = String::new();
        state.chunks.push(text, |piece| self.put(&mut clear, piece));
        *text = clear;
        state.last = Some(event.clone());
    }

    fn put(&self, out: &mut String, piece: Piece<'_>) {
        match piece {
            Piece::Clean(clean) => *out += clean,
            Piece::Secret(kind, secret) => {
                self.redactor.note(Place::Event, &self.name, kind);
                *out += &self.redactor.settings.replacement(kind, secret, &self.redactor.vault);
            }
        }
    }

    fn discard(&self) {
        let mut state = self.state.lock();
        state.chunks.clear();
        state.last = None;
    }

    /// The event that is still to come.
    fn last(&self) -> Option<T> {
        let mut state = self.state.lock();
        let mut rest = String::new();
        state.chunks.finish(|piece| self.put(&mut rest, piece));
        let mut event = state.last.take().filter(|_| !rest.is_empty())?;
        state.rest = Some(rest.clone());
        *(self.text)(&mut event) = rest;
        Some(event)
    }
}

impl<T: Clone + Serialize + Send + Sync + 'static> Held for Stream<T> {
    fn flush<'a>(&'a self, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(mut event) = self.last() else { return Ok(()) };
            ctx.emitter().emit(self.name.as_str(), &mut event).await?;
            Ok(())
        })
    }
}
