//! Begins an emit.
//!
//! An emit checks the name and looks for the first emitter that may have listeners. If there is none, the emit is
//! done (E15). Otherwise, it hands over to a [`Dispatch`], which finds all listeners ([`Route`]) and calls them.

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
    /// Emits an event and waits until all its listeners have run.
    ///
    /// 1. The name is checked, and the listeners that receive the event are selected. They are registered on this
    ///    emitter, on its ancestors, on the runs above its run, or on the targets of pipes and their ancestors. A
    ///    listener that is registered later does not receive this event.
    /// 2. Listeners that may change the event run one after the other, on this emitter first. On one emitter, listeners
    ///    with a higher priority run first, and listeners with equal priority run in the order of registration. Each
    ///    async listener is awaited before the next listener starts.
    /// 3. Observers run in the same order. Async observers are started in that order and awaited together.
    ///
    /// By default, if a listener in step 2 fails, the remaining listeners of step 2 are not called. Step 3 still takes
    /// place, and the emit then returns the error. Changes made before the failure stay in the payload. By default,
    /// failures of observers are logged and counted. [`OnError`](crate::OnError) sets the effect of a failure.
    ///
    /// With no listeners, an emit costs a few atomic loads: it reads no clock, creates no id, allocates nothing and takes
    /// no lock. The search for listeners allocates only if it passes more than 256 emitters, as in an emit below some 80
    /// nested runs.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is not valid, or if a listener fails and its failure is not isolated. Also returns
    /// an error if the emitter [declares](crate::EmitterBuilder::declares) this event with another type.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the futures of listeners that are being awaited are dropped as well, and no further
    /// listener is called. Changes already made stay in the payload.
    ///
    /// # Examples
    ///
    /// ```
    /// use emitree_emitter::{BoxError, Emitter};
    ///
    /// # futures_util::future::FutureExt::now_or_never(async {
    /// let emitter = Emitter::new();
    /// emitter.on("count", |n: &mut u32, _| *n += 1)?;
    /// emitter.on_async("count", |n: &mut u32, _| Box::pin(async move { Ok(*n *= 10) }))?;
    ///
    /// let mut n = 1_u32;
    /// emitter.emit("count", &mut n).await?;
    /// assert_eq!(n, 20);
    /// # Ok::<(), BoxError>(())
    /// # }).unwrap()?;
    /// # Ok::<(), BoxError>(())
    /// ```
    #[inline]
    pub fn emit<P: Serialize + Send + Sync + 'static>(
        &self,
        name: impl AsName,
        payload: &mut P,
    ) -> impl Future<Output = Result<(), EmitError>> {
        // Return the inner future itself: another one around it makes an emit without listeners slower (bench W0).
        self.emit_with(name, payload, None)
    }

    #[inline]
    async fn emit_with<P: Serialize + Send + Sync + 'static>(
        &self,
        name: impl AsName,
        payload: &mut P,
        facet: Option<&Facet>,
    ) -> Result<(), EmitError> {
        let stamp = const { EventStamp::new() };
        let emit = Emit::of::<P>(self, name.as_name(), facet, &stamp);
        let Some(first) = emit.first_receiver()? else { return Ok(()) };
        // The dispatch stays in this future, so that nothing is moved when a listener has to be awaited (bench WA).
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
    /// Returns an error in the same cases as [`emit`](Self::emit).
    ///
    /// # Cancel safety
    ///
    /// See [`emit`](Self::emit).
    pub fn emit_event<E: Event>(&self, payload: &mut E) -> impl Future<Output = Result<(), EmitError>> {
        self.emit_with(E::NAME, payload, Some(Facet::of_event::<E>()))
    }

    /// Begins to emit an event with a facet, and calls listeners until one has to be awaited.
    ///
    /// If a listener has to be awaited, the rest of the emit is returned, and [`emit_rest`](Self::emit_rest) continues
    /// it. A caller on a hot path thus pays for a future only if the emit needs one.
    #[doc(hidden)]
    pub fn emit_begin<P: Serialize + Send + Sync + 'static>(
        &self,
        name: EventName,
        payload: &mut P,
        facet: &Facet,
        delivery: &Delivery,
        stamp: &EventStamp,
    ) -> Emitted {
        let emit = Emit { delivery: Some(delivery), ..Emit::of::<P>(self, name.as_name(), Some(facet), stamp) };
        emit.begin(payload)
    }

    /// Continues an emit that [`emit_begin`](Self::emit_begin) began. Pass the same arguments to both methods.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`emit`](Self::emit).
    ///
    /// # Cancel safety
    ///
    /// See [`emit`](Self::emit).
    #[doc(hidden)]
    pub async fn emit_rest<P: Serialize + Send + Sync + 'static>(
        &self,
        pending: Box<PendingDispatch>,
        name: EventName,
        payload: &mut P,
        facet: &Facet,
        delivery: &Delivery,
        stamp: &EventStamp,
    ) -> Result<(), EmitError> {
        let emit = Emit { delivery: Some(delivery), ..Emit::of::<P>(self, name.as_name(), Some(facet), stamp) };
        // The inner future is boxed, because few emits need it, but the future of every run contains the outer future.
        Box::pin(async { Dispatch::resume(&emit, *pending).finish(payload).await }).await
    }

    /// Emits an event from code that cannot await.
    ///
    /// # Errors
    ///
    /// Returns an error if an async listener, or a full sink that blocks, would receive the event. No listener is
    /// called in that case, unless a sink fills up during this call.
    ///
    /// Also returns an error in the same cases as [`emit`](Self::emit).
    ///
    /// # Examples
    ///
    /// ```
    /// use emitree_emitter::Emitter;
    ///
    /// let emitter = Emitter::new();
    /// emitter.on("count", |n: &mut u32, _| *n += 1)?;
    /// let mut n = 1_u32;
    /// emitter.emit_now("count", &mut n)?;
    /// assert_eq!(n, 2);
    ///
    /// emitter.on_async("count", |_: &mut u32, _| Box::pin(async { Ok(()) }))?;
    /// assert!(emitter.emit_now("count", &mut n).is_err());
    /// assert_eq!(n, 2);
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn emit_now<P: Serialize + Send + Sync + 'static>(
        &self,
        name: impl AsName,
        payload: &mut P,
    ) -> Result<(), EmitError> {
        Emit::of::<P>(self, name.as_name(), None, &const { EventStamp::new() }).now(payload)
    }

    /// Emits a payload under the name that its type carries, from code that cannot await.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`emit_now`](Self::emit_now).
    pub fn emit_event_now<E: Event>(&self, payload: &mut E) -> Result<(), EmitError> {
        let facet = Some(Facet::of_event::<E>());
        Emit::of::<E>(self, E::NAME.as_name(), facet, &const { EventStamp::new() }).now(payload)
    }
}

/// The outcome of [`Emitter::emit_begin`].
#[derive(Debug)]
pub enum Emitted {
    /// The emit has finished, with this result.
    Done(Result<(), EmitError>),
    /// The next listener has to be awaited: pass this value to [`Emitter::emit_rest`].
    Waits(Box<PendingDispatch>),
}

/// The rest of an emit: the selected listeners, and the progress through them.
pub struct PendingDispatch {
    route: Route,
    progress: DispatchProgress,
}

impl fmt::Debug for PendingDispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingDispatch").finish_non_exhaustive()
    }
}

/// One emit without its payload: source, name, payload type, facet, delivery and stamp.
pub(crate) struct Emit<'a> {
    pub(crate) source: &'a Emitter,
    pub(crate) name: NameRef<'a>,
    /// The bits of all names under which listeners may receive the event. An emitter whose listeners have none of these
    /// bits is skipped after one load.
    pub(crate) name_bits: u64,
    pub(crate) carried: &'static CarriedType,
    pub(crate) facet: Option<&'a Facet>,
    /// If `None`, the event is delivered in order.
    pub(crate) delivery: Option<&'a Delivery>,
    pub(crate) stamp: &'a EventStamp,
}

impl<'a> Emit<'a> {
    #[inline]
    fn of<P: 'static>(source: &'a Emitter, name: NameRef<'a>, facet: Option<&'a Facet>, stamp: &'a EventStamp) -> Self {
        let name_bits = name.bit() | facet.map_or(0, Facet::name_bits);
        Self { source, name, name_bits, carried: const { &CarriedType::of::<P>() }, facet, delivery: None, stamp }
    }

    /// Returns the context of the source with the keys that the facet adds.
    pub(crate) fn context(&self) -> Context {
        self.source.context_with(self.facet)
    }

    /// Checks the event's name and declaration, and returns the first emitter, from the source up the tree, that may
    /// have listeners. Returns `None` if there is no such emitter (E15), or if the source's run has ended (R14).
    ///
    /// Always inlined: without listeners, this is all that an emit does (bench W0).
    #[inline(always)]
    fn first_receiver(&self) -> Result<Option<&'a Emitter>, EmitError> {
        self.name.check()?;
        // Names with a dot belong to sub-namespaces, which the emitter's declarations do not cover (E7).
        if let Some(declared) = self.source.declared()
            && !self.name.is_dotted()
        {
            declared.check_emit(self.name.as_str(), self.carried.id, self.carried.name())?;
        }
        let Some(first) = self.source.first_receiver(self.name_bits) else { return Ok(None) };
        // In a run that has ended, no event is delivered, and the first event that may have listeners is logged (R14).
        if self.source.is_in_run() && self.source.is_too_late_for(self.name) {
            return Ok(None);
        }
        Ok(Some(first))
    }

    /// Calls listeners until one has to be awaited. Returns the result of the emit, or the dispatch that still has to
    /// await listeners.
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

    /// Calls the listeners from code that cannot await (E17).
    fn now(&self, event: &mut dyn AnyEvent) -> Result<(), EmitError> {
        self.first_receiver()?.map_or(Ok(()), |first| Dispatch::new(self).start_now(first, event))
    }
}

impl<'a> Dispatch<'a> {
    /// Calls and awaits the remaining listeners.
    async fn finish(&mut self, event: &mut dyn AnyEvent) -> Result<(), EmitError> {
        let Self { emit, meta, route, progress } = self;
        let delivery = emit.delivery;
        if emit.source.run_link().is_none() {
            return progress.finish(route, event, meta, delivery).await;
        }
        // The progress may hold a listener's error, which has to be dropped inside the run's scope (R14). Move the
        // progress into the future that `within_run_of` drops there.
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
