//! Awaiting one listener.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use futures_core::future::BoxFuture;

use crate::listener::{Answer, Call, Fault, Later, Listener, panicked};
use crate::panic::{catch, catch_or, discard, report_drop};
use crate::tracked::UnderWay;
use crate::{AnyEvent, BoxError, Delivery, EventMeta};

/// Calls one that may change the event, to be awaited.
#[inline]
pub(crate) fn await_change<'f>(
    listener: &'f Listener,
    event: &'f mut dyn AnyEvent,
    meta: &'f EventMeta<'f>,
    delivery: &'f Delivery,
) -> Awaited<'f> {
    match &listener.call {
        Call::ChangeAsync(call) => Awaited::of(listener, delivery, || call(event, meta)),
        _ => Awaited { listener, delivery, under_way: None, state: State::Over(Ok(())) },
    }
}

/// The same with one that observes it.
#[inline]
pub(crate) fn await_observe<'f>(
    listener: &'f Listener,
    event: &'f dyn AnyEvent,
    meta: &'f EventMeta<'f>,
    delivery: &'f Delivery,
) -> Awaited<'f> {
    match &listener.call {
        Call::ObserveAsync(call) | Call::TryObserve { later: call, .. } => {
            Awaited::of(listener, delivery, || call(event, meta))
        }
        _ => Awaited { listener, delivery, under_way: None, state: State::Over(Ok(())) },
    }
}

/// What a listener is doing. Its panics are answers; once nobody waits for it any more, it has answered.
#[must_use = "a listener that is not polled does nothing"]
pub(crate) struct Awaited<'f> {
    listener: &'f Listener,
    delivery: &'f Delivery,
    /// If its calls are counted, and it has not answered.
    under_way: Option<UnderWay<'f>>,
    state: State<'f>,
}

enum State<'f> {
    Runs(BoxFuture<'f, Result<(), BoxError>>),
    Over(Answer),
}

impl<'f> Awaited<'f> {
    /// Makes a listener's future, unless it has no calls left (E8), or patience is lost already.
    #[inline]
    fn of(listener: &'f Listener, delivery: &'f Delivery, make: impl FnOnce() -> Later<'f>) -> Self {
        let mut awaited = Self { listener, delivery, under_way: None, state: State::Over(Ok(())) };
        if !listener.claims.claim() || delivery.skips() {
            return awaited;
        }
        if let Some(tracked) = &listener.tracked {
            awaited.under_way = tracked.begin();
            if awaited.under_way.is_none() {
                return awaited;
            }
        }
        let make = || make().map_or_else(|| State::Over(Err(Box::new(Fault::Mismatch))), State::Runs);
        awaited.state =
            catch_or(|| within(awaited.under_way.as_ref(), make), |panic| State::Over(Err(panicked(panic))));
        awaited
    }

    /// Drops what it is doing, unless that is over.
    #[cold]
    fn cut(&mut self) {
        if matches!(self.state, State::Runs(_)) {
            self.delivery.skips();
            self.stop();
        }
    }

    /// Drops the listener's future.
    fn stop(&mut self) {
        discard("a listener's future", self.state.take());
    }

    /// Drops the future that has answered. A panic there is the listener's failure, unless it had another.
    #[inline]
    fn end(&mut self, answer: Answer) -> Answer {
        let future = self.state.take();
        match (catch(|| drop(future)), answer) {
            (Ok(()), answer) => answer,
            (Err(panic), Ok(())) => Err(panicked(panic)),
            (Err(panic), Err(fault)) => {
                report_drop("a listener's future", &panic);
                Err(fault)
            }
        }
    }
}

/// Makes or polls a future, as part of a call that may be counted.
#[inline]
fn within<R>(under_way: Option<&UnderWay<'_>>, call: impl FnOnce() -> R) -> R {
    match under_way {
        None => call(),
        Some(under_way) => under_way.within(call),
    }
}

impl State<'_> {
    fn take(&mut self) -> Self {
        std::mem::replace(self, State::Over(Ok(())))
    }
}

impl Future for Awaited<'_> {
    type Output = Answer;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Answer> {
        let this = self.get_mut();
        if this.delivery.is_cut() {
            this.cut();
        }
        let answer = match &mut this.state {
            State::Over(answer) => std::mem::replace(answer, Ok(())),
            State::Runs(future) => {
                let poll = || future.as_mut().poll(cx).map_err(Into::into);
                match catch_or(|| within(this.under_way.as_ref(), poll), |panic| Poll::Ready(Err(panicked(panic)))) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(answer) => this.end(answer),
                }
            }
        };
        this.under_way = None;
        this.listener.leave_if_spent();
        Poll::Ready(answer)
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if matches!(self.state, State::Runs(_)) {
            self.stop();
        }
    }
}
