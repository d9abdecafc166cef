//! Attempts of a layer that somebody may have heard of: given up, they are marked so (M7).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_emitter::{AnyEvent, DropGuard, EventMeta, Options};
use emitree_runtime::{Result, RunContext};
use serde_json::Value;

use crate::voice::KIND;

/// Watches whether an attempt emits anything that the run hears, besides what middlewares say of it.
pub(crate) struct Streamed {
    has_emitted: Arc<AtomicBool>,
    listening: Option<DropGuard>,
}

impl Streamed {
    /// Begins to watch, if anybody else listens. If not, it is taken that the attempt has emitted: whoever listens by
    /// its end may have heard of it, and where still nobody does, to mark it costs nothing.
    pub(crate) fn watch(ctx: &RunContext) -> Self {
        let emitter = ctx.emitter();
        if !emitter.is_heard() {
            return Self { has_emitted: Arc::new(AtomicBool::new(true)), listening: None };
        }
        let has_emitted = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&has_emitted);
        let is_said_by_others = |meta: &EventMeta<'_>| meta.creator().is_none_or(|creator| creator.kind() != KIND);
        let listening = emitter
            .with(Options::new().nested(true))
            .observe(is_said_by_others, move |_: &dyn AnyEvent, _: &EventMeta<'_>| seen.store(true, Ordering::Relaxed));
        match listening {
            Ok(subscription) => Self { has_emitted, listening: Some(subscription.drop_guard()) },
            Err(_) => Self { has_emitted: Arc::new(AtomicBool::new(true)), listening: None },
        }
    }

    /// Marks the attempt as given up, if it has emitted.
    pub(crate) async fn discard(self, ctx: &RunContext, reason: String, metadata: Value) -> Result<()> {
        drop(self.listening);
        if self.has_emitted.load(Ordering::Relaxed) { ctx.discard_attempt(reason, metadata).await } else { Ok(()) }
    }
}
