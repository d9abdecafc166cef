//! Events that a middleware emits on its own emitter and on the run that they report on.

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

/// The texts in a middleware's event that may contain users' data, such as the message of an error.
///
/// A [`Redact`](crate::Redact) that is bound to the run redacts these texts before anybody receives the event. The trait
/// is implemented for the types of which such texts consist: `String`, and options, lists and JSON values of them.
pub trait UserTexts {
    /// Calls a function with each text, which may change it. An event without such texts does nothing.
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String));
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

/// Sets the names of a built-in's events; the braces list the fields that contain [users' texts](UserTexts), and those of
/// the event's [head](emitree_emitter::Event::head).
macro_rules! own_events {
    ($($event:ty = $name:literal $({ $($text:ident),+ })? $(head { $($head:ident),+ })?;)+) => { $(
        impl emitree_emitter::Event for $event {
            const NAME: emitree_emitter::EventName = emitree_emitter::EventName::new($name);

            $(fn head(&self) -> Option<serde_json::Value> {
                Some([$((stringify!($head), serde_json::json!(self.$head))),+].into_iter().collect())
            })?
        }

        impl $crate::shared::own_events::UserTexts for $event {
            fn user_texts(&mut self, _change: &mut dyn FnMut(&mut String)) {
                $($($crate::shared::own_events::UserTexts::user_texts(&mut self.$text, _change);)+)?
            }
        }
    )+ };
}

pub(crate) use own_events;

/// Events that a middleware emits about runs, on an emitter of its own and on the run that an event reports on.
///
/// A listener on [`emitter`](Self::emitter) receives the events about all runs. A listener on a run receives the events
/// about this run and the runs below, by their path: the namespace and the name of the event. Clones share the emitter.
///
/// ```
/// use std::sync::Arc;
/// use emitree_emitter::{Event, EventName, Namespace};
/// use emitree_middleware::own_events::{OwnEvents, UserTexts};
/// use emitree_runtime::{Layer, Next, Op, Result, RunContext, Runnable, runnable_fn};
///
/// #[derive(Clone, Debug, serde::Serialize)]
/// struct Forgiven {
///     cause: String,
/// }
///
/// impl Event for Forgiven {
///     const NAME: EventName = EventName::new("forgiven");
/// }
///
/// impl UserTexts for Forgiven {
///     fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
///         self.cause.user_texts(change);
///     }
/// }
///
/// /// Answers 0 if the work fails.
/// #[derive(Debug)]
/// struct Forgive(OwnEvents);
///
/// impl<O: Op<Out = u32>> Layer<O> for Forgive {
///     async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<u32> {
///         match next.run(input).await {
///             Err(error) if !error.is_control_flow() => {
///                 self.0.emit(ctx, || Forgiven { cause: error.to_string() }).await;
///                 Ok(0)
///             }
///             result => result,
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let events = OwnEvents::new(Namespace::new("middleware.forgive"));
/// events.emitter().on("forgiven", |event: &mut Forgiven, _| println!("forgiven: {}", event.cause))?;
///
/// let parse = runnable_fn("parse", |text: String, _: RunContext| async move { Ok(text.parse::<u32>()?) });
/// let run = parse.run("x".to_owned()).layer(Forgive(events));
/// let run = run.observe("middleware.forgive.forgiven", |event: &Forgiven, _| println!("{}", event.cause));
/// assert_eq!(run.await?, 0);
/// # Ok(())
/// # }
/// ```
///
/// If an event has listeners on the run, the emit costs as much as any emit; without listeners, the event is not made.
#[derive(Clone)]
pub struct OwnEvents(Emitter);

impl OwnEvents {
    /// Creates the emitter for a namespace such as `middleware.retry`, below the root emitter. The last segment is the
    /// name of the middleware.
    #[must_use]
    pub fn new(namespace: Namespace) -> Self {
        let name = namespace.as_str().rsplit('.').next().unwrap_or_default().to_owned();
        Self(Emitter::root().child_of(namespace).child_with(Creator::new(KIND, name)))
    }

    /// Returns the name of the middleware.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.creator().map_or("", Creator::name)
    }

    /// Returns the emitter of the middleware, for listeners that receive the events about all runs.
    #[must_use]
    pub const fn emitter(&self) -> &Emitter {
        &self.0
    }

    /// Returns `true` if events about a run have listeners, on this emitter or on the run's emitter.
    #[must_use]
    pub fn has_listeners(&self, ctx: &RunContext) -> bool {
        self.0.has_listeners() || ctx.has_listeners()
    }

    /// Emits an event on this emitter and on the run's emitter, with the run's ids. The event is made only if there are
    /// listeners. If a listener fails, the error is logged, and the run goes on.
    pub async fn emit<E: Event + UserTexts>(&self, ctx: &RunContext, event: impl FnOnce() -> E + Send) {
        // A middleware that reports must not make the run fail (M5). Without listeners, the event is not created (E15).
        // Without listeners, the event is not made (E15).
        if self.has_listeners(ctx) {
            self.emit_event(ctx, &mut event()).await;
        }
    }

    /// Emits an event that the caller keeps, so that it need not be made anew for each emit. Listeners may have changed
    /// it afterwards.
    pub async fn emit_event<E: Event + UserTexts>(&self, ctx: &RunContext, event: &mut E) {
        if !self.has_listeners(ctx) {
            return;
        }
        redact(event, ctx);
        // Box the emit: its future is large, and callers are often deeply nested.
        self.log_failed::<E>(Box::pin(self.for_run(ctx).emit_event(event)).await);
    }

    /// Emits an event like [`emit`](Self::emit), where nothing can be awaited. If an async listener would receive the
    /// event, no listener is called, and the error is logged.
    pub fn emit_now<E: Event + UserTexts>(&self, ctx: &RunContext, event: impl FnOnce() -> E) {
        if self.has_listeners(ctx) {
            let mut event = event();
            redact(&mut event, ctx);
            self.log_failed::<E>(self.for_run(ctx).emit_event_now(&mut event));
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
fn redact<E: Event + UserTexts>(event: &mut E, ctx: &RunContext) {
    if let Some(redaction) = ctx.own_extension::<TextRedaction>() {
        event.user_texts(&mut |text| (redaction.0)(E::NAME.as_str(), text));
    }
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
