//! Calling the listeners of a route: the only place that runs user code, and awaits it.
//!
//! 1. Those that may change the event run first, one after the other, all the way up; then those that observe (E5).
//! 2. Sync listeners are called where they stand. The first that has to be awaited moves the rest into a future.
//! 3. A failure of one that may change ends the changing; observers still hear the event (E11).
//! 4. No lock is held here.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::error::EmitErrorKind;
use crate::listener::{Answer, Call, Fault, Later, Listener, OnError, Role, panicked};
use crate::route::{Cursor, Route};
use crate::snapshot::Takers;
use crate::{AnyEvent, BoxError, Delivery, EmitError, Emitter, EventMeta};

/// How far an event has come.
#[derive(Default)]
pub(crate) struct Progress {
    changed: bool,
    cursor: Cursor,
    /// The listener at the cursor is known to have to be awaited.
    awaits: bool,
    /// Nobody has been called yet, and those that need not be awaited come first.
    hurries: bool,
    failed: Option<EmitError>,
}

/// What a stretch of sync listeners ends with.
enum Halt<'r> {
    End,
    /// The next listener has to be awaited.
    Await,
    Fault(&'r Arc<Listener>, Box<Fault>),
}

impl Progress {
    /// The changing is over, whoever has not been asked.
    fn observe(&mut self) {
        self.changed = true;
        self.cursor = Cursor::default();
    }

    /// Takes a failure in: it fails the emit, or is logged and counted (E11).
    #[cold]
    #[expect(clippy::boxed_local, reason = "unboxed here, and not in the loop of every emit")]
    fn judge(&mut self, listener: &Listener, fault: Box<Fault>, event: &dyn AnyEvent, meta: &EventMeta<'_>) {
        match listener.on_error {
            OnError::Propagate => {
                let error = explain(listener, *fault, event, meta);
                self.failed.get_or_insert(error);
                if !self.changed {
                    self.observe();
                }
            }
            OnError::Isolate => isolate(listener, &explain(listener, *fault, event, meta)),
        }
    }

    /// Calls nobody yet; then those first that need not be awaited.
    pub(crate) fn hurry(&mut self) {
        self.hurries = true;
    }

    /// Leaves the listener at the cursor to be awaited.
    fn wait<T>(&mut self) -> Option<T> {
        self.awaits = true;
        None
    }

    /// The listener at which [`advance`](Self::advance) stopped.
    pub(crate) fn awaited<'r>(&mut self, route: &'r Route) -> Option<&'r Arc<Listener>> {
        let role = if self.changed { Role::Observe } else { Role::Change };
        route.next(role, &mut self.cursor)
    }

    #[inline]
    fn result(&mut self) -> Result<(), EmitError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Calls listeners until one has to be awaited; gives the result if none has.
    #[inline]
    pub(crate) fn advance(
        &mut self,
        event: &mut dyn AnyEvent,
        meta: &EventMeta<'_>,
        route: &Route,
    ) -> Option<Result<(), EmitError>> {
        while !self.changed {
            match change_stretch(route, &mut self.cursor, event, meta) {
                Halt::End => self.observe(),
                Halt::Await => return self.wait(),
                Halt::Fault(listener, fault) => self.judge(listener, fault, event, meta),
            }
        }
        if !route.is_observed {
            return Some(self.result());
        }
        loop {
            match observe_stretch(route, &mut self.cursor, event, meta) {
                Halt::End => return Some(self.result()),
                Halt::Await => return self.wait(),
                Halt::Fault(listener, fault) => self.judge(listener, fault, event, meta),
            }
        }
    }

    /// Calls and awaits the rest.
    pub(crate) async fn rest(
        &mut self,
        event: &mut dyn AnyEvent,
        meta: &EventMeta<'_>,
        route: &Route,
        delivery: &Delivery,
    ) -> Result<(), EmitError> {
        if std::mem::take(&mut self.hurries) {
            return self.sync_first(event, meta, route, delivery).await;
        }
        change(event, meta, route, self, delivery).await;
        observe(event, meta, route, self, delivery).await;
        self.result()
    }

    /// Calls all that need not be awaited, then awaits the others: for a [`Delivery`] that is less than patient.
    async fn sync_first(
        &mut self,
        event: &mut dyn AnyEvent,
        meta: &EventMeta<'_>,
        route: &Route,
        delivery: &Delivery,
    ) -> Result<(), EmitError> {
        let changing = self.call_sync(Role::Change, event, meta, route);
        self.observe();
        let observing = self.call_sync(Role::Observe, event, meta, route);
        for listener in changing {
            if let Err(fault) = await_change(listener, event, meta, delivery).await {
                self.judge(listener, fault, event, meta);
                break;
            }
        }
        let event: &dyn AnyEvent = event;
        let answers = observing.into_iter().map(|listener| async move {
            let answer = await_observe(listener, event, meta, delivery).await;
            (listener, answer)
        });
        Box::pin(settle(answers.collect(), event, meta, self, delivery)).await;
        self.result()
    }

    /// Calls those of a role that need not be awaited; gives the others. After a failure nobody else may change (E11).
    fn call_sync<'r>(
        &mut self,
        role: Role,
        event: &mut dyn AnyEvent,
        meta: &EventMeta<'_>,
        route: &'r Route,
    ) -> Vec<&'r Arc<Listener>> {
        let (mut cursor, mut later) = (Cursor::default(), Vec::new());
        while let Some(listener) = route.next(role, &mut cursor).filter(|_| self.changed || role == Role::Change) {
            if !listener.matcher.says(meta) {
                continue;
            }
            match catch_unwind(AssertUnwindSafe(|| call_one(listener, event, meta))).map_err(panicked) {
                Ok(Called::Now(Ok(())) | Called::Spent) => listener.leave_if_spent(),
                Ok(Called::Later) => later.push(listener),
                Ok(Called::Now(Err(fault))) | Err(fault) => {
                    listener.leave_if_spent();
                    self.judge(listener, fault, event, meta);
                    if self.changed && role == Role::Change {
                        return Vec::new();
                    }
                }
            }
        }
        later
    }
}

fn call_one(listener: &Listener, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> Called {
    match &listener.call {
        Call::Change(call) => Called::now(listener, || call(event, meta)),
        Call::Observe(call) => Called::now(listener, || call(event, meta)),
        Call::TryObserve { now, .. } if !listener.claims.is_spent() && now(event, meta) => Called::Now(Ok(())),
        _ => Called::later(listener),
    }
}

async fn change(
    event: &mut dyn AnyEvent,
    meta: &EventMeta<'_>,
    route: &Route,
    progress: &mut Progress,
    delivery: &Delivery,
) {
    while !progress.changed {
        let halt = match std::mem::take(&mut progress.awaits) {
            true => Halt::Await,
            false => change_stretch(route, &mut progress.cursor, event, meta),
        };
        let (listener, fault) = match halt {
            Halt::End => return progress.observe(),
            Halt::Fault(listener, fault) => (listener, fault),
            Halt::Await => {
                let Some(listener) = route.next(Role::Change, &mut progress.cursor) else { continue };
                match await_change(listener, event, meta, delivery).await {
                    Ok(()) => continue,
                    Err(fault) => (listener, fault),
                }
            }
        };
        progress.judge(listener, fault, event, meta);
    }
}

async fn await_change(
    listener: &Listener,
    event: &mut dyn AnyEvent,
    meta: &EventMeta<'_>,
    delivery: &Delivery,
) -> Answer {
    let answer = match &listener.call {
        Call::ChangeAsync(call) if listener.claims.claim() => {
            delivery.unless_cut(contained(|| call(event, meta))).await
        }
        _ => Ok(()),
    };
    listener.leave_if_spent();
    answer
}

async fn observe(
    event: &dyn AnyEvent,
    meta: &EventMeta<'_>,
    route: &Route,
    progress: &mut Progress,
    delivery: &Delivery,
) {
    let mut started = Vec::new();
    loop {
        let halt = match std::mem::take(&mut progress.awaits) {
            true => Halt::Await,
            false => observe_stretch(route, &mut progress.cursor, event, meta),
        };
        let (listener, fault) = match halt {
            Halt::End => break,
            Halt::Fault(listener, fault) => (listener, fault),
            Halt::Await => {
                let Some(listener) = route.next(Role::Observe, &mut progress.cursor) else { continue };
                let mut answer = Box::pin(await_observe(listener, event, meta, delivery));
                // Started now, in order; awaited together with the others.
                match poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await {
                    Poll::Ready(Ok(())) => continue,
                    Poll::Ready(Err(fault)) => (listener, fault),
                    Poll::Pending => {
                        started.push(async move { (listener, answer.await) });
                        continue;
                    }
                }
            }
        };
        progress.judge(listener, fault, event, meta);
    }
    if !started.is_empty() {
        // Boxed, because it is large and seldom.
        Box::pin(settle(started.into_iter().collect(), event, meta, progress, delivery)).await;
    }
}

/// Awaits the observers that were started and have not answered yet.
async fn settle<'r>(
    mut pending: FuturesUnordered<impl Future<Output = (&'r Arc<Listener>, Answer)>>,
    event: &dyn AnyEvent,
    meta: &EventMeta<'_>,
    progress: &mut Progress,
    delivery: &Delivery,
) {
    while let Some((listener, answer)) = poll_fn(|cx| poll_next(&mut pending, delivery, cx)).await {
        if let Err(fault) = answer {
            progress.judge(listener, fault, event, meta);
        }
    }
}

/// The next answer; none is left once nobody is awaited any more.
fn poll_next<F: Future>(
    pending: &mut FuturesUnordered<F>,
    delivery: &Delivery,
    cx: &mut TaskContext<'_>,
) -> Poll<Option<F::Output>> {
    if !delivery.is_cut() {
        return pending.poll_next_unpin(cx);
    }
    // Each gives itself up when it is polled; `pending` itself polls only those that have been woken.
    Pin::new(&mut *pending).iter_pin_mut().for_each(|answer| drop(answer.poll(cx)));
    pending.clear();
    Poll::Ready(None)
}

async fn await_observe(listener: &Listener, event: &dyn AnyEvent, meta: &EventMeta<'_>, delivery: &Delivery) -> Answer {
    let answer = match &listener.call {
        Call::ObserveAsync(call) | Call::TryObserve { later: call, .. } if listener.claims.claim() => {
            delivery.unless_cut(contained(|| call(event, meta))).await
        }
        _ => Ok(()),
    };
    listener.leave_if_spent();
    answer
}

/// Makes and awaits a listener's future; its panics are answers.
async fn contained<'f>(make: impl FnOnce() -> Later<'f>) -> Answer {
    let future = catch_unwind(AssertUnwindSafe(make)).map_err(panicked)?.ok_or(Fault::Mismatch)?;
    Ok(AssertUnwindSafe(future).catch_unwind().await.map_err(panicked)??)
}

#[inline(always)]
fn change_stretch<'r>(
    route: &'r Route,
    cursor: &mut Cursor,
    event: &mut dyn AnyEvent,
    meta: &EventMeta<'_>,
) -> Halt<'r> {
    stretch(route, Role::Change, cursor, meta, |listener| match &listener.call {
        Call::Change(call) => Called::now(listener, || call(event, meta)),
        _ => Called::later(listener),
    })
}

#[inline(always)]
fn observe_stretch<'r>(route: &'r Route, cursor: &mut Cursor, event: &dyn AnyEvent, meta: &EventMeta<'_>) -> Halt<'r> {
    stretch(route, Role::Observe, cursor, meta, |listener| match &listener.call {
        Call::Observe(call) => Called::now(listener, || call(event, meta)),
        Call::TryObserve { now, .. } if !listener.claims.is_spent() && now(event, meta) => Called::Now(Ok(())),
        _ => Called::later(listener),
    })
}

/// What has come of calling a listener.
enum Called {
    Now(Answer),
    /// It has no calls left (E8, E9).
    Spent,
    /// It has to be awaited.
    Later,
}

impl Called {
    #[inline]
    fn now(listener: &Listener, call: impl FnOnce() -> Answer) -> Self {
        if listener.claims.claim() { Self::Now(call()) } else { Self::Spent }
    }

    /// What is awaited is claimed where it is awaited; but where no call is left, nothing is awaited.
    #[inline]
    fn later(listener: &Listener) -> Self {
        if listener.claims.is_spent() { Self::Spent } else { Self::Later }
    }
}

/// Calls one listener after the other until one fails or has to be awaited.
#[inline(always)]
fn stretch<'r>(
    route: &'r Route,
    role: Role,
    cursor: &mut Cursor,
    meta: &EventMeta<'_>,
    mut call: impl FnMut(&Listener) -> Called,
) -> Halt<'r> {
    while let Some(takers) = route.takers(role, *cursor) {
        if !takers.is_empty() {
            match call_takers(&takers, &mut cursor.taker, meta, &mut call) {
                Halt::End => {}
                halt => return halt,
            }
        }
        cursor.pass();
    }
    Halt::End
}

/// The same at one stop, from a place on.
///
/// One `catch_unwind` serves them all; whose panic it was shows in the place. Always inlined, as all that leads
/// here: this is the loop of every emit.
#[inline(always)]
fn call_takers<'r>(
    takers: &Takers<'r>,
    place: &mut usize,
    meta: &EventMeta<'_>,
    call: &mut impl FnMut(&Listener) -> Called,
) -> Halt<'r> {
    let run = AssertUnwindSafe(|| {
        while let Some((after, listener)) = takers.next(*place) {
            let before = std::mem::replace(place, after);
            if !listener.matcher.says(meta) {
                continue;
            }
            match call(listener) {
                Called::Now(Ok(())) => listener.leave_if_spent(),
                Called::Now(Err(fault)) => return Halt::Fault(listener, fault),
                Called::Spent => {}
                Called::Later => {
                    *place = before;
                    return Halt::Await;
                }
            }
        }
        Halt::End
    });
    let halt = catch_unwind(run).unwrap_or_else(|panic| match takers.before(*place) {
        Some(listener) => Halt::Fault(listener, panicked(panic)),
        None => Halt::End,
    });
    if let Halt::Fault(listener, _) = &halt {
        listener.leave_if_spent();
    }
    halt
}

impl Listener {
    /// One that has had its last call goes (E8).
    #[inline]
    fn leave_if_spent(&self) {
        if self.claims.is_spent() {
            self.leave();
        }
    }
}

/// Says what went wrong, once: the error of an emit inside a listener passes unchanged (E11, R10).
fn explain(listener: &Listener, fault: Fault, event: &dyn AnyEvent, meta: &EventMeta<'_>) -> EmitError {
    let (path, at) = (meta.path().to_owned(), listener.at);
    match fault {
        Fault::Error(source) => wrap(source, path, at),
        Fault::Panic(message) => EmitErrorKind::Panicked { path, at, message }.into(),
        Fault::Mismatch => EmitErrorKind::TypeMismatch {
            path,
            at,
            carried: event.type_name(),
            heard: listener.heard.map_or("any", |heard| heard.name),
        }
        .into(),
    }
}

fn wrap(source: BoxError, path: String, at: &'static std::panic::Location<'static>) -> EmitError {
    match source.downcast::<EmitError>() {
        Ok(error) if error.names_a_listener() => *error,
        Ok(source) => EmitErrorKind::Listener { path, at, source }.into(),
        Err(source) => EmitErrorKind::Listener { path, at, source }.into(),
    }
}

fn isolate(listener: &Listener, error: &EmitError) {
    let cause = std::error::Error::source(error).map(tracing::field::display);
    tracing::warn!(error = %error, cause, "a listener's failure was isolated");
    if let Some(registry) = listener.home.upgrade().map(Emitter::from).as_ref().and_then(Emitter::registry) {
        registry.count_isolated();
    }
}
