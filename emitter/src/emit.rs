//! Emitting: from a name and a payload to a dispatch.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;

use serde::Serialize;

use crate::dispatch::Progress;
use crate::error::EmitErrorKind;
use crate::event::Carried;
use crate::listener::Listener;
use crate::name::NameRef;
use crate::route::Route;
use crate::{
    AnyEvent, AsName, Context, Delivery, EmitError, Emitter, Event, EventMeta, EventName, EventStamp, Facet, Scope,
};

impl Emitter {
    /// Emits an event: own listeners hear it first, then those above, the root last; all that may change it before
    /// all that observe it.
    ///
    /// Nobody listening costs a few loads.
    ///
    /// # Errors
    ///
    /// If the name is not valid or not declared, or a listener fails whose failure is not isolated. What listeners
    /// have changed until then stays changed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the listener that is being awaited and calls no further one.
    #[inline]
    pub async fn emit<P: Serialize + Send + Sync + 'static>(
        &self,
        name: impl AsName,
        payload: &mut P,
    ) -> Result<(), EmitError> {
        let (name, carried) = (name.as_name(), const { &Carried::of::<P>() });
        let stamp = &EventStamp::new();
        Emit { source: self, name, carried, facet: None, delivery: &PATIENT, stamp }.deliver(payload).await
    }

    /// Emits a payload under the name that its type carries.
    ///
    /// # Errors
    ///
    /// As [`emit`](Self::emit).
    pub async fn emit_event<E: Event>(&self, payload: &mut E) -> Result<(), EmitError> {
        self.emit(E::NAME, payload).await
    }

    /// Emits an event with a facet, which listeners find in its meta.
    ///
    /// # Errors
    ///
    /// As [`emit`](Self::emit).
    pub async fn emit_with<P: Serialize + Send + Sync + 'static>(
        &self,
        name: impl AsName,
        payload: &mut P,
        facet: &Facet,
    ) -> Result<(), EmitError> {
        let (name, carried) = (name.as_name(), const { &Carried::of::<P>() });
        let stamp = &EventStamp::new();
        Emit { source: self, name, carried, facet: Some(facet), delivery: &PATIENT, stamp }.deliver(payload).await
    }

    /// Emits an event with a facet, as far as nobody has to be awaited. What is left to do then is put aside, and done by
    /// [`emit_rest`](Self::emit_rest): so who emits on a common path pays for a future only where there is one.
    pub fn emit_begin<P: Serialize + Send + Sync + 'static>(
        &self,
        name: EventName,
        payload: &mut P,
        facet: &Facet,
        (delivery, stamp): (&Delivery, &EventStamp),
    ) -> Emitted {
        let (name, carried) = (name.as_name(), const { &Carried::of::<P>() });
        Emit { source: self, name, carried, facet: Some(facet), delivery, stamp }.begin(payload)
    }

    /// Does what is left to do of an emit. Everything has to be as it was given to [`emit_begin`](Self::emit_begin).
    ///
    /// # Errors
    ///
    /// As [`emit`](Self::emit).
    pub async fn emit_rest<P: Serialize + Send + Sync + 'static>(
        &self,
        waiting: Box<Waiting>,
        name: EventName,
        payload: &mut P,
        facet: &Facet,
        (delivery, stamp): (&Delivery, &EventStamp),
    ) -> Result<(), EmitError> {
        let (name, carried) = (name.as_name(), const { &Carried::of::<P>() });
        let emit = Emit { source: self, name, carried, facet: Some(facet), delivery, stamp };
        let Waiting { route, mut progress, context } = *waiting;
        let meta = EventMeta::carrying(&emit, context);
        let rest = async { scoped(self.scope(), pin!(progress.rest(payload, &meta, &route, delivery))).await };
        // Boxed, because it is seldom, and the future of a run has it in itself.
        Box::pin(rest).await
    }

    /// Emits where nothing can be awaited (E17).
    ///
    /// # Errors
    ///
    /// If an async listener would hear the event, or a sink that blocks and is full: then nobody has heard it.
    /// Otherwise as [`emit`](Self::emit).
    pub fn emit_now<P: Serialize + Send + Sync + 'static>(
        &self,
        name: impl AsName,
        payload: &mut P,
    ) -> Result<(), EmitError> {
        let (name, carried) = (name.as_name(), const { &Carried::of::<P>() });
        let stamp = &EventStamp::new();
        Emit { source: self, name, carried, facet: None, delivery: &PATIENT, stamp }.now(payload)
    }

    /// Emits a payload under the name that its type carries, where nothing can be awaited.
    ///
    /// # Errors
    ///
    /// As [`emit_now`](Self::emit_now).
    pub fn emit_event_now<E: Event>(&self, payload: &mut E) -> Result<(), EmitError> {
        self.emit_now(E::NAME, payload)
    }

    /// Emits an event with a facet, where nothing can be awaited.
    ///
    /// # Errors
    ///
    /// As [`emit_now`](Self::emit_now).
    pub fn emit_now_with<P: Serialize + Send + Sync + 'static>(
        &self,
        name: impl AsName,
        payload: &mut P,
        facet: &Facet,
    ) -> Result<(), EmitError> {
        let (name, carried) = (name.as_name(), const { &Carried::of::<P>() });
        let stamp = &EventStamp::new();
        Emit { source: self, name, carried, facet: Some(facet), delivery: &PATIENT, stamp }.now(payload)
    }
}

/// What has come of beginning an emit.
#[derive(Debug)]
pub enum Emitted {
    /// Everybody has heard it.
    Done(Result<(), EmitError>),
    /// Some have heard it; the next has to be awaited.
    Waits(Box<Waiting>),
}

/// What is left to do of an emit.
pub struct Waiting {
    route: Route,
    progress: Progress,
    context: Context,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").finish_non_exhaustive()
    }
}

/// One emit: everything about it but the payload.
pub(crate) struct Emit<'a> {
    pub(crate) source: &'a Emitter,
    pub(crate) name: NameRef<'a>,
    pub(crate) carried: &'static Carried,
    pub(crate) facet: Option<&'a Facet>,
    pub(crate) delivery: &'a Delivery,
    pub(crate) stamp: &'a EventStamp,
}

/// What most emits are delivered with: nobody loses patience.
static PATIENT: Delivery = Delivery::new();

impl Emit<'_> {
    /// The source's context, and what the emit itself adds to it.
    pub(crate) fn context(&self) -> Context {
        self.source.context_with(self.facet)
    }

    /// Calls and awaits everybody who hears it.
    #[inline]
    async fn deliver(&self, event: &mut dyn AnyEvent) -> Result<(), EmitError> {
        self.check()?;
        match self.source.first_loud(self.name.bit()) {
            None => Ok(()),
            Some(from) => self.deliver_from(from, event).await,
        }
    }

    /// All that it needs stays where it is made, in the future: nothing is moved when a listener has to be awaited.
    async fn deliver_from(&self, from: &Emitter, event: &mut dyn AnyEvent) -> Result<(), EmitError> {
        let (meta, mut route, mut progress) = (EventMeta::new(self), Route::default(), Progress::default());
        if let Some(result) = self.call_sync(from, event, &meta, &mut route, &mut progress) {
            return result;
        }
        scoped(self.source.scope(), pin!(progress.rest(event, &meta, &route, self.delivery))).await
    }

    /// Finds the route, and calls listeners until one has to be awaited; gives the result if none has.
    #[inline(always)]
    fn call_sync(
        &self,
        from: &Emitter,
        event: &mut dyn AnyEvent,
        meta: &EventMeta<'_>,
        route: &mut Route,
        progress: &mut Progress,
    ) -> Option<Result<(), EmitError>> {
        route.find(from, meta);
        if route.is_empty() {
            return Some(Ok(()));
        }
        let called = if self.delivery.is_in_order() {
            within(self.source.scope_to_enter(), || progress.advance(event, meta, route))
        } else {
            progress.hurry();
            None
        };
        if called.is_none() {
            meta.fix();
        }
        called
    }

    /// The same, with what is left to do put aside.
    fn begin(&self, event: &mut dyn AnyEvent) -> Emitted {
        if let Err(error) = self.check() {
            return Emitted::Done(Err(error));
        }
        let Some(from) = self.source.first_loud(self.name.bit()) else { return Emitted::Done(Ok(())) };
        let (meta, mut route, mut progress) = (EventMeta::new(self), Route::default(), Progress::default());
        match self.call_sync(from, event, &meta, &mut route, &mut progress) {
            Some(result) => Emitted::Done(result),
            None => Emitted::Waits(Box::new(Waiting { route, progress, context: meta.into_context() })),
        }
    }

    fn now(&self, event: &mut dyn AnyEvent) -> Result<(), EmitError> {
        self.check()?;
        let Some(from) = self.source.first_loud(self.name.bit()) else { return Ok(()) };
        let meta = EventMeta::new(self);
        let mut route = Route::default();
        route.find(from, &meta);
        let would_await =
            |listener: &Listener| EmitErrorKind::WouldAwait { path: meta.path().to_owned(), at: listener.at }.into();
        if let Some(listener) = route.first_async(&meta) {
            return Err(would_await(listener));
        }
        let mut progress = Progress::default();
        match within(self.source.scope_to_enter(), || progress.advance(event, &meta, &route)) {
            Some(result) => result,
            // A sink had room a moment ago.
            None => progress.awaited(&route).map_or(Ok(()), |listener| Err(would_await(listener))),
        }
    }

    #[inline]
    fn check(&self) -> Result<(), EmitError> {
        self.name.check()?;
        match self.source.declared() {
            // Events of a sub-namespace are not the emitter's to declare.
            _ if self.name.is_dotted() => Ok(()),
            None => Ok(()),
            Some(declared) => declared.check_emit(self.name.as_str(), self.carried.id(), self.carried.name()),
        }
    }
}

/// Calls inside a run's scope, where there is one.
#[inline]
fn within<R>(scope: Option<Arc<dyn Scope>>, mut f: impl FnMut() -> R) -> R {
    let Some(scope) = scope else { return f() };
    let mut result = None;
    scope.within(&mut || result = Some(f()));
    result.unwrap_or_else(f)
}

/// Awaits what is left to do, inside a run's scope where there is one.
async fn scoped<R>(scope: Option<Arc<dyn Scope>>, mut rest: Pin<&mut impl Future<Output = R>>) -> R {
    match scope {
        None => rest.await,
        Some(scope) => poll_fn(|cx| within(Some(Arc::clone(&scope)), || rest.as_mut().poll(cx))).await,
    }
}
