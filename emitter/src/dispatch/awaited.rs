//! The continuation of an emit from the first listener on that has to be awaited.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use futures_core::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::route::Route;
use super::sync::{DispatchProgress, Payload};
use crate::panic::{catch, catch_or, drop_catching, report_drop};
use crate::registry::listener::{Call, CallResult, Failure, Listener, ListenerFuture, Role, panicked};
use crate::registry::tracked::UnderWay;
use crate::rt::Delivery;
use crate::{AnyEvent, BoxError, EmitError, EventMeta};

impl DispatchProgress {
    /// Awaits the listeners that have to be awaited, and calls the others in between.
    ///
    /// Nothing is allocated for listeners that may change the event, nor for an observer that answers when it is first polled.
    pub(super) async fn finish(
        &mut self,
        route: &Route,
        event: &mut dyn AnyEvent,
        meta: &EventMeta<'_>,
        delivery: Option<&Delivery>,
    ) -> Result<(), EmitError> {
        // Those that may change the event are awaited one after the other (E5).
        let mut next = self.next_awaited(route, Payload::Changing(event), meta);
        while let Some(listener) = next.filter(|listener| listener.call.role() == Role::Change) {
            if let (_, Err(failure)) = Awaited::change(listener, event, meta, delivery).await {
                self.handle_failure(listener, failure, event, meta);
            }
            next = self.next_awaited(route, Payload::Changing(event), meta);
        }
        // Those that observe it are started in their order, and awaited together.
        let (event, mut started): (&dyn AnyEvent, _) = (event, None);
        while let Some(listener) = next {
            let mut awaited = Awaited::observe(listener, event, meta, delivery);
            match poll_fn(|cx| Poll::Ready(Pin::new(&mut awaited).poll(cx))).await {
                Poll::Ready((_, Ok(()))) => {}
                Poll::Ready((_, Err(failure))) => self.handle_failure(listener, failure, event, meta),
                Poll::Pending => started.get_or_insert_with(FuturesUnordered::new).push(awaited),
            }
            next = self.next_awaited(route, Payload::Observed(event), meta);
        }
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

/// The next answer of an observer; none is left once nobody is awaited any more.
fn poll_next<'f>(
    started: &mut FuturesUnordered<Awaited<'f>>,
    delivery: Option<&Delivery>,
    cx: &mut TaskContext<'_>,
) -> Poll<Option<(&'f Arc<Listener>, CallResult)>> {
    if !delivery.is_some_and(Delivery::is_cut) {
        return started.poll_next_unpin(cx);
    }
    // Each gives itself up when it is polled; `started` itself polls only those that have been woken.
    started.iter_mut().for_each(|awaited| drop(Pin::new(awaited).poll(cx)));
    started.clear();
    Poll::Ready(None)
}

/// A listener that is awaited, and then its answer. A panic of it is an answer, too.
#[must_use = "a listener that is not polled does nothing"]
struct Awaited<'f> {
    listener: &'f Arc<Listener>,
    delivery: Option<&'f Delivery>,
    /// If its calls are counted, and it has not answered.
    under_way: Option<UnderWay<'f>>,
    state: CallState<'f>,
}

enum CallState<'f> {
    Running(BoxFuture<'f, Result<(), BoxError>>),
    Answered(CallResult),
}

impl<'f> Awaited<'f> {
    /// Calls a listener that may change the event.
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

    /// Calls a listener that observes the event.
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

    /// Makes the listener's future, unless it has no calls left (E8, E9), or nobody is awaited any more.
    #[inline]
    fn new(
        listener: &'f Arc<Listener>,
        delivery: Option<&'f Delivery>,
        call: impl FnOnce() -> ListenerFuture<'f>,
    ) -> Self {
        let mut awaited = Self { listener, delivery, under_way: None, state: CallState::Answered(Ok(())) };
        if !listener.claims.claim() || delivery.is_some_and(Delivery::skips) {
            return awaited;
        }
        if let Some(tracked) = &listener.tracked {
            awaited.under_way = tracked.begin();
            if awaited.under_way.is_none() {
                return awaited;
            }
        }
        let make = || call().map_or_else(|| CallState::Answered(Err(Box::new(Failure::Mismatch))), CallState::Running);
        awaited.state =
            catch_or(|| counted(awaited.under_way.as_ref(), make), |panic| CallState::Answered(Err(panicked(panic))));
        awaited
    }

    /// Drops the listener's future, and counts the listener as skipped, unless it has answered.
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
        drop_catching("a listener's future", self.state.take());
    }

    /// Drops the future that has answered. A panic there is the listener's failure, unless it had another.
    #[inline]
    fn drop_answered(&mut self, answer: CallResult) -> CallResult {
        let future = self.state.take();
        match (catch(|| drop(future)), answer) {
            (Ok(()), answer) => answer,
            (Err(panic), Ok(())) => Err(panicked(panic)),
            (Err(panic), Err(failure)) => {
                report_drop("a listener's future", &panic);
                Err(failure)
            }
        }
    }
}

/// Makes or polls a future, as part of a call that may be counted.
#[inline]
fn counted<R>(under_way: Option<&UnderWay<'_>>, call: impl FnOnce() -> R) -> R {
    match under_way {
        None => call(),
        Some(under_way) => under_way.within(call),
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
                match catch_or(|| counted(this.under_way.as_ref(), poll), |panic| Poll::Ready(Err(panicked(panic)))) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(answer) => this.drop_answered(answer),
                }
            }
        };
        this.under_way = None;
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
