//! What a service around a run is called with, in place of the input (invariant 3).

use std::future::pending;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use emitree_emitter::BoxError;
use tokio::sync::oneshot;
use tower_service::Service;

use crate::Result;

/// A place in the queue of a [`TowerLayer`](crate::TowerLayer): when it is called with, the run that it stands for works.
///
/// It is used once, and cannot be cloned. So what calls twice, such as tower's retry and hedge layers, does not compile
/// around it; retries are an emitree [`Layer`](crate::Layer)'s.
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

/// Whether the work succeeded. The error is the work's.
type WorkResult = Result<(), BoxError>;

/// The run's half of a ticket.
pub(super) struct RunHalf {
    go: oneshot::Receiver<()>,
    done: oneshot::Sender<WorkResult>,
}

pub(super) fn ticket() -> (Ticket, RunHalf) {
    let (go, told) = oneshot::channel();
    let (done, over) = oneshot::channel();
    (Ticket { go, done: over }, RunHalf { go: told, done })
}

impl RunHalf {
    /// Works when the ticket's turn has come, and tells the service how it went. If the ticket is dropped unused, it never
    /// works: why is the service's to say.
    pub(super) async fn work<T>(self, work: impl Future<Output = Result<T>>) -> Result<T> {
        if self.go.await.is_err() {
            return pending().await;
        }
        let result = work.await;
        let done = result.as_ref().map(drop).map_err(|error| error.clone().into());
        // If nobody listens, the service has given up waiting, and says so itself.
        drop(self.done.send(done));
        result
    }
}

/// What layers of a [`TowerLayer`](crate::TowerLayer) are laid around: always ready; a call is over when the work is.
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

/// The work of a run, as a service sees it: it begins at the first poll, and ends with `()` or the work's error.
///
/// Dropping it does not stop the work: [`TowerLayer`](crate::TowerLayer) does, as soon as the service has answered.
#[derive(Debug)]
#[must_use = "the work does not begin until it is awaited"]
pub struct TicketFuture {
    go: Option<oneshot::Sender<()>>,
    done: oneshot::Receiver<WorkResult>,
}

impl Future for TicketFuture {
    type Output = WorkResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<WorkResult> {
        if let Some(go) = self.go.take() {
            // An error means that the run is gone; `done` tells that too.
            let _ = go.send(());
        }
        let done = Pin::new(&mut self.done).poll(cx);
        done.map(|done| done.unwrap_or_else(|_| Err("the run is gone".into())))
    }
}
