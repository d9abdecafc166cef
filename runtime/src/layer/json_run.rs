//! Layers that fit runs of any type, because they see the values as JSON (M1).

use emitree_emitter::json::{to_value_exact, to_value_noting};
use futures_core::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use crate::chain::erased::{DynLayer, LayerDescription, LayerEntry, RawNext, Work};
use crate::runnable::value::{Data, fit};
use crate::{Error, Op, Phase, Result, RunContext};
use std::sync::Arc;

/// The [`Op`] of layers that need values, and fit runs of any type. A `Layer<JsonRun>` sees input and output as JSON.
///
/// A value that the layer passes on unchanged is not parsed again: the run continues with the original value. If a
/// value does not fit the run's types, the call fails with an error that names the place in the JSON.
///
/// ```
/// use emitree_runtime::{JsonRun, Layer, Next, Result, RunContext, Runnable, Stack, for_tree, runnable_fn};
/// use serde_json::Value;
///
/// /// Logs input and output of a run and of every run below.
/// #[derive(Debug)]
/// struct Log;
///
/// impl Layer<JsonRun> for Log {
///     async fn call(&self, input: &Value, ctx: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
///         let output = next.run(input).await?;
///         tracing::info!("{}: {input} -> {output}", ctx.emitter().namespace());
///         Ok(output)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let log = Stack::<JsonRun>::builder().layer(Log).build();
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// assert_eq!(double.run(2).middleware(for_tree(log)).await?, 4);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct JsonRun;

impl Op for JsonRun {
    type In = Value;
    type Out = Value;

    fn name() -> &'static str {
        "json run"
    }
}

/// Adapts a layer that sees JSON to runs from `I` to `O`.
pub(crate) struct JsonAdapter(Arc<dyn DynLayer<Value, Value>>);

impl JsonAdapter {
    pub(crate) fn entry<I: Data, O: Data>(entry: LayerEntry<Value, Value>) -> LayerEntry<I, O> {
        LayerEntry { phase: entry.phase, is_innermost: entry.is_innermost, layer: Arc::new(Self(entry.layer)) }
    }
}

impl<I: Data, O: Data> DynLayer<I, O> for JsonAdapter {
    fn call<'a>(
        &'a self,
        phase: Phase,
        input: &'a I,
        ctx: &'a RunContext,
        next: RawNext<'a, I, O>,
    ) -> BoxFuture<'a, Result<O>> {
        Box::pin(async move {
            let (json, inexact) = to_json("input", input)?;
            let inside = JsonWork { input, json: &json, next, last: Mutex::new(None), inexact: Mutex::new(inexact) };
            let output = self.0.call(phase, &json, ctx, next.around(&inside).next()).await?;
            // An unchanged output is returned as `next` returned it: parsing would cost time, and the JSON may be
            // incomplete.
            match inside.last.into_inner() {
                Some(last) if last.json == output => Ok(last.output),
                _ => fit("output", &output),
            }
        })
    }

    fn check_output<'a>(&'a self, output: &'a O, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.0.check_output(&to_json("output", output)?.0, ctx).await })
    }

    fn description(&self) -> &dyn LayerDescription {
        self.0.description()
    }

    fn by(&self) -> Option<&str> {
        self.0.by()
    }
}

/// The work as the adapted layer calls it, from JSON to JSON.
struct JsonWork<'a, I, O> {
    input: &'a I,
    json: &'a Value,
    next: RawNext<'a, I, O>,
    last: Mutex<Option<LastOutput<O>>>,
    /// The reason why the JSON of the input or of an output is incomplete.
    inexact: Mutex<Option<String>>,
}

/// The last output, and its JSON.
struct LastOutput<O> {
    json: Value,
    output: O,
}

impl<I: Data, O: Data> JsonWork<'_, I, O> {
    async fn run(&self, input: &Value) -> Result<Value> {
        // An unchanged input is not parsed: the work receives the original input.
        let output = if input == self.json {
            self.next.run(self.input).await?
        } else {
            self.next.run(&fit("input", input)?).await?
        };
        let (json, inexact) = to_json("output", &output)?;
        if inexact.is_some() {
            *self.inexact.lock() = inexact;
        }
        let before = self.last.lock().replace(LastOutput { json: json.clone(), output });
        // The drop of an output may call user code, which must not run under the lock.
        drop(before);
        Ok(json)
    }
}

impl<I: Data, O: Data> Work<Value, Value> for JsonWork<'_, I, O> {
    fn call<'a>(&'a self, input: &'a Value, _: &'a RunContext) -> BoxFuture<'a, Result<Value>> {
        Box::pin(self.run(input))
    }

    fn check_output<'a>(&'a self, output: &'a Value, _: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.next.check_output(&fit("output", output)?).await })
    }

    fn is_answered(&self) -> bool {
        self.next.is_answered()
    }

    fn inexact(&self) -> Option<String> {
        self.inexact.lock().clone()
    }
}

/// Converts a value to JSON. If the JSON is incomplete, because a NaN becomes `null`, also returns the reason.
fn to_json(what: &str, value: &impl Serialize) -> Result<(Value, Option<String>)> {
    let (json, is_exact) = to_value_noting(value).map_err(|error| {
        Error::from(error).message(format!("the {what} cannot be converted to JSON for a layer of `JsonRun`"))
    })?;
    let inexact = if is_exact { None } else { to_value_exact(value).err() };
    Ok((json, inexact.map(|error| error.to_string())))
}
