//! Services as runnables.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use emitree_emitter::{BoxError, Emitter};
use tower_service::Service;

use super::identity::Identity;
use super::queued::Queued;
use crate::runnable::value::Data;
use crate::{IntoMiddleware, Middleware, Result, RunContext, Runnable};

/// A `tower` service as a runnable: the work of a run calls the service with a clone of the run's input.
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
/// Runs respect backpressure: after its `start`, a run waits until the service is ready. Runs are admitted in order of
/// arrival, and proceed concurrently within the limits of the service. The service is never cloned, so that its limits
/// apply to all runs, and it need not be [`Sync`]. Poll or drop a waiting run, because the runs behind it wait for it.
/// If the service starts a run of the same runnable and awaits that run, the service's limits must allow both runs at
/// the same time.
///
/// If the service fails, the run fails with an error whose source is the service's error. An [`Error`](crate::Error)
/// that went through the service is returned unchanged, and tower's `Elapsed` becomes a timeout.
///
/// A service that works in another task, as tower's `Buffer` does, is outside the run: runs that are created there have
/// no parent, and inherited middleware does not apply to them. Use [`PropagateRunLayer`](crate::PropagateRunLayer) to
/// carry the run into that task.
///
/// # Cancel safety
///
/// A run that is dropped or aborted while it waits has not called the service; the next run is admitted instead. A
/// permit that the service has acquired meanwhile stays reserved for its next call. Other services that share the limit
/// lack the permit until then.
pub struct TowerRunnable<S, I> {
    service: Queued<S>,
    identity: Arc<Identity>,
    input: PhantomData<fn(I)>,
}

impl<S, I> TowerRunnable<S, I>
where
    S: Service<I, Error: Into<BoxError>>,
{
    /// Creates a runnable from a service.
    ///
    /// The runnable's kind is `Run`. Its emitter is a child of the root and has no namespace, as with
    /// [`runnable_fn`](crate::runnable_fn).
    pub fn new(name: impl Into<String>, service: S) -> Self {
        Self::ready(service, Arc::new(Identity::new(name.into())))
    }

    /// Creates a runnable that shares its identity with other runnables.
    pub(super) fn ready(service: S, identity: Arc<Identity>) -> Self {
        Self { service: Queued::new(service), identity, input: PhantomData }
    }
}

impl<S, I> TowerRunnable<S, I> {
    /// Sets the emitter, and with it the namespace, the kind, the context and the emitters above. The name does not
    /// change.
    #[must_use]
    pub fn with_emitter(mut self, emitter: Emitter) -> Self {
        Arc::make_mut(&mut self.identity).emitter = emitter;
        self
    }

    /// Binds a middleware to every run of this runnable. A [`Stack`](crate::Stack) is a middleware with layers.
    #[must_use]
    pub fn middleware<Sort>(mut self, middleware: impl IntoMiddleware<Sort>) -> Self {
        Arc::make_mut(&mut self.identity).middlewares.push(Arc::new(middleware.into_middleware()));
        self
    }
}

// Without this attribute, the compiler would suggest this type instead of `runnable_fn` for a value that is not a
// runnable.
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
