//! Layers that only look at values (M2, M5).

use std::any::type_name;
use std::fmt;

use crate::run::panic::{caught, logged};
use crate::{Error, Layer, Next, Op, Result, RunContext, Summary};

/// A layer that looks at input and output, and can neither change them nor stop the call.
///
/// It fails open: if it panics, the panic is logged, and the call continues.
///
/// ```
/// use emitree_runtime::{Observe, Op, Result, RunContext, Runnable, runnable_fn};
/// use tokio::time::Instant;
///
/// /// Logs how long work takes.
/// #[derive(Debug)]
/// struct Timed;
///
/// impl<O: Op> Observe<O> for Timed {
///     type Memo = Instant;
///
///     fn before(&self, _: &O::In, _: &RunContext) -> Instant {
///         Instant::now()
///     }
///
///     fn after(&self, began: Instant, _: &Result<O::Out>, _: &RunContext) {
///         tracing::info!(took = ?began.elapsed(), "{}", O::name());
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// assert_eq!(double.run(21).layers(|stack| stack.observe(Timed)).await?, 42);
/// # Ok(())
/// # }
/// ```
pub trait Observe<O: Op>: fmt::Debug + Send + Sync + 'static {
    /// A value that [`before`](Self::before) passes to [`after`](Self::after).
    type Memo: Send;

    /// Looks at the input, before the layers inside are called.
    fn before(&self, input: &O::In, ctx: &RunContext) -> Self::Memo;

    /// Looks at the result. This method is not called if the call was dropped, or if `before` panicked.
    fn after(&self, memo: Self::Memo, result: &Result<O::Out>, ctx: &RunContext);

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
pub(crate) struct ObserveLayer<T>(pub(crate) T);

impl<O: Op, T: Observe<O>> Layer<O> for ObserveLayer<T> {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        // If `before` panics there is no memo: the call continues, and `after` is skipped (M5).
        let memo = isolated(self.0.name(), || self.0.before(input, ctx));
        let result = next.run(input).await;
        if let Some(memo) = memo {
            isolated(self.0.name(), || self.0.after(memo, &result, ctx));
        }
        result
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn debug_summary(&self) -> Summary {
        self.0.debug_summary()
    }
}

fn isolated<T>(name: &str, look: impl FnOnce() -> T) -> Option<T> {
    let log = |panic: &Error| logged(|| tracing::warn!("the observing layer `{name}` panicked: {panic}"));
    caught(look).inspect_err(log).ok()
}
