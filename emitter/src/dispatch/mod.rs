//! Calling the listeners of a route. Here, in `sync.rs`, `batch.rs`, `awaited.rs` and
//! `sync_first.rs` user code runs, and nowhere else.
//!
//! 1. Those that may change the event run first, one after the other, all the way up; then those that observe (E5).
//! 2. Sync listeners are called where they stand. From the first on that has to be awaited, the rest is a future.
//! 3. A failure of one that may change ends the changing; observers still hear the event (E11).
//! 4. No lock is held here.

pub(crate) mod awaited;
pub(crate) mod batch;
mod delivery;
pub(crate) mod emit;
pub(crate) mod failure;
pub(crate) mod route;
pub(crate) mod sync;
mod sync_first;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use futures_util::stream::{FuturesUnordered, StreamExt};

pub use self::delivery::Delivery;
pub use self::emit::{Emitted, Waiting};
use crate::dispatch::awaited::{await_change, await_observe};
use crate::dispatch::failure::{explain, isolate};
use crate::dispatch::route::{Cursor, Route};
use crate::dispatch::sync::{Halt, change_at, change_stretch, observe_stretch};
use crate::listener::{Answer, Fault, Listener, OnError, Role};
use crate::panic::discard;
use crate::{AnyEvent, EmitError, EventMeta};

/// How far an event has come.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) changed: bool,
    cursor: Cursor,
    /// The listener at the cursor is known to have to be awaited.
    awaits: bool,
    /// Nobody has been called yet, and those that need not be awaited come first.
    hurries: bool,
    failed: Option<EmitError>,
}

impl Progress {
    /// The changing is over, whoever has not been asked.
    pub(crate) fn observe(&mut self) {
        self.changed = true;
        self.cursor = Cursor::default();
    }

    /// Takes a failure in: it fails the emit, or is logged and counted (E11). Returns `true` if it fails the emit.
    #[cold]
    #[expect(clippy::boxed_local, reason = "unboxed here, and not in the loop of every emit")]
    pub(crate) fn judge(
        &mut self,
        listener: &Listener,
        fault: Box<Fault>,
        event: &dyn AnyEvent,
        meta: &EventMeta<'_>,
    ) -> bool {
        let error = explain(listener, *fault, event, meta);
        if listener.on_error == OnError::Isolate || meta.isolates_failures() {
            isolate(listener, error);
            return false;
        }
        match self.failed {
            None => self.failed = Some(error),
            // An emit fails with one error: the others are logged and counted.
            Some(_) => isolate(listener, error),
        }
        if !self.changed {
            self.observe();
        }
        true
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
        route.awaited(role, &mut self.cursor)
    }

    #[inline]
    pub(crate) fn result(&mut self) -> Result<(), EmitError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    #[cold]
    fn discard_failure(&mut self) {
        discard("a listener's error", self.failed.take());
    }

    /// [Advances](Self::advance) from the beginning. Most events are heard at one emitter and observed by nobody: they
    /// are over after that.
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        event: &mut dyn AnyEvent,
        meta: &EventMeta<'_>,
        route: &Route,
    ) -> Option<Result<(), EmitError>> {
        if let Some(takers) = route.only_takers() {
            match change_at(&takers, &mut self.cursor.taker, event, meta) {
                Halt::End => return Some(Ok(())),
                Halt::Await => return self.wait(),
                Halt::Fault(listener, fault) => _ = self.judge(listener, fault, event, meta),
            }
        }
        self.advance(event, meta, route)
    }

    /// Calls listeners until one has to be awaited; gives the result if none has.
    #[inline(never)]
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
                Halt::Fault(listener, fault) => _ = self.judge(listener, fault, event, meta),
            }
        }
        if !route.is_observed {
            return Some(self.result());
        }
        loop {
            match observe_stretch(route, &mut self.cursor, event, meta) {
                Halt::End => return Some(self.result()),
                Halt::Await => return self.wait(),
                Halt::Fault(listener, fault) => _ = self.judge(listener, fault, event, meta),
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
            return Box::pin(self.sync_first(event, meta, route, delivery)).await;
        }
        change(event, meta, route, self, delivery).await;
        if route.is_observed {
            // Boxed, because it is large, and most events are not observed.
            Box::pin(observe(event, meta, route, self, delivery)).await;
        }
        self.result()
    }

    /// The same for an event of a run: a failure goes with the future, and so where that is dropped, inside of the run.
    pub(crate) async fn rest_in_run(
        &mut self,
        event: &mut dyn AnyEvent,
        meta: &EventMeta<'_>,
        route: &Route,
        delivery: &Delivery,
    ) -> Result<(), EmitError> {
        let rest = Rest(self);
        rest.0.rest(event, meta, route, delivery).await
    }
}

/// Lets go of a failure that nobody was given.
struct Rest<'p>(&'p mut Progress);

impl Drop for Rest<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.failed.is_some() {
            self.0.discard_failure();
        }
    }
}

/// The failure of an emit that was dropped is the user's, and may panic as it is dropped.
impl Drop for Progress {
    #[inline]
    fn drop(&mut self) {
        if self.failed.is_some() {
            self.discard_failure();
        }
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
                let Some(listener) = route.awaited(Role::Change, &mut progress.cursor) else { continue };
                match await_change(listener, event, meta, delivery).await {
                    Ok(()) => continue,
                    Err(fault) => (listener, fault),
                }
            }
        };
        progress.judge(listener, fault, event, meta);
    }
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
                let Some(listener) = route.awaited(Role::Observe, &mut progress.cursor) else { continue };
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
pub(crate) async fn settle<'r>(
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
