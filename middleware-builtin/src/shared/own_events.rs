//! Events that a built-in emits on its own emitter and on the run that they report on.

use emitree_emitter::rt::RunLinks;
use emitree_emitter::{Creator, EmitError, Emitter, Event, Namespace};
use emitree_runtime::RunContext;
use serde_json::Value;

/// The kind of the creator of events that built-ins emit.
pub(crate) const KIND: &str = "Middleware";

/// A function that receives the name of an event, and redacts a text of the event.
type RedactText = dyn Fn(&str, &mut String) + Send + Sync;

/// The redaction of users' texts in the events that middlewares emit about one run. It is stored in the run's own
/// extensions, which the runs below do not inherit.
pub(crate) struct TextRedaction(Box<RedactText>);

impl TextRedaction {
    /// Adds a redaction to a run. If a run has several redactions, all of them apply, in the order in which they were
    /// added.
    pub(crate) fn add(ctx: &RunContext, redact: impl Fn(&str, &mut String) + Send + Sync + 'static) {
        let before = ctx.own_extension::<Self>();
        let redact = move |name: &str, text: &mut String| {
            before.iter().for_each(|before| (before.0)(name, text));
            redact(name, text);
        };
        ctx.set_own_extension(Self(Box::new(redact)));
    }
}

/// The texts in a built-in's event that may contain users' data.
pub(crate) trait UserTexts {
    /// Calls a function with each text. By default, an event has no such texts.
    fn user_texts(&mut self, _: &mut dyn FnMut(&mut String)) {}
}

impl UserTexts for String {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        change(self);
    }
}

impl<T: UserTexts> UserTexts for Option<T> {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.iter_mut().for_each(|some| some.user_texts(change));
    }
}

impl<T: UserTexts> UserTexts for Vec<T> {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.iter_mut().for_each(|item| item.user_texts(change));
    }
}

/// The texts are all strings of the value, without keys.
impl UserTexts for Value {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        match self {
            Self::String(text) => change(text),
            Self::Array(items) => items.user_texts(change),
            Self::Object(members) => members.values_mut().for_each(|member| member.user_texts(change)),
            Self::Null | Self::Bool(_) | Self::Number(_) => {}
        }
    }
}

/// Sets the names of a built-in's events; the braces list the fields that contain [users' texts](UserTexts).
macro_rules! own_events {
    ($($event:ty = $name:literal $({ $($text:ident),+ })?;)+) => { $(
        impl emitree_emitter::Event for $event {
            const NAME: emitree_emitter::EventName = emitree_emitter::EventName::new($name);
        }

        impl $crate::shared::own_events::UserTexts for $event {
            $(fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
                $($crate::shared::own_events::UserTexts::user_texts(&mut self.$text, change);)+
            })?
        }
    )+ };
}

pub(crate) use own_events;

/// The emitter of a built-in's own events. It is a descendant of the root emitter.
#[derive(Clone)]
pub(crate) struct OwnEvents(Emitter);

impl OwnEvents {
    /// Creates the emitter for a namespace such as `middleware.retry`; the last segment is the name of the built-in.
    pub(crate) fn new(namespace: &'static str) -> Self {
        let name = namespace.rsplit_once('.').map_or(namespace, |(_, name)| name);
        Self(Emitter::root().child_of(Namespace::new(namespace)).child_with(Creator::new(KIND, name)))
    }

    /// Returns the name of the built-in.
    pub(crate) fn name(&self) -> &str {
        self.0.creator().map_or("", Creator::name)
    }

    pub(crate) const fn emitter(&self) -> &Emitter {
        &self.0
    }

    /// Returns `true` if events about a run have listeners, on this emitter or on the run's emitter.
    pub(crate) fn has_listeners(&self, ctx: &RunContext) -> bool {
        self.0.has_listeners() || ctx.has_listeners()
    }

    /// Emits an event on this emitter and on the run's emitter, with the run's ids. A failing listener does not make
    /// the run fail (M5). Without listeners, the event is not created (E15).
    pub(crate) async fn emit<E: Event + UserTexts>(&self, ctx: &RunContext, event: impl FnOnce() -> E + Send) {
        if !self.has_listeners(ctx) {
            return;
        }
        // Box the emit: its future is large, and callers are often deeply nested.
        let mut event = redacted(event(), ctx);
        self.log_failed::<E>(Box::pin(self.for_run(ctx).emit_event(&mut event)).await);
    }

    /// Emits an event where nothing can be awaited. If an async listener would receive the event, no listener is called
    /// (E17).
    pub(crate) fn emit_now<E: Event + UserTexts>(&self, ctx: &RunContext, event: impl FnOnce() -> E) {
        if self.has_listeners(ctx) {
            self.log_failed::<E>(self.for_run(ctx).emit_event_now(&mut redacted(event(), ctx)));
        }
    }

    fn for_run(&self, ctx: &RunContext) -> Emitter {
        self.0.for_run(RunLinks::new().parent(ctx.emitter()).trace(ctx.trace()))
    }

    fn log_failed<E: Event>(&self, emitted: Result<(), EmitError>) {
        if let Err(error) = emitted {
            tracing::warn!(%error, "a listener of `{}.{}` failed", self.0.namespace(), E::NAME.as_str());
        }
    }
}

/// Applies the run's redaction, so that a built-in's events show no more than the events of the run's work.
fn redacted<E: Event + UserTexts>(mut event: E, ctx: &RunContext) -> E {
    if let Some(redaction) = ctx.own_extension::<TextRedaction>() {
        event.user_texts(&mut |text| (redaction.0)(E::NAME.as_str(), text));
    }
    event
}

/// Returns the kind and the name of an instance, as events show them.
pub(crate) fn kind_and_name(creator: Option<&Creator>) -> (String, String) {
    creator.map(|creator| (creator.kind().to_owned(), creator.name().to_owned())).unwrap_or_default()
}

/// Returns the kind and the name of a run's instance as one text: `Tool[read_file]`.
pub(crate) fn run_label(ctx: &RunContext) -> String {
    let (kind, name) = kind_and_name(ctx.creator());
    format!("{kind}[{name}]")
}

impl std::fmt::Debug for OwnEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.namespace())
    }
}
