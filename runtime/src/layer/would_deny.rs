//! What a guard that evaluates only would have done (M5).

use emitree_emitter::{Event, EventName};
use serde::Serialize;

use crate::run::panic::isolated;
use crate::{Error, RunContext};

/// A guard that evaluates only would have said no.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WouldDeny {
    /// Who would have said no.
    pub guard: String,
    /// To what.
    pub at: Checked,
    /// Why.
    pub reason: String,
}

/// What a guard checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Checked {
    Input,
    Output,
}

impl Event for WouldDeny {
    const NAME: EventName = EventName::new("would_deny");
}

impl WouldDeny {
    pub(crate) fn new(guard: &str, at: Checked, error: &Error) -> Self {
        Self { guard: guard.to_owned(), at, reason: error.to_string() }
    }

    /// Tells of it: on the run's emitter and in the log. That it cannot be told blocks nothing either.
    pub(crate) async fn record(mut self, ctx: &RunContext) {
        let Self { guard, at, reason } = &self;
        isolated(|| tracing::info!(guard, at = ?at, reason, "a guard would have denied"));
        if let Err(error) = ctx.emitter().emit_event(&mut self).await {
            isolated(|| tracing::warn!(error = %error, "a listener of `would_deny` failed"));
        }
    }
}
