//! Middlewares that one function makes: of inputs, and of outputs.

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use futures_core::future::BoxFuture;

use crate::passing::{Pass, PassFn, Passes, Passing};
use crate::{Error, ErrorKind, LayerInfo, Middleware, Place, Result, RunContext, Summary};

/// A function that inputs of a run pass, as a middleware. Made by [`input_fn`].
pub struct InputFn<I> {
    name: Option<Arc<str>>,
    f: Arc<PassFn<I>>,
}

/// A function that outputs of a run pass, as a middleware. Made by [`output_fn`].
pub struct OutputFn<O> {
    name: Option<Arc<str>>,
    f: Arc<PassFn<O>>,
}

/// Lifts a function into a middleware that inputs pass, after `start` and before all layers: it gives another input, or
/// none to keep this one. Several pass it on in list order. The run's own events show the input as `start` left it.
///
/// ```
/// use emitree_runtime::{Passing, RunContext, Runnable, input_fn, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let trim = input_fn(|text: Passing<'_, String>| {
///     Box::pin(async move {
///         match text.value().trim() {
///             "" => Err(text.deny("nothing to say")),
///             trimmed => Ok(Some(trimmed.to_owned())),
///         }
///     })
/// });
/// let echo = runnable_fn("echo", |text: String, _: RunContext| async move { Ok(text) }).middleware(trim.named("trim"));
/// assert_eq!(echo.run(" hello ".to_owned()).await?, "hello");
/// assert_eq!(echo.run(" ".to_owned()).await.unwrap_err().explain(), "denied by trim: nothing to say");
/// # Ok(())
/// # }
/// ```
pub fn input_fn<I, F>(f: F) -> InputFn<I>
where
    I: Clone,
    F: for<'a> Fn(Passing<'a, I>) -> BoxFuture<'a, Result<Option<I>>> + Send + Sync + 'static,
{
    InputFn { name: None, f: Arc::new(f) }
}

/// Lifts a function into a middleware that outputs pass, after all layers and before `success`: it gives another
/// output, or none to keep this one. Several pass it on in list order: what is bound later sees what those before it
/// gave.
///
/// ```
/// use emitree_runtime::{Passing, RunContext, Runnable, output_fn, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let positive = output_fn(|n: Passing<'_, i32>| {
///     Box::pin(async move { if *n.value() > 0 { Ok(None) } else { Err(n.retry("not positive", *n.value())) } })
/// });
/// let count = runnable_fn("count", |(): (), ctx: RunContext| async move { Ok(i32::try_from(ctx.attempt())?) });
/// assert_eq!(count.run(()).middleware(positive).max_middleware_retries(3).await?, 1);
/// # Ok(())
/// # }
/// ```
pub fn output_fn<O, F>(f: F) -> OutputFn<O>
where
    O: Clone,
    F: for<'a> Fn(Passing<'a, O>) -> BoxFuture<'a, Result<Option<O>>> + Send + Sync + 'static,
{
    OutputFn { name: None, f: Arc::new(f) }
}

impl<I> InputFn<I> {
    /// Names it; otherwise it is called after its place among the run's: `input#1`.
    #[must_use]
    pub fn named(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }
}

impl<O> OutputFn<O> {
    /// Names it; otherwise it is called after its place among the run's: `output#1`.
    #[must_use]
    pub fn named(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }
}

impl<I: Clone + Send + Sync + 'static> Middleware for InputFn<I> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let inputs = inputs_of::<I>(ctx)?;
        inputs.keep_by(I::clone);
        inputs.push(Pass::new(self.name.clone(), Arc::clone(&self.f)))
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("input")
    }

    fn debug_summary(&self) -> Summary {
        self.name().into()
    }

    fn layers(&self) -> Vec<LayerInfo> {
        vec![LayerInfo::pass(Place::Input, self.name.as_deref())]
    }
}

impl<O: Clone + Send + Sync + 'static> Middleware for OutputFn<O> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let chain = ctx.chain()?;
        let outputs: &Passes<O> =
            chain.outputs()?.downcast_ref().ok_or_else(|| misfit::<O>("output", chain.types()[1]))?;
        outputs.keep_by(O::clone);
        outputs.push(Pass::new(self.name.clone(), Arc::clone(&self.f)))
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("output")
    }

    fn debug_summary(&self) -> Summary {
        self.name().into()
    }

    fn layers(&self) -> Vec<LayerInfo> {
        vec![LayerInfo::pass(Place::Output, self.name.as_deref())]
    }
}

fn inputs_of<I: 'static>(ctx: &RunContext) -> Result<&Passes<I>> {
    let chain = ctx.chain()?;
    chain.inputs()?.downcast_ref().ok_or_else(|| misfit::<I>("input", chain.types()[0]))
}

fn misfit<T>(what: &str, run: &str) -> Error {
    let own = type_name::<T>();
    let message = format!("an {what} middleware of `{own}` was bound to a run whose {what} is `{run}`");
    Error::of_kind(ErrorKind::Invalid, message)
}

/// Has the caller's input kept. Made by [`keep_input`].
pub struct KeepInput<I>(fn(&I) -> I);

/// Has the caller's input kept, for [`RunContext::original_input`]; what [`input_fn`] makes does so too.
#[must_use]
pub fn keep_input<I: Clone>() -> KeepInput<I> {
    KeepInput(I::clone)
}

impl<I: 'static> Middleware for KeepInput<I> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        inputs_of::<I>(ctx)?.keep_by(self.0);
        Ok(())
    }

    fn name(&self) -> &str {
        "keep_input"
    }

    fn debug_summary(&self) -> Summary {
        self.name().into()
    }
}

impl<I> fmt::Debug for KeepInput<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepInput")
    }
}

impl<I> fmt::Debug for InputFn<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InputFn").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<O> fmt::Debug for OutputFn<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutputFn").field("name", &self.name).finish_non_exhaustive()
    }
}
