//! The request that a service around a run receives instead of the run's input (invariant 3).

use std::future::pending;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use emitree_emitter::BoxError;
use tokio::sync::oneshot;
use tower_service::Service;

use crate::Result;

/// A request for a service in a [`TowerLayer`](crate::TowerLayer). When the innermost service has received a ticket,
/// and its future is first polled, the work of the ticket's run begins.
///
/// A ticket is used once, and cannot be cloned. So tower's retry and hedge layers, which repeat a call with a clone of
/// the request, cannot repeat the work; use an emitree [`Layer`](crate::Layer) for retries.
///
/// ```compile_fail
/// fn clone(ticket: &emitree_runtime::Ticket) -> emitree_runtime::Ticket {
///     ticket.clone()
/// }
/// ```
#[derive(Debug)]
pub struct Ticket {
    go: oneshot::Sender<()>,
    done: oneshot::Receiver<WorkResult>,
}

/// The result of the work without its output.
type WorkResult = Result<(), BoxError>;

/// The run's half of a ticket.
pub(super) struct RunHalf {
    go: oneshot::Receiver<()>,
    done: oneshot::Sender<WorkResult>,
}

pub(super) fn ticket() -> (Ticket, RunHalf) {
    let (go, go_receiver) = oneshot::channel();
    let (done, done_receiver) = oneshot::channel();
    (Ticket { go, done: done_receiver }, RunHalf { go: go_receiver, done })
}

impl RunHalf {
    /// Waits for the ticket, does the work, and sends the result to the service. If the service drops the ticket
    /// unused, this future never completes, and the layer returns an error as soon as the service returns.
    pub(super) async fn work<T>(self, work: impl Future<Output = Result<T>>) -> Result<T> {
        // If the ticket was dropped, leave the result to the service, which returns the reason.
        if self.go.await.is_err() {
            return pending().await;
        }
        let result = work.await;
        let done = result.as_ref().map(drop).map_err(|error| error.clone().into());
        // Sending fails if the service no longer waits for the result. The run continues with the result in any case.
        drop(self.done.send(done));
        result
    }
}

/// The innermost service of a [`TowerLayer`](crate::TowerLayer). It is always ready, and the future of a call
/// completes when the work is over.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TicketService;

impl Service<Ticket> for TicketService {
    type Response = ();
    type Error = BoxError;
    type Future = TicketFuture;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<WorkResult> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, ticket: Ticket) -> TicketFuture {
        TicketFuture { go: Some(ticket.go), done: ticket.done }
    }
}

/// The future of a [`TicketService`] call. The work begins when this future is first polled. The future returns `()`,
/// the work's error, or an error if the work was dropped.
///
/// Dropping the future does not stop the work. [`TowerLayer`](crate::TowerLayer) drops the work if the service returns
/// before the work is over.
#[derive(Debug)]
#[must_use = "the work does not begin until it is awaited"]
pub struct TicketFuture {
    go: Option<oneshot::Sender<()>>,
    done: oneshot::Receiver<WorkResult>,
}

impl Future for TicketFuture {
    type Output = WorkResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<WorkResult> {
        // The work begins here and not in `call`, because a service may drop the future without polling it.
        if let Some(go) = self.go.take() {
            // An error means that the work was dropped; `done` reports that below.
            let _ = go.send(());
        }
        let done = Pin::new(&mut self.done).poll(cx);
        done.map(|done| done.unwrap_or_else(|_| Err("the work of the run was dropped".into())))
    }
}
