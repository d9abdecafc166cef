//! How a middleware says what it did: events of its own, that the run it did it to hears too.

use emitree_emitter::{Creator, EmitError, Emitter, Event, Namespace, RunLinks};
use emitree_runtime::RunContext;

/// What sort of thing says it.
pub(crate) const KIND: &str = "Middleware";

/// The emitter of a middleware's own events: a child of the root.
#[derive(Clone)]
pub(crate) struct Voice(Emitter);

impl Voice {
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
    pub(crate) async fn say<E: Event>(&self, ctx: &RunContext, event: impl FnOnce() -> E + Send) {
        if !self.is_heard(ctx) {
            return;
        }
        // Boxed, because it is large, and what is said from is often nested deep.
        self.log_failed::<E>(Box::pin(self.within(ctx).emit_event(&mut event())).await);
    }

    /// The same where nothing can be awaited: where somebody would have to be, nobody hears it (E17).
    pub(crate) fn say_now<E: Event>(&self, ctx: &RunContext, event: impl FnOnce() -> E) {
        if self.is_heard(ctx) {
            self.log_failed::<E>(self.within(ctx).emit_event_now(&mut event()));
        }
    }

    fn within(&self, ctx: &RunContext) -> Emitter {
        self.0.for_run(RunLinks::new().parent(ctx.emitter()).trace(ctx.trace()))
    }

    fn log_failed<E: Event>(&self, told: Result<(), EmitError>) {
        if let Err(error) = told {
            tracing::warn!(%error, "a listener of `{}.{}` failed", self.0.namespace(), E::NAME.as_str());
        }
    }
}

/// The kind and the name of who runs, as events tell of it.
pub(crate) fn called(creator: Option<&Creator>) -> (String, String) {
    creator.map(|creator| (creator.kind().to_owned(), creator.name().to_owned())).unwrap_or_default()
}

/// The same as one text: `Tool[read_file]`.
pub(crate) fn label(ctx: &RunContext) -> String {
    let (kind, name) = called(ctx.creator());
    format!("{kind}[{name}]")
}

impl std::fmt::Debug for Voice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.namespace())
    }
}
