//! A service as a runnable.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use emitree_emitter::{BoxError, Emitter};
use tower_service::Service;

use super::identity::Identity;
use super::queued::Queued;
use crate::runnable::value::Data;
use crate::{IntoMiddleware, Layer, Middleware, Result, RunContext, Runnable, Stack, StackBuilder};

/// A `tower` service that can be run: each run calls it once, with a clone of the run's input.
///
/// ```
/// use std::time::Duration;
///
/// use emitree_runtime::{Runnable, TowerRunnable};
/// use tower::{BoxError, ServiceBuilder, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let shout = ServiceBuilder::new()
///     .rate_limit(10, Duration::from_secs(1))
///     .timeout(Duration::from_secs(5))
///     .service(service_fn(|text: String| async move { Ok::<_, BoxError>(text.to_uppercase()) }));
///
/// let shout = TowerRunnable::new("shout", shout);
/// assert_eq!(shout.run("hello".to_owned()).await?, "HELLO");
/// # Ok(())
/// # }
/// ```
///
/// Back-pressure is honoured: runs that the service is not ready for wait for it, after their `start`, and are admitted
/// in the order in which they came. Then they run side by side, as many as the service allows. There is one service,
/// never cloned, so that a limit is one limit; it has to be [`Send`] only. Like all that is fair, a run that waits has to
/// be polled or dropped, for those behind it wait for it; and one that starts another of the same runnable in its
/// service needs room for both.
///
/// An error of the service is the run's, with the error as its source. What was an [`Error`](crate::Error) in it is that
/// error again; tower's `Elapsed` is a time-out.
///
/// A service that works in a task of its own, as tower's `Buffer` does, leaves the run: runs made there have no parent, and
/// middleware bound above does not apply to them. [`PropagateRunLayer`](crate::PropagateRunLayer) takes the run along.
///
/// # Cancel safety
///
/// A run that is dropped or aborted while it waits has not called the service: the next one is admitted in its place.
/// What the service had set aside meanwhile, such as a place of a limit, it keeps for its next call; where it shares that
/// limit with other services, those lack the place until then.
pub struct TowerRunnable<S, I> {
    service: Queued<S>,
    identity: Arc<Identity>,
    input: PhantomData<fn(I)>,
}

impl<S, I> TowerRunnable<S, I>
where
    S: Service<I, Error: Into<BoxError>>,
{
    /// Makes a runnable of a service.
    ///
    /// Its kind is `Run`. Its emitter stands below the root and has no namespace, as that of
    /// [`runnable_fn`](crate::runnable_fn).
    pub fn new(name: impl Into<String>, service: S) -> Self {
        Self::ready(service, Arc::new(Identity::new(name.into())))
    }

    /// Makes a runnable of a service under an identity that it shares with others.
    pub(super) fn ready(service: S, identity: Arc<Identity>) -> Self {
        Self { service: Queued::new(service), identity, input: PhantomData }
    }
}

impl<S, I> TowerRunnable<S, I> {
    /// Gives it another emitter: with a namespace, a kind, a context, below another parent. Its name stays.
    #[must_use]
    pub fn with_emitter(mut self, emitter: Emitter) -> Self {
        Arc::make_mut(&mut self.identity).emitter = emitter;
        self
    }

    /// Binds a middleware to each of its runs.
    #[must_use]
    pub fn middleware<Sort>(mut self, middleware: impl IntoMiddleware<Sort>) -> Self {
        Arc::make_mut(&mut self.identity).middlewares.push(Arc::new(middleware.into_middleware()));
        self
    }
}

impl<S, I> TowerRunnable<S, I>
where
    Self: Runnable + 'static,
{
    /// Lays a layer around the work of each of its runs, in [`Phase::Transform`](crate::Phase::Transform).
    #[must_use]
    pub fn layer(self, layer: impl Layer<Self>) -> Self {
        self.layers(|stack| stack.layer(layer))
    }

    /// Lays layers around the work of each of its runs: `.layers(|stack| stack.guard(Policy).transform(Trim))`.
    #[must_use]
    pub fn layers(self, build: impl FnOnce(StackBuilder<Self>) -> StackBuilder<Self>) -> Self {
        self.middleware(build(Stack::builder()).build())
    }
}

// Who has no runnable is told of `runnable_fn`, with this feature as without.
#[diagnostic::do_not_recommend]
impl<S, I> Runnable for TowerRunnable<S, I>
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

impl<S, I> fmt::Debug for TowerRunnable<S, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { name, emitter, .. } = &*self.identity;
        let service = type_name::<S>();
        f.debug_struct("TowerRunnable")
            .field("name", name)
            .field("service", &service)
            .field("emitter", emitter)
            .finish_non_exhaustive()
    }
}
