//! One call of a service, as a run.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use emitree_emitter::{BoxError, Emitter};
use futures_util::FutureExt;
use tower_service::Service;

use super::identity::Identity;
use super::queued::Queued;
use crate::runnable::value::Data;
use crate::{Middleware, Result, Run, RunContext, Runnable};

/// A service that was ready, and is called in the run: again, if a layer of the run says so.
struct Call<S, I> {
    service: Queued<S>,
    identity: Arc<Identity>,
    input: PhantomData<fn(I)>,
}

// Nobody can name it.
#[diagnostic::do_not_recommend]
impl<S, I> Runnable for Call<S, I>
where
    S: Service<I, Response: Data, Error: Into<BoxError>, Future: Send> + Send,
    I: Data + Clone,
{
    type Input = I;
    type Output = S::Response;

    fn emitter(&self) -> &Emitter {
        &self.identity.emitter
    }

    async fn execute(&self, input: &I, _: &RunContext) -> Result<S::Response> {
        self.service.call(input.clone()).await
    }

    fn name(&self) -> &str {
        &self.identity.name
    }

    fn middlewares(&self) -> &[Arc<dyn Middleware>] {
        &self.identity.middlewares
    }
}

/// The run of a call: what [`RunService`](crate::RunService) answers with.
///
/// Its error is an [`Error`](crate::Error), boxed: [`Error::from_boxed`](crate::Error::from_boxed) has it back. Dropping
/// it aborts the run, whose end is heard (R8); before the first poll it leaves no trace.
#[must_use = "a run does nothing until it is awaited"]
pub struct RunServiceFuture<S, I>(Run<'static, Call<S, I>>)
where
    S: Service<I, Response: Data, Error: Into<BoxError>, Future: Send> + Send + 'static,
    I: Data + Clone;

impl<S, I> RunServiceFuture<S, I>
where
    S: Service<I, Response: Data, Error: Into<BoxError>, Future: Send> + Send + 'static,
    I: Data + Clone,
{
    pub(super) fn new(ready: S, identity: Arc<Identity>, request: I) -> Self {
        let call = Arc::new(Call { service: Queued::new(ready), identity, input: PhantomData });
        Self(call.run_shared(request))
    }
}

impl<S, I> Future for RunServiceFuture<S, I>
where
    S: Service<I, Response: Data, Error: Into<BoxError>, Future: Send> + Send + 'static,
    I: Data + Clone,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        // A task of the service's own, such as that of tower's `Buffer`, has called it; its caller awaits it (invariant 4).
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
