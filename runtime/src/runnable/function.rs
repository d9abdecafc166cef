//! Runnables that call an async function.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use emitree_emitter::{Creator, Emitter};

use crate::runnable::value::Data;
use crate::{IntoMiddleware, Middleware, Result, RunContext, Runnable};

/// A runnable that calls an async function. Created by [`runnable_fn`].
pub struct RunnableFn<F, I, O> {
    f: F,
    name: String,
    emitter: Emitter,
    middlewares: Vec<Arc<dyn Middleware>>,
    types: PhantomData<fn(I) -> O>,
}

/// Creates a runnable from an async function of an input and a [`RunContext`].
///
/// Its kind is `Run`. Its emitter is a child of the root and has no namespace, so the paths of a run's events are
/// `run.start`, `run.success` and so on. [`with_emitter`](RunnableFn::with_emitter) sets another emitter.
///
/// ```
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// assert_eq!(double.run(21).await?, 42);
/// # Ok(())
/// # }
/// ```
pub fn runnable_fn<F, Fut, I, O>(name: impl Into<String>, f: F) -> RunnableFn<F, I, O>
where
    F: Fn(I, RunContext) -> Fut + Send + Sync,
    Fut: Future<Output = Result<O>> + Send,
    I: Data + Clone,
    O: Data,
{
    let name = name.into();
    let emitter = Emitter::root().child_with(Creator::new("Run", name.clone()));
    RunnableFn { f, name, emitter, middlewares: Vec::new(), types: PhantomData }
}

impl<F, I, O> RunnableFn<F, I, O> {
    /// Sets the emitter, and with it the namespace, the kind, the context and the emitters above. The name does not
    /// change.
    ///
    /// ```
    /// use emitree_emitter::{Creator, Emitter};
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let emitter = Emitter::root().child_builder("tool.double").creator(Creator::new("Tool", "double")).build()?;
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) }).with_emitter(emitter);
    /// assert_eq!((double.kind(), double.name()), ("Tool", "double"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_emitter(mut self, emitter: Emitter) -> Self {
        self.emitter = emitter;
        self
    }

    /// Binds a middleware to every run of this runnable.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, map_output, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let at_most_100 = map_output(|n: &mut u32, _: &RunContext| {
    ///     *n = (*n).min(100);
    ///     Ok(())
    /// });
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) }).middleware(at_most_100);
    /// assert_eq!((double.run(21).await?, double.run(99).await?), (42, 100));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn middleware<Sort>(mut self, middleware: impl IntoMiddleware<Sort>) -> Self {
        self.middlewares.push(Arc::new(middleware.into_middleware()));
        self
    }
}

impl<F, Fut, I, O> Runnable for RunnableFn<F, I, O>
where
    F: Fn(I, RunContext) -> Fut + Send + Sync,
    Fut: Future<Output = Result<O>> + Send,
    I: Data + Clone,
    O: Data,
{
    type Input = I;
    type Output = O;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, input: &I, ctx: &RunContext) -> Result<O> {
        // The run keeps the input, for `success`, `finish` and further attempts (M7): the function receives a clone.
        (self.f)(input.clone(), ctx.clone()).await
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn middlewares(&self) -> &[Arc<dyn Middleware>] {
        &self.middlewares
    }
}

impl<F, I, O> fmt::Debug for RunnableFn<F, I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunnableFn").field("name", &self.name).field("emitter", &self.emitter).finish_non_exhaustive()
    }
}
