//! The sources of outputs.

use std::any::type_name;
use std::fmt;
use std::future::ready;
use std::sync::Arc;

use emitree_emitter::{AnyEvent, EventMeta};
use emitree_runtime::{AnyStart, Data, Error, LifecycleMut, Result, RunContext, Start};
use futures_core::future::BoxFuture;
use serde_json::Value;

/// A function that may set the output of a run at its `start`; returns `true` if it has set an output.
type SetOutputFn = dyn for<'a> Fn(&'a mut dyn AnyEvent, &'a EventMeta<'a>, &'a RunContext) -> BoxFuture<'a, Result<bool>>
    + Send
    + Sync;

/// A function that sets the output of a run, and its description for lists of middlewares.
#[derive(Clone)]
pub(super) struct OutputSource {
    source: SourceKind,
    give: Arc<SetOutputFn>,
}

/// The kind of source: shown by `Debug`, and checked by [`OutputSource::is_dry`].
#[derive(Clone)]
pub(super) enum SourceKind {
    Text(String),
    Function(&'static str),
    DryRun,
}

impl OutputSource {
    pub(super) fn new<F>(source: SourceKind, give: F) -> Self
    where
        F: for<'a> Fn(&'a mut dyn AnyEvent, &'a EventMeta<'a>, &'a RunContext) -> BoxFuture<'a, Result<bool>>,
        F: Send + Sync + 'static,
    {
        Self { source, give: Arc::new(give) }
    }

    pub(super) const fn is_dry(&self) -> bool {
        matches!(self.source, SourceKind::DryRun)
    }

    pub(super) async fn give<'a>(
        &'a self,
        event: &'a mut dyn AnyEvent,
        meta: &'a EventMeta<'a>,
        ctx: &'a RunContext,
    ) -> Result<bool> {
        (self.give)(event, meta, ctx).await
    }
}

/// Returns an event as the `start` of a run, or an error if it is another event.
pub(super) fn start_of<'a>(event: &'a mut dyn AnyEvent, meta: &EventMeta<'_>) -> Result<&'a mut dyn AnyStart> {
    match LifecycleMut::of(event, meta) {
        Some(LifecycleMut::Start(start)) => Ok(start),
        _ => Err(Error::new(format!("`{}` is not the `start` event of a run", meta.path()))),
    }
}

pub(super) fn value_source<O: Clone + Send + Sync + 'static>(output: O) -> OutputSource {
    let source = SourceKind::Text(format!("a value of {}", type_name::<O>()));
    OutputSource::new(source, move |event, meta, _| Box::pin(ready(set(event, meta, &output))))
}

fn set<O: Clone + 'static>(event: &mut dyn AnyEvent, meta: &EventMeta<'_>, output: &O) -> Result<bool> {
    // The caller has checked that there is no output yet, so no other answer is replaced.
    let place = start_of(event, meta)?.output_any().downcast_mut::<Option<O>>();
    *place.ok_or_else(|| misfit(meta, &format!("a value of `{}`", type_name::<O>())))? = Some(output.clone());
    Ok(true)
}

pub(super) fn typed_source<I: Data, O: Data>(
    f: impl for<'a> Fn(&'a I, &'a RunContext) -> BoxFuture<'a, Result<Option<O>>> + Send + Sync + 'static,
) -> OutputSource {
    let f = Arc::new(f);
    OutputSource::new(SourceKind::Function("typed"), move |event, meta, ctx| {
        let f = Arc::clone(&f);
        Box::pin(async move {
            let types = || format!("a function from `{}` to `{}`", type_name::<I>(), type_name::<O>());
            // A run with other types can never be answered: fail, and name both types.
            let start = event.downcast_mut::<Start<I, O>>().ok_or_else(|| misfit(meta, &types()))?;
            start.output = f(&start.input, ctx).await?;
            Ok(start.output.is_some())
        })
    })
}

pub(super) fn json_source(
    source: SourceKind,
    f: impl Fn(&Value, &RunContext) -> Result<Option<Value>> + Send + Sync + 'static,
) -> OutputSource {
    let give = move |event: &mut dyn AnyEvent, meta: &EventMeta<'_>, ctx: &RunContext| {
        let start = start_of(event, meta)?;
        let Some(output) = f(&start.input_json(), ctx)? else { return Ok(false) };
        start.set_output_json(output).map(|()| true)
    };
    OutputSource::new(source, move |event, meta, ctx| Box::pin(ready(give(event, meta, ctx))))
}

fn misfit(meta: &EventMeta<'_>, what: &str) -> Error {
    let run = meta.payload_type();
    Error::new(format!("{what} cannot answer a run whose `start` event is `{run}`: select the runs with `runs`"))
}

impl fmt::Debug for OutputSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            SourceKind::Text(text) => f.write_str(text),
            SourceKind::Function(sort) => write!(f, "a {sort} function"),
            SourceKind::DryRun => f.write_str("dry run"),
        }
    }
}
