//! Layers of tower around runs.

use std::any::type_name;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use emitree_emitter::BoxError;
use futures_util::future::{Either, select};
use tower_service::Service;

use super::queued::Queued;
use super::ticket::{Ticket, TicketService, ticket};
use crate::{Error, Layer, Next, Op, Result, RunContext};

/// A layer of `tower` around work of any kind. Created by [`tower_layer`](fn@tower_layer). Clones share one `tower`
/// service and its limits.
pub struct TowerLayer<S> {
    service: Arc<Queued<S>>,
    name: &'static str,
}

/// Creates a layer that wraps runs with a layer of `tower`, or with several layers in a `ServiceBuilder`, for example
/// for timeouts, limits or load shedding.
///
/// ```
/// use std::time::Duration;
///
/// use emitree_runtime::{Result, RunContext, Runnable, runnable_fn, tower_layer};
/// use tower::limit::ConcurrencyLimitLayer;
/// use tower::timeout::TimeoutLayer;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<()> {
/// let limit = tower_layer(ConcurrencyLimitLayer::new(2));
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) }).layer(limit.clone());
/// // The clones share the limit: at most two runs of `double` and `triple` together work at a time.
/// let triple = runnable_fn("triple", |n: u32, _: RunContext| async move { Ok(n * 3) }).layer(limit);
/// assert_eq!((double.run(1).await?, triple.run(1).await?), (2, 3));
///
/// let never = runnable_fn("never", |(): (), _: RunContext| std::future::pending::<Result<()>>());
/// let error = never.run(()).layer(tower_layer(TimeoutLayer::new(Duration::from_secs(1)))).await.unwrap_err();
/// assert!(error.is_timed_out());
/// # Ok(())
/// # }
/// ```
///
/// This function applies the layer of `tower` to a [`TicketService`]. All runs that the `TowerLayer` or its clones are
/// bound to share the resulting service, even if their types differ. Some layers, such as `RateLimitLayer`, need
/// tokio's timer to create their service: call this function inside a tokio runtime if you use them. Each call of the
/// work takes these steps:
///
/// 1. The run waits until the service is ready. Runs are admitted in order of arrival.
/// 2. The service is called with a [`Ticket`], and its response is awaited.
/// 3. When the innermost service has received the ticket, and its future is first polled, the work begins, in the run's
///    own future.
/// 4. When the work is over, the innermost service returns `()` or the work's error, and the run waits for the response
///    of the whole service.
/// 5. The run continues with the result of the work, even if the service returns an error.
///
/// If the service returns before the work is over, the work is dropped, and the service's error is the result. tower's
/// `Elapsed` becomes a timeout, an [`Error`] inside the service's error keeps its kind, and any other error becomes a
/// failure. If the service returns `Ok` before the work is over, the run fails too, because there is no output. A
/// `TimeoutLayer` does not measure the wait for readiness, wherever it is in the stack;
/// [`Run::timeout`](crate::Run::timeout) does.
///
/// The work is always polled inside its run, even if the ticket passes through other tasks. Layers behind a `Buffer`
/// are called outside the run. If they create runs, put a [`PropagateRunLayer`](crate::PropagateRunLayer) outside the
/// buffer and an [`EnterRunLayer`](crate::EnterRunLayer) inside, so that these runs become children of the run.
///
/// Poll or drop a waiting run, because the runs behind it wait for it. If a run holds a permit of a limit, and awaits a
/// nested run with the same limit, the nested run needs a second permit.
///
/// # Cancel safety
///
/// A run that is dropped or aborted while it waits has not called the service; the next run is admitted instead. A
/// permit that the service has acquired meanwhile stays reserved for its next call. Other services that share the
/// limit, as with `GlobalConcurrencyLimitLayer`, lack the permit until then.
pub fn tower_layer<L>(layer: L) -> TowerLayer<L::Service>
where
    L: tower_layer::Layer<TicketService, Service: Service<Ticket, Response = (), Error: Into<BoxError>>>,
{
    let service = Queued::new(layer.layer(TicketService));
    TowerLayer { service: Arc::new(service), name: type_name::<L>() }
}

impl<S, O> Layer<O> for TowerLayer<S>
where
    S: Service<Ticket, Response = (), Error: Into<BoxError>, Future: Send> + Send + 'static,
    O: Op,
{
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let (ticket, run_half) = ticket();
        let service = pin!(self.service.call(ticket));
        let work = pin!(run_half.work(next.run(input)));
        // `select` polls the service first: if the service fails in that poll, the work never begins.
        match select(service, work).await {
            Either::Left((answer, _)) => Err(answer.err().unwrap_or_else(without_work)),
            // Let the service finish, so that it releases permits and sees whether the work succeeded.
            Either::Right((result, service)) => {
                drop(service.await);
                result
            }
        }
    }

    fn name(&self) -> &str {
        self.name
    }
}

fn without_work() -> Error {
    Error::new("a tower layer returned `Ok` before the work was over, so there is no output")
}

impl<S> Clone for TowerLayer<S> {
    fn clone(&self) -> Self {
        Self { service: Arc::clone(&self.service), name: self.name }
    }
}

impl<S> fmt::Debug for TowerLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TowerLayer").field("service", &type_name::<S>()).finish_non_exhaustive()
    }
}
