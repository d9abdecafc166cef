//! Emitting: from a name and a payload to a dispatch.

use std::fmt;

use serde::Serialize;

use super::route::Route;
use super::sync::{Dispatch, DispatchProgress};
use crate::emitter::scope::within_run_of;
use crate::event::CarriedType;
use crate::name::NameRef;
use crate::rt::{Delivery, EventStamp, Facet};
use crate::{AnyEvent, AsName, Context, EmitError, Emitter, Event, EventMeta, EventName};

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
        let stamp = const { EventStamp::new() };
        let emit = Emit::of::<P>(self, name.as_name(), None, &stamp);
        let Some(first) = emit.first_receiver()? else { return Ok(()) };
        // It stays here, in the future: nothing is moved when a listener has to be awaited (WA).
        let mut dispatch = Dispatch::new(&emit);
        match dispatch.start(first, payload) {
            Some(result) => result,
            None => dispatch.finish(payload).await,
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

    /// Emits an event with a facet, as far as nobody has to be awaited. What is left to do then is put aside, and done by
    /// [`emit_rest`](Self::emit_rest): so who emits on a common path pays for a future only where there is one.
    pub fn emit_begin<P: Serialize + Send + Sync + 'static>(
        &self,
        name: EventName,
        payload: &mut P,
        facet: &Facet,
        (delivery, stamp): (&Delivery, &EventStamp),
    ) -> Emitted {
        let emit = Emit { delivery: Some(delivery), ..Emit::of::<P>(self, name.as_name(), Some(facet), stamp) };
        emit.begin(payload)
    }

    /// Does what is left to do of an emit. Everything has to be as it was given to [`emit_begin`](Self::emit_begin).
    ///
    /// # Errors
    ///
    /// As [`emit`](Self::emit).
    pub async fn emit_rest<P: Serialize + Send + Sync + 'static>(
        &self,
        pending: Box<PendingDispatch>,
        name: EventName,
        payload: &mut P,
        facet: &Facet,
        (delivery, stamp): (&Delivery, &EventStamp),
    ) -> Result<(), EmitError> {
        let emit = Emit { delivery: Some(delivery), ..Emit::of::<P>(self, name.as_name(), Some(facet), stamp) };
        // Boxed, because it is seldom, and the future of a run has it in itself.
        Box::pin(async { Dispatch::resume(&emit, *pending).finish(payload).await }).await
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
        Emit::of::<P>(self, name.as_name(), None, &const { EventStamp::new() }).now(payload)
    }

    /// Emits a payload under the name that its type carries, where nothing can be awaited.
    ///
    /// # Errors
    ///
    /// As [`emit_now`](Self::emit_now).
    pub fn emit_event_now<E: Event>(&self, payload: &mut E) -> Result<(), EmitError> {
        self.emit_now(E::NAME, payload)
    }

    /// Emits an event with a facet, which listeners find in its meta, where nothing can be awaited.
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
        Emit::of::<P>(self, name.as_name(), Some(facet), &const { EventStamp::new() }).now(payload)
    }
}

/// What has come of beginning an emit.
#[derive(Debug)]
pub enum Emitted {
    /// Everybody has heard it.
    Done(Result<(), EmitError>),
    /// Some have heard it; the next has to be awaited.
    Waits(Box<PendingDispatch>),
}

/// What is left to do of an emit.
pub struct PendingDispatch {
    route: Route,
    progress: DispatchProgress,
}

impl fmt::Debug for PendingDispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingDispatch").finish_non_exhaustive()
    }
}

/// One emit: everything about it but the payload.
pub(crate) struct Emit<'a> {
    pub(crate) source: &'a Emitter,
    pub(crate) name: NameRef<'a>,
    /// The bits of the names under which listeners may receive it.
    pub(crate) name_bits: u64,
    pub(crate) carried: &'static CarriedType,
    pub(crate) facet: Option<&'a Facet>,
    /// In order, if none is given.
    pub(crate) delivery: Option<&'a Delivery>,
    pub(crate) stamp: &'a EventStamp,
}

impl<'a> Emit<'a> {
    #[inline]
    fn of<P: 'static>(source: &'a Emitter, name: NameRef<'a>, facet: Option<&'a Facet>, stamp: &'a EventStamp) -> Self {
        let name_bits = name.bit() | facet.map_or(0, Facet::name_bits);
        Self { source, name, name_bits, carried: const { &CarriedType::of::<P>() }, facet, delivery: None, stamp }
    }

    /// The source's context, and what the emit itself adds to it.
    pub(crate) fn context(&self) -> Context {
        self.source.context_with(self.facet)
    }

    /// The first emitter from the source up that may have listeners for it; none if nobody listens (E15).
    ///
    /// Always inlined: where nobody listens it is all that an emit does (W0).
    #[inline(always)]
    fn first_receiver(&self) -> Result<Option<&'a Emitter>, EmitError> {
        self.name.check()?;
        // Events of a sub-namespace are not the emitter's to declare.
        if let Some(declared) = self.source.declared()
            && !self.name.is_dotted()
        {
            declared.check_emit(self.name.as_str(), self.carried.id, self.carried.name())?;
        }
        let first = self.source.first_receiver(self.name_bits);
        // On a run that has ended it reaches nobody (R14).
        Ok(first.filter(|_| !(self.source.is_in_run() && self.source.is_too_late_for(self.name))))
    }

    /// Calls listeners until one has to be awaited; what is left to do then is put aside.
    fn begin(&self, event: &mut dyn AnyEvent) -> Emitted {
        let first = match self.first_receiver() {
            Ok(Some(first)) => first,
            Ok(None) => return Emitted::Done(Ok(())),
            Err(error) => return Emitted::Done(Err(error)),
        };
        let mut dispatch = Dispatch::new(self);
        match dispatch.start(first, event) {
            Some(result) => Emitted::Done(result),
            None => Emitted::Waits(Box::new(dispatch.suspend())),
        }
    }

    /// Calls listeners where nothing can be awaited.
    fn now(&self, event: &mut dyn AnyEvent) -> Result<(), EmitError> {
        self.first_receiver()?.map_or(Ok(()), |first| Dispatch::new(self).start_now(first, event))
    }
}

impl<'a> Dispatch<'a> {
    /// Calls and awaits the listeners that are left.
    async fn finish(&mut self, event: &mut dyn AnyEvent) -> Result<(), EmitError> {
        let Self { emit, meta, route, progress } = self;
        let delivery = emit.delivery;
        if emit.source.run_link().is_none() {
            return progress.finish(route, event, meta, delivery).await;
        }
        // In a run, a failure that nobody is given goes with this future: where it is dropped, inside of the run (R14).
        let mut progress = std::mem::replace(progress, DispatchProgress::START);
        let finish = async move { progress.finish(route, event, meta, delivery).await };
        within_run_of(emit.source, finish).await
    }

    fn suspend(self) -> PendingDispatch {
        self.meta.save_to_stamp();
        PendingDispatch { route: self.route, progress: self.progress }
    }

    fn resume(emit: &'a Emit<'a>, pending: PendingDispatch) -> Self {
        Self { emit, meta: EventMeta::new(emit), route: pending.route, progress: pending.progress }
    }
}
