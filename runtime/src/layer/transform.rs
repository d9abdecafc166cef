//! Layers that change what goes in and what comes out (M2).

use std::any::type_name;
use std::fmt;
use std::future::{Future, ready};

use crate::{Layer, Next, Op, Result, RunContext, Summary};

/// A layer that makes another input of an input, and another output of an output.
///
/// Inputs pass from the outermost to the innermost, outputs the other way.
///
/// ```
/// use emitree_runtime::{Op, Result, RunContext, Transform};
///
/// /// Work sees keys in lower case.
/// #[derive(Debug)]
/// struct LowerCase;
///
/// impl<O: Op<In = String>> Transform<O> for LowerCase {
///     async fn input(&self, key: &String, _: &RunContext) -> Result<Option<String>> {
///         Ok(Some(key.to_lowercase()))
///     }
/// }
/// ```
pub trait Transform<O: Op>: fmt::Debug + Send + Sync + 'static {
    /// Makes another input; none keeps it.
    fn input(&self, input: &O::In, ctx: &RunContext) -> impl Future<Output = Result<Option<O::In>>> + Send {
        let _ = (input, ctx);
        ready(Ok(None))
    }

    /// Makes another output.
    fn output(&self, output: O::Out, ctx: &RunContext) -> impl Future<Output = Result<O::Out>> + Send {
        let _ = ctx;
        ready(Ok(output))
    }

    /// What it is called where layers are listed, and in its span.
    fn name(&self) -> &str {
        type_name::<Self>()
    }

    /// What it says of itself where layers are listed: by default its `Debug`, of at most [`Summary::MAX_BYTES`].
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
