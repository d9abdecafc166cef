//! Typed listeners for the lifecycle events of an instance's runs (R3).

use emitree_emitter::{EventMeta, ListenError, ListenerResult, Subscription};

use crate::lifecycle::{Failure, Finish, Start, Success};
use crate::{Runnable, Stage, lifecycle_of};

/// Methods that register listeners for the lifecycle events of all runs of a [`Runnable`].
///
/// The compiler infers the payload types:
///
/// ```
/// use emitree_runtime::{Lifecycle, RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// double.on_start(|start, _| start.input += 1)?;
/// double.on_success(|success, _| success.output *= 10)?;
/// assert_eq!(double.run(1).await?, 40);
/// # Ok(())
/// # }
/// ```
pub trait Lifecycle: Runnable {
    /// Registers a listener of `start`, which may change the input or set the output.
    ///
    /// # Errors
    ///
    /// Returns an error if the instance's emitter is the emitter of a run that has ended.
    #[track_caller]
    fn on_start<Out: ListenerResult>(
        &self,
        f: impl Fn(&mut Start<Self::Input, Self::Output>, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Result<Subscription, ListenError>
    where
        Self: Sized,
    {
        // One emitter may be shared by runnables of several types: filter by type instead of failing (E7).
        self.emitter().on(lifecycle_of(self).only([Stage::Start]).of_types(), f)
    }

    /// Registers a listener of `success`, which may change the output.
    ///
    /// # Errors
    ///
    /// Returns an error if the instance's emitter is the emitter of a run that has ended.
    #[track_caller]
    fn on_success<Out: ListenerResult>(
        &self,
        f: impl Fn(&mut Success<Self::Input, Self::Output>, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Result<Subscription, ListenError>
    where
        Self: Sized,
    {
        self.emitter().on(lifecycle_of(self).only([Stage::Success]).of_types(), f)
    }

    /// Registers a listener of `error`. If the listener fails, the failure is logged, and the run ends as it would
    /// without the failure.
    ///
    /// # Errors
    ///
    /// Returns an error if the instance's emitter is the emitter of a run that has ended.
    #[track_caller]
    fn on_error<Out: ListenerResult>(
        &self,
        f: impl Fn(&Failure, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Result<Subscription, ListenError>
    where
        Self: Sized,
    {
        // Register the listener with `on`, so that it is called before observers; the closure passes the payload
        // read-only.
        self.emitter()
            .on(lifecycle_of(self).only([Stage::Error]).of_types(), move |failure: &mut Failure, meta| f(failure, meta))
    }

    /// Registers a listener of `finish`. If the listener fails, the failure is logged, and the run ends as it would
    /// without the failure.
    ///
    /// # Errors
    ///
    /// Returns an error if the instance's emitter is the emitter of a run that has ended.
    #[track_caller]
    fn on_finish<Out: ListenerResult>(
        &self,
        f: impl Fn(&Finish<Self::Input, Self::Output>, &EventMeta<'_>) -> Out + Send + Sync + 'static,
    ) -> Result<Subscription, ListenError>
    where
        Self: Sized,
    {
        let matcher = lifecycle_of(self).only([Stage::Finish]).of_types();
        self.emitter().on(matcher, move |finish: &mut Finish<Self::Input, Self::Output>, meta| f(finish, meta))
    }
}

impl<R: Runnable> Lifecycle for R {}
