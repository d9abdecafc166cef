//! Layers for runs of any type, through JSON (M1).

use futures_core::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use crate::data::{Data, fit};
use crate::onion::{DynLayer, Entry, RawNext, Work};
use crate::{Error, Layer, Op, Phase, Result, RunContext, Summary};
use std::sync::Arc;

/// Runs of any type, as a kind of work: a `Layer<AnyRun>` sees input and output as JSON.
///
/// What comes back as it was is not parsed again: the run goes on with the value that it had. A value that does not
/// fit the run's types is an error that says where.
///
/// ```
/// use emitree_runtime::{AnyRun, Layer, Next, Result, RunContext, Runnable, Stack, for_nested, runnable_fn};
/// use serde_json::Value;
///
/// /// Logs what every run below takes and gives.
/// #[derive(Debug)]
/// struct Log;
///
/// impl Layer<AnyRun> for Log {
///     async fn call(&self, input: &Value, ctx: &RunContext, next: Next<'_, AnyRun>) -> Result<Value> {
///         let output = next.run(input).await?;
///         tracing::info!("{}: {input} -> {output}", ctx.emitter().namespace());
///         Ok(output)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let log = Stack::<AnyRun>::builder().layer(Log).build();
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// assert_eq!(double.run(2).middleware(for_nested(log)).await?, 4);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct AnyRun;

impl Op for AnyRun {
    type In = Value;
    type Out = Value;

    fn name() -> &'static str {
        "any run"
    }
}

/// A layer for runs of any type: every `Layer<AnyRun>` is one.
pub trait AnyLayer: Layer<AnyRun> {}

impl<L: Layer<AnyRun>> AnyLayer for L {}

/// A layer for runs of any type, around a run from `I` to `O`.
pub(crate) struct Adapted(Arc<dyn DynLayer<Value, Value>>);

impl Adapted {
    pub(crate) fn entry<I: Data, O: Data>(entry: Entry<Value, Value>) -> Entry<I, O> {
        Entry { phase: entry.phase, layer: Arc::new(Self(entry.layer)) }
    }
}

impl<I: Data, O: Data> DynLayer<I, O> for Adapted {
    fn call<'a>(
        &'a self,
        phase: Phase,
        input: &'a I,
        ctx: &'a RunContext,
        next: RawNext<'a, I, O>,
    ) -> BoxFuture<'a, Result<O>> {
        Box::pin(async move {
            let json = to_json("input", input)?;
            let inside = Inside { input, json: &json, next, last: Mutex::new(None) };
            let output = self.0.call(phase, &json, ctx, next.around(&inside).next()).await?;
            match inside.last.into_inner() {
                Some(last) if last.json == output => Ok(last.output),
                _ => fit("output", output),
            }
        })
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn summary(&self) -> Summary {
        self.0.summary()
    }
}

/// What is inside of an adapted layer: it takes and gives JSON.
struct Inside<'a, I, O> {
    input: &'a I,
    json: &'a Value,
    next: RawNext<'a, I, O>,
    last: Mutex<Option<Last<O>>>,
}

/// What was given last, and what it looks like as JSON.
struct Last<O> {
    json: Value,
    output: O,
}

impl<I: Data, O: Data> Inside<'_, I, O> {
    async fn run(&self, input: &Value) -> Result<Value> {
        let output = if input == self.json {
            self.next.run(self.input).await?
        } else {
            self.next.run(&fit("input", input.clone())?).await?
        };
        let json = to_json("output", &output)?;
        let before = self.last.lock().replace(Last { json: json.clone(), output });
        // Its drop is user code.
        drop(before);
        Ok(json)
    }
}

impl<I: Data, O: Data> Work<Value, Value> for Inside<'_, I, O> {
    fn call<'a>(&'a self, input: &'a Value, _: &'a RunContext) -> BoxFuture<'a, Result<Value>> {
        Box::pin(self.run(input))
    }

    fn is_answered(&self) -> bool {
        self.next.is_answered()
    }
}

fn to_json(what: &str, value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|error| {
        Error::from(error).message(format!("the {what} cannot be shown to layers for runs of any type"))
    })
}
