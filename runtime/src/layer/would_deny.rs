//! The event of a guard that reports denials without enforcing them (M5).

use emitree_emitter::{Event, EventName};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::RunContext;
use crate::run::panic::isolated;

/// An event of a guard with [`evaluate_only`](crate::GuardOptions::evaluate_only): a check failed, and without that
/// option the guard would have stopped the call. A middleware that guards without being a [`Guard`](crate::Guard) makes
/// and [records](Self::record) the event itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WouldDeny {
    /// The name of the guard.
    pub guard: String,
    /// The value that failed the check.
    pub at: Checked,
    /// The reason.
    pub reason: String,
}

/// The value that a guard checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum Checked {
    Input,
    Output,
}

impl Event for WouldDeny {
    const NAME: EventName = EventName::new("would_deny");

    fn head(&self) -> Option<Value> {
        Some(json!({"guard": self.guard, "at": self.at}))
    }
}

impl WouldDeny {
    /// Makes the event.
    pub fn new(guard: impl Into<String>, at: Checked, reason: impl Into<String>) -> Self {
        Self { guard: guard.into(), at, reason: reason.into() }
    }

    /// Logs the event, and emits it on the run's emitter. If a `tracing` subscriber panics or a listener fails, the run
    /// still continues.
    pub async fn record(mut self, ctx: &RunContext) {
        // A guard with `evaluate_only` must not affect the run: catch the panic of a `tracing` subscriber and the
        // failure of a listener (M5).
        let Self { guard, at, reason } = &self;
        isolated(|| tracing::info!(guard, at = ?at, reason, "a guard would have denied"));
        if let Err(error) = ctx.emitter().emit_event(&mut self).await {
            isolated(|| tracing::warn!(error = %error, "a listener of `would_deny` failed"));
        }
    }
}
