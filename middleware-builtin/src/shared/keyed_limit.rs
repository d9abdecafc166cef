//! What the limits of a key have in common: options, own events and denials.

use std::fmt;
use std::time::Duration;

use emitree_runtime::{Error, RunContext};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use crate::shared::key::{Key, OwnedKey};
use crate::shared::millis::millis;
use crate::shared::own_events::{OwnEvents, own_events};
use crate::shared::runs::FilterSpec;

/// A run had to wait, and goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Delayed {
    /// The key that it was counted by; `null` where all runs are counted together.
    pub key: Value,
    /// How long it has waited, in milliseconds.
    pub waited_ms: u64,
}

/// A run is denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Denied {
    /// The key that it was counted by; `null` where all runs are counted together.
    pub key: Value,
    /// When it may come again, in milliseconds; none where it is denied because it has no key.
    pub retry_after_ms: Option<u64>,
}

own_events! {
    Delayed = "delayed" { key };
    Denied = "denied" { key };
}

/// Which runs are counted together, which are limited at all, and how long a run waits: by default it is denied at once.
#[derive(Default)]
pub(crate) struct KeyedLimitOptions {
    pub(crate) key: Key,
    pub(crate) runs: FilterSpec,
    pub(crate) wait: Option<Duration>,
}

impl KeyedLimitOptions {
    /// Writes how long a run waits, at the end of a limit's `Debug`.
    pub(crate) fn fmt_wait(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.wait {
            None => f.write_str(", denies"),
            Some(Duration::MAX) => f.write_str(", waits"),
            Some(at_most) => write!(f, ", waits up to {at_most:?}"),
        }
    }
}

/// Writes the options of a builder that are those of every limit.
macro_rules! keyed_limit_options {
    ($builder:ty, |$this:ident| $options:expr) => {
        impl $builder {
            /// Sets which runs are counted together. Default: all.
            pub fn by(mut self, key: Key) -> Self {
                let $this = &mut self;
                $options.key = key;
                self
            }

            /// Limits these runs, and those given by further calls. Default: all.
            pub fn runs(mut self, runs: Runs) -> Self {
                let $this = &mut self;
                $options.runs.add(runs);
                self
            }

            /// Limits runs of a kind: short for `runs(Runs::of_kind(kind))`.
            pub fn of_kind(self, kind: impl Into<std::borrow::Cow<'static, str>>) -> Self {
                self.runs(Runs::of_kind(kind))
            }

            /// Has a run wait at most that long, instead of denying it at once. [`Duration::MAX`] is as long as it takes.
            pub fn wait(mut self, at_most: Duration) -> Self {
                let $this = &mut self;
                $options.wait = Some(at_most);
                self
            }
        }
    };
}

pub(crate) use keyed_limit_options;

/// Own events of limits, and the denials that they go with.
impl OwnEvents {
    /// A run goes on that has waited since it came.
    pub(crate) async fn delayed(&self, key: &OwnedKey, came: Instant, ctx: &RunContext) {
        self.emit(ctx, || Delayed { key: key.to_json(), waited_ms: millis(came.elapsed()) }).await;
    }

    pub(crate) async fn deny(&self, key: &OwnedKey, retry_after_ms: u64, reason: String, ctx: &RunContext) -> Error {
        self.emit(ctx, || Denied { key: key.to_json(), retry_after_ms: Some(retry_after_ms) }).await;
        Error::denied(self.name(), reason).context("retry_after_ms", retry_after_ms)
    }

    /// A run has no key, or its key function failed.
    pub(crate) async fn deny_keyless(&self, error: Error, ctx: &RunContext) -> Error {
        self.emit(ctx, || Denied { key: Value::Null, retry_after_ms: None }).await;
        Error::denied(self.name(), error.to_string()).caused_by(error)
    }
}
