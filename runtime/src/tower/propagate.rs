//! Attaches the current run to each request.

use std::task::{Context as TaskContext, Poll};

use tower_service::Service;

use super::with_run::WithRun;

/// A layer of `tower` that attaches the current run to each request, for services that call the inner service in
/// another task.
///
/// The current run is set only in the task that polls it. tower's `Buffer` calls the inner service in a task of its
/// own, which has no current run. A run that is created there would have no parent, and inherited middleware, including
/// guards, would not apply to it. So put `PropagateRunLayer` outside the buffer, and
/// [`EnterRunLayer`](crate::EnterRunLayer) inside. The services between them are called with [`WithRun`] requests.
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
/// If [`RunLayer`](crate::RunLayer) is the next layer inside a `Buffer`, you need neither `PropagateRunLayer` nor
/// [`EnterRunLayer`](crate::EnterRunLayer): the run that awaits the call becomes the parent of the call's run.
///
/// The run is not propagated to tasks and threads that a service starts. Enter the run there with
/// [`RunContext::scope`](crate::RunContext::scope) or [`in_scope`](crate::RunContext::in_scope). `poll_ready` of the
/// services inside the buffer is called outside all runs, because that call belongs to no request.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "a layer does nothing until it wraps a service"]
#[non_exhaustive]
pub struct PropagateRunLayer;

impl PropagateRunLayer {
    /// Creates the layer.
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

/// A service that attaches the current run to each request. Created by [`PropagateRunLayer`].
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
