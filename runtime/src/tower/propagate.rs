//! Sends the current run along with each request.

use std::task::{Context as TaskContext, Poll};

use tower_service::Service;

use super::with_run::WithRun;

/// A layer of `tower` that sends the current run along with each request, past services that work in a task of their own.
///
/// The current run is that of the task that polls. tower's `Buffer` calls the service below it in a task of its own, where
/// there is no current run: a run that is made in that call would have no parent, and middleware bound above, guards
/// included, would not apply to it. So `PropagateRunLayer` stands outside of the buffer and
/// [`EnterRunLayer`](crate::EnterRunLayer) inside. What stands between them is called with [`WithRun`] requests.
///
/// ```
/// use emitree_runtime::{EnterRunLayer, Error, PropagateRunLayer, RunContext, Runnable, TowerRunnable, for_nested};
/// use emitree_runtime::runnable_fn;
/// use tower::{ServiceBuilder, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let double = std::sync::Arc::new(runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) }));
/// let buffered = ServiceBuilder::new()
///     .layer(PropagateRunLayer::new())
///     .buffer(8)
///     .layer(EnterRunLayer::new())
///     .service(service_fn(move |n: u32| double.run_shared(n)));
/// let desk = TowerRunnable::new("desk", buffered);
///
/// assert_eq!(desk.run(21).await?, 42);
/// let closed = |_: &RunContext| Err(Error::denied("desk", "closed"));
/// assert!(desk.run(21).middleware(for_nested(closed)).await.is_err());
/// # Ok(())
/// # }
/// ```
///
/// Where [`RunLayer`](crate::RunLayer) is the next layer inside of a `Buffer`, neither is needed: a call that is made in no
/// run is started in the run that awaits it.
///
/// What is not propagated: the `poll_ready` of services inside of the buffer, which is asked for no request; and tasks and threads that a
/// service starts by itself. Those are entered with [`RunContext::scope`](crate::RunContext::scope) and
/// [`in_scope`](crate::RunContext::in_scope).
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "a layer does nothing until it is laid around a service"]
#[non_exhaustive]
pub struct PropagateRunLayer;

impl PropagateRunLayer {
    /// Returns the layer.
    pub const fn new() -> Self {
        Self
    }
}

impl<S> tower_layer::Layer<S> for PropagateRunLayer {
    type Service = PropagateRun<S>;

    fn layer(&self, service: S) -> PropagateRun<S> {
        PropagateRun(service)
    }
}

/// A service that sends the current run along with each request. Made by [`PropagateRunLayer`].
#[derive(Clone, Debug)]
pub struct PropagateRun<S>(S);

impl<S, T> Service<T> for PropagateRun<S>
where
    S: Service<WithRun<T>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: T) -> S::Future {
        self.0.call(WithRun::new(request))
    }
}
