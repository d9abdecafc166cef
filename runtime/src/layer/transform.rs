//! Layers that change input and output (M2).

use std::any::type_name;
use std::fmt;
use std::future::{Future, ready};

use crate::{Layer, Next, Op, Result, RunContext, Summary};

/// A layer that changes input and output.
///
/// With several transforms around the work, the outermost changes the input first and the output last.
///
/// ```
/// use emitree_runtime::{Op, Result, RunContext, Runnable, Transform, runnable_fn};
///
/// /// Converts keys to lower case.
/// #[derive(Debug)]
/// struct LowerCase;
///
/// impl<O: Op<In = String>> Transform<O> for LowerCase {
///     async fn input(&self, key: &String, _: &RunContext) -> Result<Option<String>> {
///         Ok(Some(key.to_lowercase()))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let echo = runnable_fn("echo", |key: String, _: RunContext| async move { Ok(key) });
/// assert_eq!(echo.run("HOME".to_owned()).layers(|stack| stack.transform(LowerCase)).await?, "home");
/// # Ok(())
/// # }
/// ```
pub trait Transform<O: Op>: fmt::Debug + Send + Sync + 'static {
    /// Returns a new input, or `None` to keep the input. By default this method returns `None`.
    ///
    /// # Errors
    ///
    /// An error ends the call; the layers inside and the work are not called.
    fn input(&self, input: &O::In, ctx: &RunContext) -> impl Future<Output = Result<Option<O::In>>> + Send {
        let _ = (input, ctx);
        ready(Ok(None))
    }

    /// Returns the output, changed or not. By default the output stays unchanged.
    ///
    /// # Errors
    ///
    /// An error becomes the result of the call; the output is lost.
    fn output(&self, output: O::Out, ctx: &RunContext) -> impl Future<Output = Result<O::Out>> + Send {
        let _ = ctx;
        ready(Ok(output))
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
}

#[derive(Debug)]
pub(crate) struct TransformLayer<T>(pub(crate) T);

impl<O: Op, T: Transform<O>> Layer<O> for TransformLayer<T> {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let changed = self.0.input(input, ctx).await?;
        let output = next.run(changed.as_ref().unwrap_or(input)).await?;
        self.0.output(output, ctx).await
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn debug_summary(&self) -> Summary {
        self.0.debug_summary()
    }
}
