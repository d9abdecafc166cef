//! Awaiting one listener.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use futures_core::future::BoxFuture;

use crate::listener::{Answer, Call, Fault, Later, Listener, panicked};
use crate::{AnyEvent, BoxError, Delivery, EventMeta};

/// Calls one that may change the event, and awaits it.
pub(crate) async fn await_change(
    listener: &Listener,
    event: &mut dyn AnyEvent,
    meta: &EventMeta<'_>,
    delivery: &Delivery,
) -> Answer {
    let answer = match &listener.call {
        Call::ChangeAsync(call) if listener.claims.claim() => answer(delivery, || call(event, meta)).await,
        _ => Ok(()),
    };
    listener.leave_if_spent();
    answer
}

/// The same with one that observes it.
pub(crate) async fn await_observe(
    listener: &Listener,
    event: &dyn AnyEvent,
    meta: &EventMeta<'_>,
    delivery: &Delivery,
) -> Answer {
    let answer = match &listener.call {
        Call::ObserveAsync(call) | Call::TryObserve { later: call, .. } if listener.claims.claim() => {
            answer(delivery, || call(event, meta)).await
        }
        _ => Ok(()),
    };
    listener.leave_if_spent();
    answer
}

/// Makes and awaits a listener's future, unless patience is lost before or meanwhile; its panics are answers.
async fn answer<'f>(delivery: &Delivery, make: impl FnOnce() -> Later<'f>) -> Answer {
    if delivery.skips() {
        return Ok(());
    }
    let future = catch_unwind(AssertUnwindSafe(make)).map_err(panicked)?.ok_or(Fault::Mismatch)?;
    Awaited { future: Some(future), delivery }.await
}

/// What a listener is doing.
struct Awaited<'f> {
    /// None once nobody waits for it any more.
    future: Option<BoxFuture<'f, Result<(), BoxError>>>,
    delivery: &'f Delivery,
}

impl Future for Awaited<'_> {
    type Output = Answer;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Answer> {
        let Self { future, delivery } = self.get_mut();
        let polled = catch_unwind(AssertUnwindSafe(|| match future {
            Some(future) if !delivery.is_cut() => future.as_mut().poll(cx),
            _ => {
                delivery.skips();
                *future = None;
                Poll::Ready(Ok(()))
            }
        }));
        match polled {
            Ok(answer) => answer.map_err(Into::into),
            Err(panic) => Poll::Ready(Err(panicked(panic))),
        }
    }
}
