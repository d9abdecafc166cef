//! How a middleware says what it did: events of its own, that the run it did it to hears too.

use std::sync::Arc;

use emitree_emitter::rt::RunLinks;
use emitree_emitter::{Creator, EmitError, Emitter, Event, Namespace};
use emitree_runtime::RunContext;

/// What sort of thing says it.
pub(crate) const KIND: &str = "Middleware";

/// What a redaction makes of the texts in a run's events, by the event's name.
type TextFn = dyn Fn(&str, &mut String) + Send + Sync;

/// What the texts in own events pass before anybody hears them: that of one run.
#[derive(Clone)]
pub(crate) struct TextRedaction {
    run_id: uuid::Uuid,
    redact: Arc<TextFn>,
}

impl TextRedaction {
    /// Has texts in what middlewares say to a run pass a function.
    #[allow(dead_code, reason = "only a redaction does")]
    pub(crate) fn add(ctx: &RunContext, redact: impl Fn(&str, &mut String) + Send + Sync + 'static) {
        let run_id = ctx.run_id();
        // Two redactions of one run: both.
        let before = ctx.extension::<Self>().filter(|before| before.run_id == run_id);
        let redact: Arc<TextFn> = match before {
            Some(before) => Arc::new(move |name: &str, text: &mut String| {
                (before.redact)(name, text);
                redact(name, text);
            }),
            None => Arc::new(redact),
        };
        ctx.set_extension(Self { run_id, redact });
    }
}

/// Events of middlewares: which of what they say may hold what users have put in.
pub(crate) trait Texts {
    /// Gives each text to be changed.
    fn texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        let _ = change;
    }
}

/// Gives each string in JSON, but no key, to be changed.
#[allow(dead_code, reason = "each middleware uses its own part of this")]
pub(crate) fn json_texts(value: &mut serde_json::Value, change: &mut dyn FnMut(&mut String)) {
    use serde_json::Value;
    match value {
        Value::String(text) => change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| json_texts(item, change)),
        Value::Object(members) => members.values_mut().for_each(|member| json_texts(member, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The emitter of a middleware's own events: a child of the root.
#[derive(Clone)]
pub(crate) struct OwnEvents(Emitter);

impl OwnEvents {
    /// That of the middleware of that name, whose namespace is `middleware.<name>`.
    pub(crate) fn new(name: &'static str, namespace: Namespace) -> Self {
        Self(Emitter::root().child_of(namespace).child_with(Creator::new(KIND, name)))
    }

    pub(crate) const fn emitter(&self) -> &Emitter {
        &self.0
    }

    /// Whether anybody hears what is said to a run.
    pub(crate) fn is_heard(&self, ctx: &RunContext) -> bool {
        self.0.is_heard() || ctx.is_heard()
    }

    /// Emits on this emitter and on the run's, with the run's ids; whoever listens cannot make the run fail (M5).
    ///
    /// Where nobody listens, the event is not made.
    pub(crate) async fn emit<E: Event + Texts>(&self, ctx: &RunContext, event: impl FnOnce() -> E + Send) {
        if !self.is_heard(ctx) {
            return;
        }
        // Boxed, because it is large, and what is said from is often nested deep.
        let mut event = redacted(event(), ctx);
        self.log_failed::<E>(Box::pin(self.for_run(ctx).emit_event(&mut event)).await);
    }

    /// The same where nothing can be awaited: where somebody would have to be, nobody hears it (E17).
    pub(crate) fn emit_now<E: Event + Texts>(&self, ctx: &RunContext, event: impl FnOnce() -> E) {
        if self.is_heard(ctx) {
            self.log_failed::<E>(self.for_run(ctx).emit_event_now(&mut redacted(event(), ctx)));
        }
    }

    fn for_run(&self, ctx: &RunContext) -> Emitter {
        self.0.for_run(RunLinks::new().parent(ctx.emitter()).trace(ctx.trace()))
    }

    fn log_failed<E: Event>(&self, told: Result<(), EmitError>) {
        if let Err(error) = told {
            tracing::warn!(%error, "a listener of `{}.{}` failed", self.0.namespace(), E::NAME.as_str());
        }
    }
}

/// What is said to a run passes its redaction, as what its work emits does.
fn redacted<E: Event + Texts>(mut event: E, ctx: &RunContext) -> E {
    if let Some(own) = ctx.extension::<TextRedaction>().filter(|own| own.run_id == ctx.run_id()) {
        event.texts(&mut |text| (own.redact)(E::NAME.as_str(), text));
    }
    event
}

/// The kind and the name of who runs, as events tell of it.
pub(crate) fn kind_and_name(creator: Option<&Creator>) -> (String, String) {
    creator.map(|creator| (creator.kind().to_owned(), creator.name().to_owned())).unwrap_or_default()
}

/// The same as one text: `Tool[read_file]`.
pub(crate) fn run_label(ctx: &RunContext) -> String {
    let (kind, name) = kind_and_name(ctx.creator());
    format!("{kind}[{name}]")
}

impl std::fmt::Debug for OwnEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.namespace())
    }
}
