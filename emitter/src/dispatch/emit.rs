//! Emitting: from a name and a payload to a dispatch.

use std::fmt;

use serde::Serialize;

use crate::dispatch::Progress;
use crate::dispatch::route::Route;
use crate::error::EmitErrorKind;
use crate::event::Carried;
use crate::listener::Listener;
use crate::name::NameRef;
use crate::scope::{within, within_run_of};
use crate::{AnyEvent, AsName, Context, Delivery, EmitError, Emitter, Event, EventMeta, EventName, EventStamp, Facet};

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
        let emit = Emit { source: self, name, carried, facet: None, delivery: &PATIENT, stamp };
        match emit.heard_from()? {
            None => Ok(()),
            Some(from) => emit.deliver(from, payload).await,
        }
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
        let emit = Emit { source: self, name, carried, facet: Some(facet), delivery: &PATIENT, stamp };
        match emit.heard_from()? {
            None => Ok(()),
            Some(from) => emit.deliver(from, payload).await,
        }
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
        // Boxed, because it is seldom, and the future of a run has it in itself.
        Box::pin(async { Hearing::go_on(&emit, *waiting).rest(payload).await }).await
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

impl<'a> Emit<'a> {
    /// The bits of the names that it may be heard under.
    #[inline]
    pub(crate) fn bits(&self) -> u64 {
        self.name.bit() | self.facet.map_or(0, Facet::bits)
    }

    /// The source's context, and what the emit itself adds to it.
    pub(crate) fn context(&self) -> Context {
        self.source.context_with(self.facet)
    }

    /// The first emitter from the source up where it may be heard; none if nobody listens (E15).
    #[inline]
    fn heard_from(&self) -> Result<Option<&'a Emitter>, EmitError> {
        self.check()?;
        let from = self.source.first_loud(self.bits());
        Ok(from.filter(|_| !self.source.is_too_late_for(self.name)))
    }

    /// Calls and awaits everybody who hears it.
    ///
    /// All that it needs stays where it is made, in the future: nothing is moved when a listener has to be awaited.
    async fn deliver(&self, from: &Emitter, event: &mut dyn AnyEvent) -> Result<(), EmitError> {
        let mut hearing = Hearing::of(self);
        match hearing.call(from, event) {
            Some(result) => result,
            None => hearing.rest(event).await,
        }
    }

    /// The same, with what is left to do put aside.
    fn begin(&self, event: &mut dyn AnyEvent) -> Emitted {
        let from = match self.heard_from() {
            Ok(Some(from)) => from,
            Ok(None) => return Emitted::Done(Ok(())),
            Err(error) => return Emitted::Done(Err(error)),
        };
        let mut hearing = Hearing::of(self);
        match hearing.call(from, event) {
            Some(result) => Emitted::Done(result),
            None => Emitted::Waits(Box::new(hearing.put_aside())),
        }
    }

    fn now(&self, event: &mut dyn AnyEvent) -> Result<(), EmitError> {
        let Some(from) = self.heard_from()? else { return Ok(()) };
        let (meta, mut route) = (EventMeta::new(self), Route::default());
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

/// An emit that somebody may hear.
struct Hearing<'a> {
    emit: &'a Emit<'a>,
    meta: EventMeta<'a>,
    route: Route,
    progress: Progress,
}

impl<'a> Hearing<'a> {
    #[inline(always)]
    fn of(emit: &'a Emit<'a>) -> Self {
        Self { emit, meta: EventMeta::new(emit), route: Route::default(), progress: Progress::default() }
    }

    /// Finds the route, and calls listeners until one has to be awaited; gives the result if none has.
    ///
    /// Never inlined: in the future of an emit, which is inlined where that is awaited, it would have no registers.
    #[inline(never)]
    fn call(&mut self, from: &Emitter, event: &mut dyn AnyEvent) -> Option<Result<(), EmitError>> {
        let Self { emit, meta, route, progress } = self;
        route.find(from, meta);
        if route.is_empty() {
            return Some(Ok(()));
        }
        let called = if !emit.delivery.is_in_order() {
            progress.hurry();
            None
        } else if let Some(scope) = emit.source.scope_to_enter() {
            within(Some(scope), || progress.advance(event, meta, route))
        } else {
            progress.begin(event, meta, route)
        };
        if called.is_none() {
            meta.fix();
        }
        called
    }

    /// Calls and awaits the others.
    async fn rest(&mut self, event: &mut dyn AnyEvent) -> Result<(), EmitError> {
        let Self { emit, meta, route, progress } = self;
        if emit.source.run_link().is_none() {
            return progress.rest(event, meta, route, emit.delivery).await;
        }
        within_run_of(emit.source, progress.rest_in_run(event, meta, route, emit.delivery)).await
    }

    fn put_aside(self) -> Waiting {
        self.meta.put_aside();
        Waiting { route: self.route, progress: self.progress }
    }

    fn go_on(emit: &'a Emit<'a>, waiting: Waiting) -> Self {
        let Waiting { route, progress } = waiting;
        Self { emit, meta: EventMeta::new(emit), route, progress }
    }
}
