//! Methods that add layers to a run, or to every run of an instance (M1).

use crate::context::current::enter_some;
use crate::{Explanation, Layer, MaxMiddlewareRetries, Run, Runnable, RunnableFn, Stack, StackBuilder};

impl<R: Runnable> Run<'_, R> {
    /// Wraps this run's work with a layer, in [`Phase::Transform`](crate::Phase::Transform).
    ///
    /// Layers of the run and of its runnable are sorted by phase; within a phase, the runnable's layers wrap the run's
    /// layers.
    ///
    /// ```
    /// use emitree_runtime::{Layer, Next, Op, Result, RunContext, Runnable, runnable_fn};
    ///
    /// #[derive(Debug)]
    /// struct PlusOne;
    ///
    /// impl<O: Op<Out = u32>> Layer<O> for PlusOne {
    ///     async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<u32> {
    ///         Ok(next.run(input).await? + 1)
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    /// assert_eq!(double.run(20).layer(PlusOne).await?, 41);
    /// # Ok(())
    /// # }
    /// ```
    pub fn layer(self, layer: impl Layer<R>) -> Self
    where
        R: 'static,
    {
        self.layers(|stack| stack.layer(layer))
    }

    /// Wraps this run's work with several layers: `.layers(|stack| stack.guard(Policy).transform(Trim))`.
    pub fn layers(self, build: impl FnOnce(StackBuilder<R>) -> StackBuilder<R>) -> Self
    where
        R: 'static,
    {
        self.middleware(build(Stack::builder()).build())
    }

    /// Sets how often the whole attempt may start again if a middleware, a layer or the work requests that with
    /// [`Error::retry`](crate::Error::retry). The default is 0: the caller receives the request as the run's error.
    /// [`MaxMiddlewareRetries`] sets the number for all runs of a runnable, and this method overrides it. A further
    /// request makes the run fail.
    ///
    /// Every attempt begins with the input as `start` left it. If a listener of `start` has set the output, that output
    /// replaces the work of every attempt.
    pub fn max_middleware_retries(self, most: u32) -> Self {
        self.middleware(MaxMiddlewareRetries(most))
    }

    /// Returns the middlewares and layers that the run will have: the middlewares that its parent currently passes on,
    /// the middlewares of its runnable, and the run's own middlewares. Once the run has begun, the explanation is
    /// empty; call [`RunContext::explain`](crate::RunContext::explain) instead.
    ///
    /// A middleware that does not [handle](crate::Middleware::handles) runs of this kind and name is listed as `never`,
    /// without its layers. If it selects runs by other properties, or if it is bound with
    /// [`for_tree`](crate::for_tree), it decides only in `bind`, which `explain` does not call. It is then listed with
    /// all its layers; [`RunContext::explain`](crate::RunContext::explain) lists only the layers that were bound.
    ///
    /// ```
    /// use emitree_runtime::{Layer, Next, Op, Result, RunContext, Runnable, runnable_fn};
    ///
    /// #[derive(Debug)]
    /// struct Cache { entries: usize }
    ///
    /// impl<O: Op> Layer<O> for Cache {
    ///     async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
    ///         next.run(input).await
    ///     }
    ///     fn name(&self) -> &str {
    ///         "cache"
    ///     }
    /// }
    ///
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    /// let run = double.run(2).layer(Cache { entries: 10 });
    /// let lines = [
    ///     "double",
    ///     "  bound:",
    ///     "    cache: Cache { entries: 10 }",
    ///     "  passes:",
    ///     "    transform cache: Cache { entries: 10 }",
    /// ];
    /// assert_eq!(run.explain().to_string(), lines.join("\n"));
    /// ```
    #[must_use]
    pub fn explain(&self) -> Explanation {
        let Some(config) = self.config() else { return Explanation::default() };
        let parent = config.parent.as_ref();
        // If the parent ends meanwhile on another thread, this call may hold the last references to the parent's
        // middlewares. Enter the parent, so that it is the current run while they are dropped (R14).
        enter_some(parent, || {
            let inherited = parent.and_then(|parent| parent.shared().inherited.all());
            let inherited = inherited.iter().flat_map(|inherited| inherited.iter());
            let kind = config.runnable.kind();
            let name = config.runnable.name();
            Explanation::of(kind, name, inherited.chain(config.middlewares()), None)
        })
    }
}

impl<F, I, O> RunnableFn<F, I, O>
where
    Self: Runnable + 'static,
{
    /// Wraps the work of every run with a layer, in [`Phase::Transform`](crate::Phase::Transform).
    #[must_use]
    pub fn layer(self, layer: impl Layer<Self>) -> Self {
        self.layers(|stack| stack.layer(layer))
    }

    /// Wraps the work of every run with several layers: `.layers(|stack| stack.guard(Policy).transform(Trim))`.
    #[must_use]
    pub fn layers(self, build: impl FnOnce(StackBuilder<Self>) -> StackBuilder<Self>) -> Self {
        self.middleware(build(Stack::builder()).build())
    }
}
