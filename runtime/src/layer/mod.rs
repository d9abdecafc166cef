//! Layers, which wrap work and call it (M1).

pub(crate) mod any_run;
pub(crate) mod filter;
pub(crate) mod guard;
pub(crate) mod json_run;
pub(crate) mod layered;
pub(crate) mod nesting;
pub(crate) mod observe;
pub(crate) mod op;
pub(crate) mod phase;
pub(crate) mod stack;
pub(crate) mod swallowed;
pub(crate) mod transform;
pub(crate) mod would_deny;

use std::any::type_name;
use std::fmt;
use std::future::{Future, ready};
use std::marker::PhantomData;

use futures_core::future::BoxFuture;

use crate::chain::erased::RawNext;
use crate::{Error, Nesting, Op, Result, RunContext, Summary};

/// A layer around a kind of work: it sees input and output, and decides whether, how often and with which input the
/// work is called.
///
/// If your layer needs less than that, implement a restricted trait: [`Observe`](crate::Observe) only looks at values,
/// [`Transform`](crate::Transform) only changes values, and [`Guard`](crate::Guard) only denies calls.
///
/// Add a layer to a run with [`Run::layer`](crate::Run::layer), or to a [`Stack`](crate::Stack) of layers.
///
/// ```
/// use emitree_runtime::{Layer, Next, Op, Result, RunContext, Runnable, runnable_fn};
///
/// /// Returns 0 for an empty text, without calling the work.
/// #[derive(Debug)]
/// struct OrZero;
///
/// impl<O: Op<In = String, Out = u32>> Layer<O> for OrZero {
///     async fn call(&self, input: &String, _: &RunContext, next: Next<'_, O>) -> Result<u32> {
///         if input.is_empty() { Ok(0) } else { next.run(input).await }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let parse = runnable_fn("parse", |text: String, _: RunContext| async move { Ok(text.parse::<u32>()?) });
/// assert_eq!(parse.run("7".to_owned()).layer(OrZero).await?, 7);
/// assert_eq!(parse.run(String::new()).layer(OrZero).await?, 0);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a layer of `{O}`",
    label = "expected a `Layer<{O}>`",
    note = "implement `Layer`, or lift a closure with `layer_fn(name, f)`; a layer for runs of any type is a `Layer<AnyRun>`, or a `Layer<JsonRun>` if it looks at values"
)]
pub trait Layer<O: Op>: fmt::Debug + Send + Sync + 'static {
    /// Handles one call of the work, and returns its output. Call `next` to call the layers inside and the work.
    ///
    /// Return denials, halts, aborts, interrupts and requests for a retry that `next` returned. To return another result
    /// instead, pass the error to [`Next::absorb`] first; otherwise the error overrules any less severe result.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped if the run is aborted or dropped.
    fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> impl Future<Output = Result<O::Out>> + Send;

    /// Checks an output that did not come from [`next`](Next::run), for example because a layer outside has changed or
    /// replaced the output of the work. By default every output passes. A [`Guard`](crate::Guard) checks it as any other
    /// output. Called by [`Next::check_output`] and [`Stack::check_output`](crate::Stack::check_output).
    ///
    /// # Errors
    ///
    /// Returns a denial, or other control flow, if the output must not be used.
    fn check_output(&self, output: &O::Out, ctx: &RunContext) -> impl Future<Output = Result<()>> + Send {
        let _ = (output, ctx);
        ready(Ok(()))
    }

    /// Returns the name for lists of layers and for the layer's span. By default it is the type name.
    fn name(&self) -> &str {
        type_name::<Self>()
    }

    /// Returns a description for [`Explanation`](crate::Explanation). By default it is the `Debug` output, truncated to
    /// [`Summary::MAX_BYTES`].
    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }

    /// Returns a warning if it is probably a mistake to bind the layer both to a run and to a run above it, for example
    /// because attempts multiply. By default there is no warning.
    ///
    /// This method is called each time the layer is bound to a run that has a parent, until the layer has logged a
    /// warning. [`RunContext::explain`] also calls it, and lists the warnings of a run. If this method panics, the
    /// panic is logged, and there is no warning.
    ///
    /// ```
    /// use emitree_runtime::{Layer, Nesting, Next, Op, Result, RunContext};
    ///
    /// #[derive(Debug)]
    /// struct Twice;
    ///
    /// impl<O: Op> Layer<O> for Twice {
    ///     async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
    ///         next.run(input).await?;
    ///         next.run(input).await
    ///     }
    ///
    ///     fn nesting_warning(&self, nesting: &Nesting<'_>) -> Option<String> {
    ///         let above = nesting.above().next()?;
    ///         Some(format!("`{}` works four times: twice in each of two calls of `{}`", nesting.run().name(), above.name()))
    ///     }
    /// }
    /// ```
    fn nesting_warning(&self, nesting: &Nesting<'_>) -> Option<String> {
        let _ = nesting;
        None
    }
}

/// The layers inside a layer, and the work. A layer calls them with [`run`](Self::run): once, several times, with
/// another input, or not at all.
pub struct Next<'a, O: Op>(pub(crate) RawNext<'a, O::In, O::Out>);

impl<'a, O: Op> Next<'a, O> {
    /// Calls the layers inside and the work. Nothing happens before the future is polled.
    ///
    /// # Errors
    ///
    /// Returns the error of the work or of a layer inside. If the work or a layer inside panics, the error is of the
    /// kind [`Panicked`](crate::ErrorKind::Panicked). After a denial, a halt, an abort, an interrupt or a request for a
    /// retry, further calls return that error again and run nothing, until the error is [absorbed](Self::absorb).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the layers inside and the work at their current await point.
    pub fn run(self, input: &'a O::In) -> impl Future<Output = Result<O::Out>> + Send + use<'a, O> {
        self.0.run(input)
    }

    /// Passes an output to the [`check_output`](Layer::check_output) of each layer inside, innermost first. A layer that
    /// returns an output of its own calls this method, so that no guard inside is bypassed. The work, and layers that
    /// do not check outputs, are not called.
    ///
    /// ```
    /// use emitree_runtime::{Error, Guard, Next, Op, Result, RunContext, Runnable, runnable_fn};
    ///
    /// #[derive(Debug)]
    /// struct NoSecrets;
    ///
    /// impl<O: Op<Out = String>> Guard<O> for NoSecrets {
    ///     async fn check_output(&self, output: &String, _: &RunContext) -> Result<()> {
    ///         if output.contains("password") { Err(Error::new("the output has a password")) } else { Ok(()) }
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let echo = runnable_fn("echo", |text: String, _: RunContext| async move { Ok(text) }).layers(|stack| {
    ///     stack.guard(NoSecrets).layer_fn("stored", |_, _, next: Next<'_, _>| {
    ///         Box::pin(async move {
    ///             let stored = "the password".to_owned();
    ///             next.check_output(&stored).await?;
    ///             Ok(stored)
    ///         })
    ///     })
    /// });
    /// assert!(echo.run("hello".to_owned()).await.unwrap_err().is_denied());
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of the first layer that refuses the output.
    pub fn check_output(self, output: &'a O::Out) -> impl Future<Output = Result<()>> + Send + use<'a, O> {
        self.0.check_output(output)
    }

    /// Returns `true` if a listener of `start` has set the output of the run. This output replaces the work, but the
    /// layers inside are still called.
    #[must_use]
    pub fn is_answered(self) -> bool {
        self.0.is_answered()
    }

    /// Returns `false` if the layer sees values as JSON, and the JSON of the input or of an output so far is
    /// incomplete: a NaN, for example, becomes `null`. Do not store such JSON, and do not compare it with other values.
    #[must_use]
    pub fn is_exact(self) -> bool {
        self.inexact().is_none()
    }

    /// Returns the reason why the JSON is not [exact](Self::is_exact), with the path of the number that JSON cannot
    /// represent.
    #[must_use]
    pub fn inexact(self) -> Option<String> {
        self.0.inexact()
    }

    /// Marks an error of `next` as handled, so that the layer may return another result.
    ///
    /// If `next` returns a denial, a halt, an abort, an interrupt or a request for a retry, this error overrules any
    /// less severe result of the layer, unless the layer absorbs the error. So no layer swallows control flow by
    /// accident.
    ///
    /// A layer that awaits several calls of `next` at the same time must absorb each such error that it handles. Of the
    /// errors that it has not absorbed, the most severe error is the result. From most to least severe, these are: a
    /// denial, a halt, an abort, an interrupt, a request for a retry.
    ///
    /// ```
    /// use emitree_runtime::{Error, Layer, Next, Op, Result, RunContext, Runnable, runnable_fn};
    ///
    /// /// Returns 0 if the work is denied.
    /// #[derive(Debug)]
    /// struct ZeroIfDenied {
    ///     absorbs: bool,
    /// }
    ///
    /// impl<O: Op<Out = u32>> Layer<O> for ZeroIfDenied {
    ///     async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<u32> {
    ///         let result = next.run(input).await;
    ///         let Err(error) = result else { return result };
    ///         if self.absorbs {
    ///             next.absorb(&error);
    ///         }
    ///         Ok(0)
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let count = runnable_fn("count", |(): (), _: RunContext| async { Err::<u32, _>(Error::denied("count", "closed")) });
    /// assert_eq!(count.run(()).layer(ZeroIfDenied { absorbs: true }).await?, 0);
    /// assert!(count.run(()).layer(ZeroIfDenied { absorbs: false }).await.unwrap_err().is_denied());
    /// # Ok(())
    /// # }
    /// ```
    pub fn absorb(self, error: &Error) {
        self.0.absorb(error);
    }
}

impl<O: Op> Clone for Next<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O: Op> Copy for Next<'_, O> {}

impl<O: Op> fmt::Debug for Next<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Next({})", O::name())
    }
}

/// A closure as a layer. Created by [`layer_fn`].
pub struct LayerFn<O, F> {
    name: String,
    f: F,
    of: PhantomData<fn() -> O>,
}

/// Creates a layer from a closure that returns a boxed future.
///
/// ```
/// use emitree_runtime::{Next, Op, Result, RunContext, Runnable, Stack, layer_fn, runnable_fn};
///
/// /// Reads a key from a store.
/// struct Read;
/// impl Op for Read {
///     type In = String;
///     type Out = String;
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let prefix = "tenant/".to_owned();
/// let scoped = layer_fn("scoped", move |key: &String, _, next: Next<'_, Read>| {
///     let key = format!("{prefix}{key}");
///     Box::pin(async move { next.run(&key).await })
/// });
/// let stack = Stack::builder().layer(scoped).build();
/// let read = runnable_fn("read", move |key: String, ctx: RunContext| {
///     let stack = stack.clone();
///     async move { stack.call(&key, &ctx, |key, _| Box::pin(async move { Ok(format!("value of {key}")) })).await }
/// });
/// assert_eq!(read.run("port".to_owned()).await?, "value of tenant/port");
/// # Ok(())
/// # }
/// ```
pub fn layer_fn<O, F>(name: impl Into<String>, f: F) -> LayerFn<O, F>
where
    O: Op,
    F: for<'a> Fn(&'a O::In, &'a RunContext, Next<'a, O>) -> BoxFuture<'a, Result<O::Out>> + Send + Sync + 'static,
{
    LayerFn { name: name.into(), f, of: PhantomData }
}

impl<O, F> Layer<O> for LayerFn<O, F>
where
    O: Op,
    F: for<'a> Fn(&'a O::In, &'a RunContext, Next<'a, O>) -> BoxFuture<'a, Result<O::Out>> + Send + Sync + 'static,
{
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        (self.f)(input, ctx, next).await
    }

    fn name(&self) -> &str {
        &self.name
    }
}

impl<O, F> fmt::Debug for LayerFn<O, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerFn").field("name", &self.name).finish_non_exhaustive()
    }
}
