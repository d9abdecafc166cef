//! The redaction of one run: its listeners, and the layer around its work.

use std::sync::Arc;

use emitree_emitter::json::check_depth;
use emitree_emitter::{AnyEvent, BoxError, EventMeta, Options};
use emitree_runtime::{
    JsonRun, Layer, LayerInfo, LifecycleMut, Middleware, Next, Phase, Result, RunContext, Stack, Stage, Summary,
};
use futures_core::future::BoxFuture;
use serde_json::Value;

use super::chunk_filter::RedactFilter;
use super::pseudonyms::Pseudonyms;
use super::redactor::Redactor;
use super::restore::restore_on_success;
use super::{Redact, Redaction, event_payloads, pseudonyms};
use crate::shared::built_in::debug_as;
use crate::shared::inspected::chunked_events::{ChunkedEvents, emit_at_end, flush_at_end};
use crate::shared::json::{Path, deny_deep, strings_mut};
use crate::shared::own_events::{OwnEvents, TextRedaction};
use crate::shared::run_part::RunPart;

/// A redaction that is bound to a run.
pub(super) struct RedactLayer {
    redactor: Arc<Redactor>,
    own_events: OwnEvents,
}

impl RedactLayer {
    /// Binds a redaction to a run: redacts the run's context, registers the listeners, and then adds the layers.
    pub(super) fn bind(redact: &Redact, ctx: &RunContext) -> Result<()> {
        let Redaction { options, own_events, .. } = &*redact.0;
        let (names, is_outermost) = pseudonyms::of_run(ctx, options.pseudonyms.as_ref());
        // Only the outermost run restores its output: the runs below it must not see the secrets.
        let restores = options.restores && is_outermost;
        let redactor = Arc::new(Redactor::of_run(options.clone(), names, is_outermost, ctx.kind()));
        if options.covers(RunPart::Context) {
            redact_context(&redactor, ctx)?;
        }
        if options.covers(RunPart::Error) {
            let redactor = Arc::clone(&redactor);
            ctx.map_error(move |error| redactor.error(error));
        }
        if options.covers(RunPart::Input) {
            // Register a first listener, so that no other listener receives a secret, and a last listener, for secrets
            // that other listeners have added.
            let redacts_answers = options.covers(RunPart::Output) && !restores;
            [i32::MAX, i32::MIN]
                .into_iter()
                .try_for_each(|priority| on_start(&redactor, ctx, priority, redacts_answers))?;
        }
        if options.covers(RunPart::Output) && !restores {
            on_success(&redactor, ctx)?;
        }
        if restores {
            restore_on_success(&redactor, ctx)?;
        }
        if options.covers(RunPart::Event) {
            redact_events(&redact.0, &redactor, ctx)?;
        }
        if options.covers(RunPart::Error) || options.covers(RunPart::Context) {
            emit_at_end(ctx, emit_found_fn(&redactor, own_events))?;
        }
        Self::stack(&redactor, own_events).bind(ctx)
    }

    /// Returns the layers that a redaction adds to a run.
    pub(super) fn described(redact: &Redact) -> Vec<LayerInfo> {
        let redactor = Arc::new(Redactor::of_run(redact.0.options.clone(), Pseudonyms::new(), true, ""));
        Self::stack(&redactor, &redact.0.own_events).layers()
    }

    fn stack(redactor: &Arc<Redactor>, own_events: &OwnEvents) -> Stack<JsonRun> {
        let redactor = Arc::clone(redactor);
        let own_events = own_events.clone();
        Stack::builder().layer_in(Phase::Transform, Self { redactor, own_events }).build()
    }

    async fn emit_found(&self, ctx: &RunContext) {
        emit_found(&self.redactor, &self.own_events, ctx).await;
    }

    fn output(&self, mut output: Value) -> Result<Value> {
        if self.redactor.options.covers(RunPart::Output) {
            deny_deep("redact", "output", &output)?;
            self.redactor.value(RunPart::Output, &mut output);
        }
        Ok(output)
    }
}

/// Returns a function that emits the findings, for use where async listeners can be awaited.
fn emit_found_fn(
    redactor: &Arc<Redactor>,
    own_events: &OwnEvents,
) -> impl Fn(RunContext) -> BoxFuture<'static, ()> + Clone + Send + Sync + 'static {
    let redactor = Arc::clone(redactor);
    let own_events = own_events.clone();
    move |ctx| {
        let redactor = Arc::clone(&redactor);
        let own_events = own_events.clone();
        Box::pin(async move { emit_found(&redactor, &own_events, &ctx).await })
    }
}

/// Emits the findings since the last call.
pub(super) async fn emit_found(redactor: &Redactor, own_events: &OwnEvents, ctx: &RunContext) {
    for found in redactor.found() {
        own_events.emit(ctx, || found).await;
    }
}

/// Redacts the run's context, and each value that is set later.
fn redact_context(redactor: &Arc<Redactor>, ctx: &RunContext) -> Result<()> {
    for (key, value) in ctx.context().iter() {
        deny_deep("redact", "context", value)?;
        let mut value = value.clone();
        let mut is_changed = false;
        strings_mut(&mut value, &Path::Key(&Path::Root, key), &mut |at, text| {
            is_changed |= redactor.text(RunPart::Context, at, text);
        });
        if is_changed {
            ctx.set(key, value)?;
        }
    }
    let redactor = Arc::clone(redactor);
    // From now on, each value that is set on this run, by any code on any thread, is redacted before it is stored.
    ctx.map_context(move |key, mut value| {
        if let Err(error) = check_depth(&value) {
            return Value::String(format!("[REDACTED: {error}]"));
        }
        strings_mut(&mut value, &Path::Key(&Path::Root, key), &mut |at, text| {
            redactor.text(RunPart::Context, at, text);
        });
        value
    });
    Ok(())
}

/// Registers the redaction of text in chunks, and then the redaction of whole payloads.
fn redact_events(redaction: &Redaction, redactor: &Arc<Redactor>, ctx: &RunContext) -> Result<()> {
    let Redaction { chunked, payloads, own_events, .. } = redaction;
    // Redact the group id too, because every event carries it.
    let group_id = ctx.emitter().group_id().and_then(|id| redactor.event_text("group_id", id));
    group_id.into_iter().for_each(|id| ctx.set_group_id(id));
    let listen = |stream: &Arc<dyn ChunkedEvents>| {
        let name = stream.name().to_owned();
        let redactor = Arc::clone(redactor);
        stream.listen(ctx, Box::new(move || Box::new(RedactFilter::new(&name, &redactor))))
    };
    let held: Arc<[_]> = chunked.iter().map(listen).collect::<Result<_>>()?;
    payloads.iter().try_for_each(|redact_payloads| redact_payloads(redactor, ctx))?;
    let of_text = Arc::clone(redactor);
    ctx.filter_text(move |name| Box::new(RedactFilter::new(name, &of_text)));
    event_payloads::of_data(redactor, ctx)?;
    event_payloads::of_runtime(redactor, ctx)?;
    TextRedaction::add(ctx, {
        let redactor = Arc::clone(redactor);
        move |name, text| _ = redactor.event_string(name, text)
    });
    if held.is_empty() { Ok(()) } else { flush_at_end(&held, ctx, emit_found_fn(redactor, own_events)) }
}

/// Redacts the input, and an output that a listener has set to replace the work.
fn on_start(redactor: &Arc<Redactor>, ctx: &RunContext, priority: i32, redacts_answers: bool) -> Result<()> {
    let redactor = Arc::clone(redactor);
    let listener = move |event: &mut dyn AnyEvent, meta: &EventMeta<'_>| -> Result<(), BoxError> {
        let Some(LifecycleMut::Start(start)) = LifecycleMut::of(event, meta) else { return Ok(()) };
        if let Some(input) = redactor.replaced(RunPart::Input, &start.try_input_json()?) {
            start.set_input_json(input)?;
        }
        // An earlier listener may have set an output.
        if let Some(output) = start.output_json().filter(|_| redacts_answers)
            && let Some(output) = redactor.replaced(RunPart::Output, &output)
        {
            start.set_output_json(output)?;
        }
        Ok(())
    };
    ctx.emitter().with(Options::new().priority(priority)).on(Stage::Start, listener)?;
    Ok(())
}

/// Redacts the output again: listeners of `success` may have added secrets after the layer redacted it.
fn on_success(redactor: &Arc<Redactor>, ctx: &RunContext) -> Result<()> {
    let redactor = Arc::clone(redactor);
    let listener = move |event: &mut dyn AnyEvent, meta: &EventMeta<'_>| -> Result<(), BoxError> {
        let Some(LifecycleMut::Success(success)) = LifecycleMut::of(event, meta) else { return Ok(()) };
        match redactor.replaced(RunPart::Output, &success.try_output_json()?) {
            Some(output) => Ok(success.set_output_json(output)?),
            None => Ok(()),
        }
    };
    ctx.emitter().with(Options::new().priority(i32::MIN)).on(Stage::Success, listener)?;
    Ok(())
}

impl Layer<JsonRun> for RedactLayer {
    async fn call(&self, input: &Value, ctx: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        let options = &self.redactor.options;
        if options.covers(RunPart::Input) {
            deny_deep("redact", "input", input)?;
        }
        let changed = if options.covers(RunPart::Input) { self.redactor.replaced(RunPart::Input, input) } else { None };
        // Emit the findings of the listeners of `start` here: these listeners are sync and cannot await an emit.
        self.emit_found(ctx).await;
        let result = match next.run(changed.as_ref().unwrap_or(input)).await {
            Ok(output) => self.output(output),
            Err(error) if options.covers(RunPart::Error) => Err(self.redactor.error(error)),
            Err(error) => Err(error),
        };
        self.emit_found(ctx).await;
        result
    }

    fn name(&self) -> &str {
        "redact"
    }

    fn debug_summary(&self) -> Summary {
        Summary::of(&self.redactor.options)
    }
}

debug_as!(RedactLayer, |this| this.redactor.options);
