//! Calls a service inside the run that the request carries.

use std::fmt;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use futures_util::future::Either;
use pin_project_lite::pin_project;
use tower_service::Service;
use tracing::Instrument;
use tracing::instrument::Instrumented;

use super::with_run::WithRun;
use crate::context::current::{Within, within};

/// A layer of `tower` that calls a service inside the run that the request carries, whichever task makes the call. A
/// [`PropagateRunLayer`](crate::PropagateRunLayer) further out attaches the run to the request.
///
/// [`RunContext::current`](crate::RunContext::current) returns that run in the service's `call`, and while the
/// service's future is polled or dropped. The run does not wait for that future. Runs that the service creates there
/// are children of that run: they end before it ends, and do not start once it has ended. If the request carries no
/// run, the layer does not change the current run.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "a layer does nothing until it wraps a service"]
#[non_exhaustive]
pub struct EnterRunLayer;

impl EnterRunLayer {
    /// Creates the layer.
    pub const fn new() -> Self {
        Self
    }
}

impl<S> tower_layer::Layer<S> for EnterRunLayer {
    type Service = EnterRun<S>;

    fn layer(&self, service: S) -> EnterRun<S> {
        EnterRun(service)
    }
}

/// A service that is called inside the run of its request. Created by [`EnterRunLayer`].
#[derive(Clone, Debug)]
pub struct EnterRun<S>(S);

impl<S, T> Service<WithRun<T>> for EnterRun<S>
where
    S: Service<T>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = EnterRunFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: WithRun<T>) -> EnterRunFuture<S::Future> {
        let (run, request) = request.into_parts();
        let Some(run) = run.map(|run| run.for_task()) else {
            return EnterRunFuture { future: Either::Right(self.0.call(request)) };
        };
        // The call may run user code before it returns its future: enter the run for the call too.
        let future = run.inside(|| self.0.call(request)).instrument(run.span().clone());
        EnterRunFuture { future: Either::Left(within(run, future)) }
    }
}

pin_project! {
    /// The future of an [`EnterRun`] call. If the request carries a run, the future is polled and dropped inside that
    /// run.
    #[must_use = "the response is lost unless the future is awaited"]
    pub struct EnterRunFuture<F> {
        #[pin]
        future: Either<Within<Instrumented<F>>, F>,
    }
}

impl<F: Future> Future for EnterRunFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}

impl<F> fmt::Debug for EnterRunFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = match &self.future {
            Either::Left(within) => Some(within.run()),
            Either::Right(_) => None,
        };
        f.debug_struct("EnterRunFuture").field("run", &run).finish_non_exhaustive()
    }
}
