//! Marks an abandoned attempt as discarded, if listeners may have received events of the attempt (M7).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_emitter::{AnyEvent, DropGuard, Emitter, EventMeta, Options};
use emitree_runtime::{Result, RunContext};
use serde_json::Value;

use crate::shared::own_events::KIND;

/// Detects events that an attempt emits on the run, except events that middlewares emit themselves.
pub(crate) struct AttemptWatch(Option<EmitObserver>);

struct EmitObserver {
    has_emitted: Arc<AtomicBool>,
    listening: DropGuard,
}

impl AttemptWatch {
    /// Starts to watch if the run has listeners. Without listeners, the attempt is treated as if it had emitted events,
    /// because listeners that are registered during the attempt may receive its events. If the run still has no
    /// listeners at the end of the attempt, `discard` has no effect, because nobody receives its event.
    pub(crate) fn watch(ctx: &RunContext) -> Self {
        Self(if ctx.has_listeners() { EmitObserver::begin(ctx.emitter()) } else { None })
    }

    /// Emits `attempt_discarded`, unless the attempt was watched and emitted no events.
    pub(crate) async fn discard(self, ctx: &RunContext, reason: String, metadata: Value) -> Result<()> {
        let has_emitted = self.0.is_none_or(EmitObserver::end);
        if has_emitted {
            return ctx.discard_attempt(reason, metadata).await;
        }
        ctx.discard_keys();
        Ok(())
    }
}

impl EmitObserver {
    fn begin(emitter: &Emitter) -> Option<Self> {
        // Events that middlewares emit themselves do not count: they report on the attempt and are not its output.
        let has_emitted = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&has_emitted);
        let is_by_others = |meta: &EventMeta<'_>| meta.creator().is_none_or(|creator| creator.kind() != KIND);
        // Listen to the run and to the runs below it: their events reach the run's listeners too. An observer cannot
        // change events, so it has no effect on the attempt.
        let listening = emitter
            .with(Options::new().nested(true))
            .observe(is_by_others, move |_: &dyn AnyEvent, _: &EventMeta<'_>| flag.store(true, Ordering::Relaxed));
        Some(Self { has_emitted, listening: listening.ok()?.drop_guard() })
    }

    /// Stops watching; returns `true` if the attempt has emitted events.
    fn end(self) -> bool {
        drop(self.listening);
        self.has_emitted.load(Ordering::Relaxed)
    }
}
