//! What is laid around work, and holds what is inside of it (M1).

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
use std::future::Future;
use std::marker::PhantomData;

use futures_core::future::BoxFuture;

use crate::chain::erased::RawNext;
use crate::{Error, Nesting, Op, Result, RunContext, Summary};

/// Something that is laid around a kind of work: it sees what goes in and what comes out, and decides whether, how
/// often and with what the work is called.
///
/// One that only looks is an [`Observe`](crate::Observe), one that only changes values a
/// [`Transform`](crate::Transform), one that only says no a [`Guard`](crate::Guard).
///
/// ```
/// use emitree_runtime::{Layer, Next, Op, Result, RunContext, Runnable, runnable_fn};
///
/// /// Answers for work that takes no number at all.
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
    /// Does the work by `next`, or otherwise.
    ///
    /// Denials, halts, aborts, interrupts and requests for a retry that `next` gave have to be returned:
    /// [`Next::absorb`] says what becomes of them otherwise.
    fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> impl Future<Output = Result<O::Out>> + Send;

    /// What it is called where layers are listed, and in its span.
    fn name(&self) -> &str {
        type_name::<Self>()
    }

    /// What it says of itself where layers are listed: by default its `Debug`, of at most [`Summary::MAX_BYTES`].
    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }

    /// Returns a warning if it may be a mistake that the layer is bound to a run and also to a run above: attempts that
    /// multiply, a limit that counts twice. By default there is none.
    ///
    /// This is asked when the layer is bound to a run that has a run above. The first warning is logged, once per layer;
    /// [`RunContext::explain`] lists those of a run. A panic is logged, and is no warning.
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
    ///         Some(format!("what `{}` does is done four times, twice in each of two calls of `{}`", nesting.run().name(), above.name()))
    ///     }
    /// }
    /// ```
    fn nesting_warning(&self, nesting: &Nesting<'_>) -> Option<String> {
        let _ = nesting;
        None
    }
}

/// What is inside of a layer: further layers, and then the work.
///
/// It may be called, not called, called again, or with another input.
pub struct Next<'a, O: Op>(RawNext<'a, O::In, O::Out>);

impl<'a, O: Op> Next<'a, O> {
    pub(crate) const fn new(next: RawNext<'a, O::In, O::Out>) -> Self {
        Self(next)
    }

    /// Calls what is inside.
    ///
    /// # Errors
    ///
    /// That of the work or of a layer inside; their panics are errors of the kind
    /// [`Panicked`](crate::ErrorKind::Panicked). Once that was a denial, a halt, an abort, an interrupt or the request for
    /// a retry, further calls give it again and run nothing, unless it was [absorbed](Self::absorb).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work where it stands.
    pub fn run(self, input: &'a O::In) -> impl Future<Output = Result<O::Out>> + Send + use<'a, O> {
        self.0.run(input)
    }

    /// Tells whether there is no work inside: the run's output was set at its `start`, and is what comes out of the
    /// layers inside (M6).
    #[must_use]
    pub fn is_answered(self) -> bool {
        self.0.is_answered()
    }

    /// Returns `false` if the layer sees JSON, and that is not all of its input or of an output that it was given: a NaN
    /// is `null` in JSON. Such a value is not to be kept as JSON, or taken for another one.
    #[must_use]
    pub fn is_exact(self) -> bool {
        self.0.is_exact()
    }

    /// Says that an error which this layer does not return is swallowed on purpose.
    ///
    /// A layer that gets a denial, a halt, an abort, an interrupt or the request for a retry from `next`, and returns
    /// an output or a failure without having absorbed it, is overruled: the call ends with what was swallowed (M9).
    ///
    /// Each of them counts by itself. A layer that awaits several calls of `next` at the same time absorbs the error of each; of
    /// those that it does not absorb, a denial is the result, else a halt, an abort, an interrupt, a request for a retry.
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

/// A closure as a layer. Made by [`layer_fn`].
pub struct LayerFn<O, F> {
    name: String,
    f: F,
    of: PhantomData<fn() -> O>,
}

/// Lifts a closure into a layer.
///
/// ```
/// use emitree_runtime::{Next, Op, Stack, layer_fn};
///
/// struct Read;
/// impl Op for Read {
///     type In = String;
///     type Out = usize;
/// }
///
/// let prefix = "tenant/".to_owned();
/// let scoped = layer_fn("scoped", move |key: &String, _, next: Next<'_, Read>| {
///     let key = format!("{prefix}{key}");
///     Box::pin(async move { next.run(&key).await })
/// });
/// let stack = Stack::builder().layer(scoped).build();
/// # let _: Stack<Read> = stack;
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
