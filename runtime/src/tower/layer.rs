//! A layer of tower around runs.

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

/// A layer of `tower` around work of any kind. Made by [`tower_layer`](fn@tower_layer). Clones share the service, and so its limits.
pub struct TowerLayer<S> {
    service: Arc<Queued<S>>,
    name: Arc<str>,
}

/// Lays a layer of `tower`, or several in a `ServiceBuilder`, around runs: time-outs, limits, load shedding.
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
/// // Of all runs of both there are never more than two at work.
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
/// The service is made here, once, around a [`TicketService`]: all runs that the layer or a clone of it is bound to share
/// it, whatever their types. Layers that need tokio's timer to be made, such as `RateLimitLayer`, need it here. Then, for
/// each call of the work:
///
/// 1. the run waits until the service is ready, in the order in which the runs came;
/// 2. the service is called with a [`Ticket`], and its answer awaited;
/// 3. when the ticket reaches the innermost service, the work begins, in the run's own future;
/// 4. when the work is over, the service is told whether it succeeded, and heard to its end;
/// 5. the result is the work's, whatever the service makes of it.
///
/// If the service answers before the work is over, the work is dropped, and the service's error is the result: tower's
/// `Elapsed` is a time-out, all others are failures unless there is an [`Error`] in them. An answer without an error is
/// a failure too, as there is no output. Waiting for readiness is not part of what a `TimeoutLayer` measures, wherever it
/// stands; [`Run::timeout`](crate::Run::timeout) measures that.
///
/// The work is in its run whatever tasks the ticket passes. Layers behind a `Buffer` that make runs themselves are not:
/// [`PropagateRunLayer`](crate::PropagateRunLayer) takes the run along with the ticket.
///
/// A run that waits has to be polled or dropped, for those behind it wait for it. One that has a place of a limit, and
/// starts another below itself through the same limit, needs a second place.
///
/// # Cancel safety
///
/// A run that is dropped or aborted while it waits has used nothing up: the next one is admitted in its place. What the
/// service had set aside meanwhile, such as a place of a limit, it keeps for its next call; where it shares that limit
/// with other services (`GlobalConcurrencyLimitLayer`), those lack the place until then.
pub fn tower_layer<L>(layer: L) -> TowerLayer<L::Service>
where
    L: tower_layer::Layer<TicketService, Service: Service<Ticket, Response = (), Error: Into<BoxError>>>,
{
    let service = Queued::new(layer.layer(TicketService));
    TowerLayer { service: Arc::new(service), name: type_name::<L>().into() }
}

impl<S> TowerLayer<S> {
    /// Gives it a name, in place of the type of tower's layer.
    #[must_use]
    pub fn named(self, name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), ..self }
    }
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
        // The service is looked at first: what it has failed with does not begin.
        match select(service, work).await {
            Either::Left((answer, _)) => Err(answer.err().unwrap_or_else(without_work)),
            Either::Right((result, service)) => {
                drop(service.await);
                result
            }
        }
    }

    fn name(&self) -> &str {
        &self.name
    }
}

fn without_work() -> Error {
    Error::new("a tower layer answered before the work was over, and so without its output")
}

impl<S> Clone for TowerLayer<S> {
    fn clone(&self) -> Self {
        Self { service: Arc::clone(&self.service), name: Arc::clone(&self.name) }
    }
}

impl<S> fmt::Debug for TowerLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TowerLayer").field("service", &type_name::<S>()).finish_non_exhaustive()
    }
}
