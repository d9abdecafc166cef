//! Layers that fit runs of any type, because they do not see the values (M1). No values are converted for such a layer.

use futures_core::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;

use crate::chain::erased::{DynLayer, LayerDescription, LayerEntry, RawNext, Work};
use crate::runnable::value::Data;
use crate::{Error, ErrorKind, Op, Phase, Result, RunContext};

/// The [`Op`] of layers that need no values, and therefore fit runs of any type. A `Layer<AnyRun>` decides whether,
/// when and how often the layers inside are called, but sees neither input nor output.
///
/// Unlike a layer of [`JsonRun`](crate::JsonRun), such a layer needs no conversion of values to JSON. If the layer
/// returns `Ok`, the result is the last output of `next`. If no call of `next` has succeeded, there is no such output,
/// and `Ok` becomes an error.
///
/// A layer that is generic over the kind of work is a `Layer<AnyRun>`, and also fits runs of known types:
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use emitree_runtime::{Layer, Next, Op, Result, RunContext, Runnable, Stack, AnyRun, for_tree, runnable_fn};
///
/// /// Counts calls.
/// #[derive(Debug, Default)]
/// struct Calls(AtomicU32);
///
/// impl<O: Op> Layer<O> for Calls {
///     async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
///         self.0.fetch_add(1, Ordering::Relaxed);
///         next.run(input).await
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let calls = Stack::<AnyRun>::builder().layer(Calls::default()).build();
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// assert_eq!(double.run(2).middleware(for_tree(calls)).await?, 4);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct AnyRun;

impl Op for AnyRun {
    type In = ();
    type Out = ();

    fn name() -> &'static str {
        "any run"
    }
}

/// Adapts a layer that sees no values to runs from `I` to `O`.
pub(crate) struct OpaqueAdapter(Arc<dyn DynLayer<(), ()>>);

impl OpaqueAdapter {
    pub(crate) fn entry<I: Data, O: Data>(entry: LayerEntry<(), ()>) -> LayerEntry<I, O> {
        LayerEntry { phase: entry.phase, is_innermost: entry.is_innermost, layer: Arc::new(Self(entry.layer)) }
    }
}

impl<I: Data, O: Data> DynLayer<I, O> for OpaqueAdapter {
    fn call<'a>(
        &'a self,
        phase: Phase,
        input: &'a I,
        ctx: &'a RunContext,
        next: RawNext<'a, I, O>,
    ) -> BoxFuture<'a, Result<O>> {
        Box::pin(async move {
            let inside = OpaqueWork { input, next, last: Mutex::new(None) };
            self.0.call(phase, &(), ctx, next.around(&inside).next()).await?;
            // The layer may have called `next` several times: the run continues with the last output.
            inside.last.into_inner().ok_or_else(|| no_output(self.0.description().name()))
        })
    }

    fn check_output<'a>(&'a self, _: &'a O, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        self.0.check_output(&(), ctx)
    }

    fn description(&self) -> &dyn LayerDescription {
        self.0.description()
    }

    fn by(&self) -> Option<&str> {
        self.0.by()
    }
}

fn no_output(layer: &str) -> Error {
    let message = format!(
        "the layer `{layer}` does not see values and returned `Ok` without an output: call `next`, or return an error"
    );
    Error::of_kind(ErrorKind::Invalid, message)
}

/// The work as the adapted layer calls it. Keeps the output, which the layer does not see.
struct OpaqueWork<'a, I, O> {
    input: &'a I,
    next: RawNext<'a, I, O>,
    last: Mutex<Option<O>>,
}

impl<I: Data, O: Data> Work<(), ()> for OpaqueWork<'_, I, O> {
    fn call<'a>(&'a self, (): &'a (), _: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let output = self.next.run(self.input).await?;
            let before = self.last.lock().replace(output);
            // The drop of an output may call user code, which must not run under the lock.
            drop(before);
            Ok(())
        })
    }

    fn is_answered(&self) -> bool {
        self.next.is_answered()
    }
}
