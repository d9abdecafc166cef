//! Continues an emit from the first listener that has to be awaited. The loop in [`sync`](super::sync) calls the sync
//! listeners between awaited listeners.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use futures_core::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::route::Route;
use super::sync::{DispatchProgress, PayloadRef};
use crate::panic::{caught, caught_or, discard, report_drop};
use crate::registry::listener::{Call, CallResult, Failure, Listener, ListenerFuture, Role, panicked};
use crate::rt::Delivery;
use crate::{AnyEvent, BoxError, EmitError, EventMeta};

impl DispatchProgress {
    /// Awaits the listeners that have to be awaited, and calls the sync listeners between them.
    ///
    /// Only an observer that is still pending after its first poll costs an allocation besides its own future.
    pub(super) async fn finish(
        &mut self,
        route: &Route,
        event: &mut dyn AnyEvent,
        meta: &EventMeta<'_>,
        delivery: Option<&Delivery>,
    ) -> Result<(), EmitError> {
        // Listeners that may change the event are awaited one after the other (E5).
        let mut next = self.next_awaited(route, PayloadRef::Changing(event), meta);
        while let Some(listener) = next.filter(|listener| listener.call.role() == Role::Change) {
            if let (_, Err(failure)) = Awaited::change(listener, event, meta, delivery).await {
                self.handle_failure(listener, failure, event, meta);
            }
            next = self.next_awaited(route, PayloadRef::Changing(event), meta);
        }
        // Observers are started in their order and awaited together. From here on the payload is shared.
        let event: &dyn AnyEvent = event;
        let mut started = None;
        while let Some(listener) = next {
            let mut awaited = Awaited::observe(listener, event, meta, delivery);
            // Poll once: an observer that is ready need not be added to `started`.
            match poll_fn(|cx| Poll::Ready(Pin::new(&mut awaited).poll(cx))).await {
                Poll::Ready((_, Ok(()))) => {}
                Poll::Ready((_, Err(failure))) => self.handle_failure(listener, failure, event, meta),
                Poll::Pending => started.get_or_insert_with(FuturesUnordered::new).push(awaited),
            }
            next = self.next_awaited(route, PayloadRef::Observed(event), meta);
        }
        // All observers have been started: wait for the observers that are not done.
        if let Some(started) = &mut started {
            while let Some((listener, answer)) = poll_fn(|cx| poll_next(started, delivery, cx)).await {
                if let Err(failure) = answer {
                    self.handle_failure(listener, failure, event, meta);
                }
            }
        }
        self.result()
    }
}

/// Polls for the next result of a started observer. Returns `None` when all observers are done, or when the delivery
/// was cut.
fn poll_next<'f>(
    started: &mut FuturesUnordered<Awaited<'f>>,
    delivery: Option<&Delivery>,
    cx: &mut TaskContext<'_>,
) -> Poll<Option<(&'f Arc<Listener>, CallResult)>> {
    if !delivery.is_some_and(Delivery::is_cut) {
        return started.poll_next_unpin(cx);
    }
    // Poll each `Awaited`: the poll drops its future and counts the skip. `started` would poll only woken futures.
    started.iter_mut().for_each(|awaited| drop(Pin::new(awaited).poll(cx)));
    started.clear();
    Poll::Ready(None)
}

/// A future that awaits one listener. It resolves to the listener and its result. A panic becomes a failure.
#[must_use = "a listener that is not polled does nothing"]
struct Awaited<'f> {
    listener: &'f Arc<Listener>,
    delivery: Option<&'f Delivery>,
    state: CallState<'f>,
}

enum CallState<'f> {
    Running(BoxFuture<'f, Result<(), BoxError>>),
    Answered(CallResult),
}

impl<'f> Awaited<'f> {
    /// Creates the future of a listener that may change the event.
    #[inline]
    fn change(
        listener: &'f Arc<Listener>,
        event: &'f mut dyn AnyEvent,
        meta: &'f EventMeta<'f>,
        delivery: Option<&'f Delivery>,
    ) -> Self {
        Self::new(listener, delivery, || match &listener.call {
            Call::ChangeAsync(call) => call(event, meta),
            _ => None,
        })
    }

    /// Creates the future of an observer.
    #[inline]
    fn observe(
        listener: &'f Arc<Listener>,
        event: &'f dyn AnyEvent,
        meta: &'f EventMeta<'f>,
        delivery: Option<&'f Delivery>,
    ) -> Self {
        Self::new(listener, delivery, || match &listener.call {
            Call::ObserveAsync(call) | Call::TryObserve { later: call, .. } => call(event, meta),
            _ => None,
        })
    }

    /// Makes the listener's future, unless the listener may not be called any more (E8, E9) or the delivery was cut.
    #[inline]
    fn new(
        listener: &'f Arc<Listener>,
        delivery: Option<&'f Delivery>,
        call: impl FnOnce() -> ListenerFuture<'f>,
    ) -> Self {
        let mut awaited = Self { listener, delivery, state: CallState::Answered(Ok(())) };
        // The claim comes first, so that a skip is counted only for a listener that has a call left. The skip uses up
        // that call.
        if !listener.claims.claim() || delivery.is_some_and(Delivery::skips) {
            return awaited;
        }
        // The function that makes the future is user code, too: it is part of the call and may panic.
        let make = || call().map_or_else(|| CallState::Answered(Err(Box::new(Failure::Mismatch))), CallState::Running);
        awaited.state = caught_or(make, |panic| CallState::Answered(Err(panicked(panic))));
        awaited
    }

    /// Drops the listener's future if it has not finished, and counts the skip.
    #[cold]
    fn skip(&mut self) {
        if matches!(self.state, CallState::Running(_)) {
            if let Some(delivery) = self.delivery {
                delivery.skips();
            }
            self.stop();
        }
    }

    /// Drops the listener's future.
    fn stop(&mut self) {
        discard("a listener's future", self.state.take());
    }

    /// Drops the finished future. A panic in that drop is the listener's failure, unless the listener has already
    /// failed.
    #[inline]
    fn drop_answered(&mut self, answer: CallResult) -> CallResult {
        let future = self.state.take();
        match (caught(|| drop(future)), answer) {
            (Ok(()), answer) => answer,
            (Err(panic), Ok(())) => Err(panicked(panic)),
            (Err(panic), Err(failure)) => {
                report_drop("a listener's future", &panic);
                Err(failure)
            }
        }
    }
}

impl CallState<'_> {
    fn take(&mut self) -> Self {
        std::mem::replace(self, CallState::Answered(Ok(())))
    }
}

impl<'f> Future for Awaited<'f> {
    type Output = (&'f Arc<Listener>, CallResult);

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.delivery.is_some_and(Delivery::is_cut) {
            this.skip();
        }
        let answer = match &mut this.state {
            CallState::Answered(answer) => std::mem::replace(answer, Ok(())),
            CallState::Running(future) => {
                let poll = || future.as_mut().poll(cx).map_err(Into::into);
                match caught_or(poll, |panic| Poll::Ready(Err(panicked(panic)))) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(answer) => this.drop_answered(answer),
                }
            }
        };
        this.listener.remove_if_spent();
        Poll::Ready((this.listener, answer))
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if matches!(self.state, CallState::Running(_)) {
            self.stop();
        }
    }
}
