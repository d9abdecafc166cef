//! Runnables as trait objects with known input and output types.

use std::fmt;
use std::sync::Arc;

use emitree_emitter::Emitter;
use futures_core::future::BoxFuture;

use crate::lifecycle::erased::Face;
use crate::runnable::value::Data;
use crate::{IntoShared, Middleware, Result, RunContext, Runnable};

/// A boxed [`Runnable`] from `I` to `O`, to be stored beside other runnables with the same input and output types.
///
/// Its runs are runs of the runnable inside: they have its emitter, kind, name, middlewares and
/// [types](crate::RunTypes). Layers for runs from `I` to `O` fit these runs. To store runnables with different types
/// together, use [`AnyRunnable`](crate::AnyRunnable), whose input and output are JSON.
///
/// ```
/// use emitree_runtime::{BoxRunnable, RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let steps: Vec<BoxRunnable<u32, u32>> = vec![
///     BoxRunnable::new(runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) })),
///     BoxRunnable::new(runnable_fn("add_one", |n: u32, _: RunContext| async move { Ok(n + 1) })),
/// ];
/// let mut n = 20;
/// for step in &steps {
///     n = step.run(n).await?;
/// }
/// assert_eq!(n, 41);
/// # Ok(())
/// # }
/// ```
pub struct BoxRunnable<I, O>(Arc<dyn DynRunnable<I, O>>);

impl<I: Data, O: Data> BoxRunnable<I, O> {
    /// Boxes a runnable. A runnable that is already in an [`Arc`] stays in it.
    pub fn new(runnable: impl IntoShared<Runnable: Runnable<Input = I, Output = O> + 'static>) -> Self {
        Self(runnable.into_shared())
    }
}

/// An object-safe [`Runnable`], whose future is boxed.
trait DynRunnable<I, O>: Send + Sync {
    fn emitter(&self) -> &Emitter;
    fn kind(&self) -> &str;
    fn name(&self) -> &str;
    fn middlewares(&self) -> &[Arc<dyn Middleware>];
    fn is_idempotent(&self) -> bool;
    fn face(&self) -> Face;
    fn execute<'a>(&'a self, input: &'a I, ctx: &'a RunContext) -> BoxFuture<'a, Result<O>>;
}

impl<R: Runnable> DynRunnable<R::Input, R::Output> for R {
    fn emitter(&self) -> &Emitter {
        Runnable::emitter(self)
    }

    fn kind(&self) -> &str {
        Runnable::kind(self)
    }

    fn name(&self) -> &str {
        Runnable::name(self)
    }

    fn middlewares(&self) -> &[Arc<dyn Middleware>] {
        Runnable::middlewares(self)
    }

    fn is_idempotent(&self) -> bool {
        Runnable::is_idempotent(self)
    }

    fn face(&self) -> Face {
        Runnable::face(self)
    }

    fn execute<'a>(&'a self, input: &'a R::Input, ctx: &'a RunContext) -> BoxFuture<'a, Result<R::Output>> {
        Box::pin(Runnable::execute(self, input, ctx))
    }
}

impl<I: Data, O: Data> Runnable for BoxRunnable<I, O> {
    type Input = I;
    type Output = O;

    fn emitter(&self) -> &Emitter {
        self.0.emitter()
    }

    async fn execute(&self, input: &I, ctx: &RunContext) -> Result<O> {
        self.0.execute(input, ctx).await
    }

    fn kind(&self) -> &str {
        self.0.kind()
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn middlewares(&self) -> &[Arc<dyn Middleware>] {
        self.0.middlewares()
    }

    fn is_idempotent(&self) -> bool {
        self.0.is_idempotent()
    }

    fn face(&self) -> Face {
        self.0.face()
    }
}

impl<I, O> fmt::Debug for BoxRunnable<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.0.kind(), self.0.name())
    }
}
