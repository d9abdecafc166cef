//! Runs as services: every call of a service is a run.

use std::fmt;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use emitree_emitter::{BoxError, Emitter};
use tower_service::Service;

use super::call::RunServiceFuture;
use super::identity::Identity;
use crate::IntoMiddleware;
use crate::runnable::value::Data;

/// A layer of `tower` that makes a run of each call of a service: with its events, middlewares, span and context.
///
/// ```
/// use std::time::Duration;
///
/// use emitree_runtime::RunLayer;
/// use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let shout = ServiceBuilder::new()
///     .timeout(Duration::from_secs(5))
///     .layer(RunLayer::new("shout"))
///     .service(service_fn(|text: String| async move { Ok::<_, BoxError>(text.to_uppercase()) }));
///
/// assert_eq!(shout.oneshot("hello".to_owned()).await?, "HELLO");
/// # Ok(())
/// # }
/// ```
///
/// A call's run has for its parent the run in which `call` is called; if that is none, as in the task of a tower `Buffer`
/// further out, the run in which the call is first polled. The service below has to be [`Clone`], as the one
/// that is ready goes into the run, and a clone takes its place; what is not, such as tower's `RateLimit`, goes under a
/// `Buffer` or around this layer. Requests and responses are the run's input and output: a request is [`Data`](crate::Data) and
/// [`Clone`], a response [`Data`](crate::Data), which serde reads and writes. One that holds a body, such as those of HTTP, is none: there the layer
/// stands further in, around what handles values, or below tower's `map_request`.
#[derive(Clone)]
#[must_use = "a layer does nothing until it is laid around a service"]
pub struct RunLayer(Identity);

impl RunLayer {
    /// A layer of runs of that name.
    ///
    /// Their kind is `Run`. Their emitter stands below the root and has no namespace, as that of
    /// [`runnable_fn`](crate::runnable_fn). All services that the layer is laid around share it.
    pub fn new(name: impl Into<String>) -> Self {
        Self(Identity::new(name.into()))
    }

    /// Gives the runs another emitter: with a namespace, a kind, a context, below another parent. Their name stays.
    pub fn with_emitter(mut self, emitter: Emitter) -> Self {
        self.0.emitter = emitter;
        self
    }

    /// Binds a middleware to each of the runs.
    pub fn middleware<Sort>(mut self, middleware: impl IntoMiddleware<Sort>) -> Self {
        self.0.middlewares.push(Arc::new(middleware.into_middleware()));
        self
    }
}

impl<S> tower_layer::Layer<S> for RunLayer {
    type Service = RunService<S>;

    fn layer(&self, service: S) -> RunService<S> {
        RunService { service, identity: Arc::new(self.0.clone()) }
    }
}

impl fmt::Debug for RunLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunLayer").field("name", &self.0.name).finish_non_exhaustive()
    }
}

/// A service each call of which is a run. Made by [`RunLayer`].
#[derive(Clone)]
pub struct RunService<S> {
    service: S,
    identity: Arc<Identity>,
}

impl<S, I> Service<I> for RunService<S>
where
    S: Service<I, Response: Data, Error: Into<BoxError>, Future: Send> + Clone + Send + 'static,
    I: Data + Clone,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = RunServiceFuture<S, I>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: I) -> RunServiceFuture<S, I> {
        // The clone is not ready: it must not be the one that is called.
        let clone = self.service.clone();
        let ready = std::mem::replace(&mut self.service, clone);
        RunServiceFuture::new(ready, Arc::clone(&self.identity), request)
    }
}

impl<S> fmt::Debug for RunService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunService").field("name", &self.identity.name).finish_non_exhaustive()
    }
}
