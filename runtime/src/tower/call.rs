//! The run of one call of a service.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use emitree_emitter::BoxError;
use futures_util::FutureExt;
use tower_service::Service;

use super::identity::Identity;
use super::runnable::TowerRunnable;
use crate::runnable::value::Data;
use crate::{Result, Run, Runnable};

/// The future of a [`RunService`](crate::RunService) call: a run that calls the inner service.
///
/// Its error is a boxed [`Error`](crate::Error), which [`Error::from_boxed`](crate::Error::from_boxed) converts back.
///
/// # Cancel safety
///
/// Dropping the future before the work is over aborts the run, which then emits `error` and `finish`. If the future is
/// dropped before its first poll, no run begins.
#[must_use = "a run does nothing until it is awaited"]
pub struct RunServiceFuture<S, I>(Run<'static, TowerRunnable<S, I>>)
where
    S: Service<I, Response: Data, Error: Into<BoxError>, Future: Send> + Send + 'static,
    I: Data + Clone;

impl<S, I> RunServiceFuture<S, I>
where
    S: Service<I, Response: Data, Error: Into<BoxError>, Future: Send> + Send + 'static,
    I: Data + Clone,
{
    pub(super) fn new(ready: S, identity: Arc<Identity>, request: I) -> Self {
        Self(Arc::new(TowerRunnable::ready(ready, identity)).run_shared(request))
    }
}

impl<S, I> Future for RunServiceFuture<S, I>
where
    S: Service<I, Response: Data, Error: Into<BoxError>, Future: Send> + Send + 'static,
    I: Data + Clone,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        // If a task without a run made the call, as in tower's `Buffer`, the run that awaits the call becomes the
        // parent (invariant 4).
        self.0.start_here_if_alone();
        self.0.poll_unpin(cx).map_err(Into::into)
    }
}

impl<S, I> fmt::Debug for RunServiceFuture<S, I>
where
    S: Service<I, Response: Data, Error: Into<BoxError>, Future: Send> + Send + 'static,
    I: Data + Clone,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RunServiceFuture").field(&self.0).finish()
    }
}
