//! Attempts of a layer that somebody may have heard of: given up, they are marked so (M7).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_emitter::{AnyEvent, DropGuard, Emitter, EventMeta, Options};
use emitree_runtime::{Result, RunContext};
use serde_json::Value;

use crate::shared::own_events::KIND;

/// Watches whether an attempt emits anything that the run hears, besides what middlewares say of it.
pub(crate) struct AttemptWatch(Option<EmitObserver>);

struct EmitObserver {
    has_emitted: Arc<AtomicBool>,
    listening: DropGuard,
}

impl AttemptWatch {
    /// Begins to watch, if anybody else listens. If not, it is taken that the attempt has emitted: whoever listens by
    /// its end may have heard of it, and where still nobody does, to mark it costs nothing.
    pub(crate) fn watch(ctx: &RunContext) -> Self {
        Self(if ctx.is_heard() { EmitObserver::begin(ctx.emitter()) } else { None })
    }

    /// Marks the attempt as given up, if it has emitted.
    pub(crate) async fn discard(self, ctx: &RunContext, reason: String, metadata: Value) -> Result<()> {
        let has_emitted = self.0.is_none_or(EmitObserver::end);
        if has_emitted { ctx.discard_attempt(reason, metadata).await } else { Ok(()) }
    }
}

impl EmitObserver {
    fn begin(emitter: &Emitter) -> Option<Self> {
        let has_emitted = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&has_emitted);
        let is_said_by_others = |meta: &EventMeta<'_>| meta.creator().is_none_or(|creator| creator.kind() != KIND);
        let listening = emitter
            .with(Options::new().nested(true))
            .observe(is_said_by_others, move |_: &dyn AnyEvent, _: &EventMeta<'_>| seen.store(true, Ordering::Relaxed));
        Some(Self { has_emitted, listening: listening.ok()?.drop_guard() })
    }

    /// Whether it has emitted.
    fn end(self) -> bool {
        drop(self.listening);
        self.has_emitted.load(Ordering::Relaxed)
    }
}
