//! Layers of a run, and of each run of an instance, in few words (M1).

use crate::chain::attempts::MaxRetries;
use crate::context::current::enter_some;
use crate::{Explanation, Layer, Run, Runnable, RunnableFn, Stack, StackBuilder};

/// Layers of this run stand among those of its instance, by phase; in a phase, after those.
impl<R: Runnable> Run<'_, R> {
    /// Lays a layer around this run's work, in [`Phase::Transform`](crate::Phase::Transform).
    pub fn layer(self, layer: impl Layer<R>) -> Self
    where
        R: 'static,
    {
        self.layers(|stack| stack.layer(layer))
    }

    /// Lays layers around this run's work: `.layers(|stack| stack.guard(Policy).transform(Trim))`.
    pub fn layers(self, build: impl FnOnce(StackBuilder<R>) -> StackBuilder<R>) -> Self
    where
        R: 'static,
    {
        self.middleware(build(Stack::builder()).build())
    }

    /// How often the whole attempt may start again because a middleware or the work asks for it with
    /// [`Error::retry`](crate::Error::retry) (M7). By default never: then the caller gets that error.
    ///
    /// An attempt begins with the input as `start` left it. An output that was set at `start` is kept as JSON where
    /// there are layers, and answers each attempt.
    pub fn max_middleware_retries(self, most: u32) -> Self {
        self.middleware(MaxRetries(most))
    }

    /// What it will go through: what it inherits from the run that it was made in, as that stands now, what is bound to
    /// the instance, and what to this run. Empty once the run has begun:
    /// [`RunContext::explain`](crate::RunContext::explain) tells then.
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
        let Some(config) = self.built() else { return Explanation::default() };
        let parent = config.parent.as_ref();
        // Inside of the run above: if that ends meanwhile, on another thread, what was bound to it is dropped here (R14).
        enter_some(parent, || {
            let inherited = parent.and_then(|parent| parent.inherited().all());
            let inherited = inherited.iter().flat_map(|inherited| inherited.iter());
            Explanation::of(config.runnable.name(), inherited.chain(config.middlewares()))
        })
    }
}

impl<F, I, O> RunnableFn<F, I, O>
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
