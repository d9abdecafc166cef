//! Services whose calls are runs.

use std::fmt;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use emitree_emitter::{BoxError, Emitter};
use tower_service::Service;

use super::call::RunServiceFuture;
use super::identity::Identity;
use crate::IntoMiddleware;
use crate::runnable::value::Data;

/// A layer of `tower` that turns each call of a service into a run, with events, middlewares, a span and a context.
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
/// The parent of the run is the run in which `call` is called. If `call` is called outside a run, for example in the
/// task of a tower `Buffer` around this layer, the parent is the run in which the future is first polled.
///
/// Request and response are the input and output of the run: both must be [`Data`](crate::Data), and the request must
/// be [`Clone`]. HTTP requests with a body are not `Data`: put the layer further inside, around a service that handles
/// values, or behind tower's `map_request`.
///
/// The inner service must be [`Clone`], because the instance that is ready moves into the run and a clone replaces it.
/// Put a service that is not `Clone`, such as tower's `RateLimit`, into a `Buffer`, or outside this layer.
#[derive(Clone)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct RunLayer(Identity);

impl RunLayer {
    /// Creates a layer that turns calls into runs with this name.
    ///
    /// Their kind is `Run`. Their emitter is a child of the root and has no namespace, as with
    /// [`runnable_fn`](crate::runnable_fn). All services that this layer wraps share the emitter.
    pub fn new(name: impl Into<String>) -> Self {
        Self(Identity::new(name.into()))
    }

    /// Sets the emitter of the runs, and with it the namespace, the kind, the context and the emitters above. The name
    /// of the runs does not change.
    pub fn with_emitter(mut self, emitter: Emitter) -> Self {
        self.0.emitter = emitter;
        self
    }

    /// Binds a middleware to the run of every call.
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

/// A service whose calls are runs. Created by [`RunLayer`].
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
        // `poll_ready` has prepared this instance, not the clone: call this instance, as tower's docs require.
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
