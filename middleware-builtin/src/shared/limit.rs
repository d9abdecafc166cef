//! What limits have in common that runs wait for: which runs they are about, what they say of them, how they deny.

use std::fmt;
use std::time::Duration;

use emitree_emitter::{Emitter, Event, EventName, Namespace};
use emitree_runtime::{Error, RunContext};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use crate::shared::key::{Key, OwnedKey};
use crate::shared::millis::millis;
use crate::shared::own_events::{OwnEvents, Texts, json_texts};
use crate::shared::runs::FilterSpec;

/// A run had to wait, and goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Delayed {
    /// What it was counted by; `null` where all are counted together.
    pub key: Value,
    /// How long it has waited, in milliseconds.
    pub waited_ms: u64,
}

impl Event for Delayed {
    const NAME: EventName = EventName::new("delayed");
}

impl Texts for Delayed {
    fn texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        json_texts(&mut self.key, change);
    }
}

/// A run is denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Denied {
    /// What it was counted by; `null` where all are counted together.
    pub key: Value,
    /// When it may come again, in milliseconds; none where it is denied for lack of a key.
    pub retry_after_ms: Option<u64>,
}

impl Event for Denied {
    const NAME: EventName = EventName::new("denied");
}

impl Texts for Denied {
    fn texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        json_texts(&mut self.key, change);
    }
}

/// Which runs are counted together, which are at all, and how long one waits: none is denied at once by default.
#[derive(Default)]
pub(crate) struct LimitOptions {
    pub(crate) key: Key,
    pub(crate) about: FilterSpec,
    pub(crate) wait: Option<Duration>,
}

impl LimitOptions {
    /// How long a run waits, at the end of what is said of a limit.
    pub(crate) fn say_wait(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.wait {
            None => f.write_str(", denies"),
            Some(Duration::MAX) => f.write_str(", waits"),
            Some(at_most) => write!(f, ", waits up to {at_most:?}"),
        }
    }
}

/// Who says what became of runs that could not go on at once.
pub(crate) struct LimitEvents {
    by: &'static str,
    own_events: OwnEvents,
}

impl LimitEvents {
    pub(crate) fn new(by: &'static str, namespace: Namespace) -> Self {
        Self { by, own_events: OwnEvents::new(by, namespace) }
    }

    pub(crate) const fn emitter(&self) -> &Emitter {
        self.own_events.emitter()
    }

    /// A run goes on that has waited since it came.
    pub(crate) async fn delayed(&self, key: &OwnedKey, came: Instant, ctx: &RunContext) {
        self.own_events.emit(ctx, || Delayed { key: key.to_json(), waited_ms: millis(came.elapsed()) }).await;
    }

    pub(crate) async fn deny(&self, key: &OwnedKey, retry_after_ms: u64, reason: String, ctx: &RunContext) -> Error {
        self.own_events.emit(ctx, || Denied { key: key.to_json(), retry_after_ms: Some(retry_after_ms) }).await;
        Error::denied(self.by, reason).context("retry_after_ms", retry_after_ms)
    }

    /// A run has no key, or none that could be found out.
    pub(crate) async fn deny_keyless(&self, error: Error, ctx: &RunContext) -> Error {
        self.own_events.emit(ctx, || Denied { key: Value::Null, retry_after_ms: None }).await;
        Error::denied(self.by, error.to_string()).caused_by(error)
    }
}
