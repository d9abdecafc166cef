//! The common parts of limits with a key: options, events and denials.

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

/// A run has waited and now continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Delayed {
    /// The key that the run was counted by; `null` if all runs are counted together, or if the run has no key.
    pub key: Value,
    /// The time that the run has waited, in milliseconds.
    pub waited_ms: u64,
}

/// A run is denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Denied {
    /// The key that the run was counted by; `null` if all runs are counted together, if the run has no key, or if the
    /// key function failed.
    pub key: Value,
    /// The time after which the run may be retried, in milliseconds; `None` if the run was denied because it has no key
    /// or because the key function failed.
    pub retry_after_ms: Option<u64>,
}

own_events! {
    Delayed = "delayed" { key };
    Denied = "denied" { key };
}

/// The options of a limit with a key. Without `wait`, an excess run is denied immediately.
#[derive(Default)]
pub(crate) struct KeyedLimitOptions {
    pub(crate) key: Key,
    pub(crate) runs: FilterSpec,
    pub(crate) wait: Option<Duration>,
}

impl KeyedLimitOptions {
    /// Writes the maximum wait at the end of a limit's `Debug` output.
    pub(crate) fn fmt_wait(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.wait {
            None => f.write_str(", denies"),
            Some(Duration::MAX) => f.write_str(", waits"),
            Some(at_most) => write!(f, ", waits up to {at_most:?}"),
        }
    }
}

/// Implements the builder methods that all limits with a key share.
macro_rules! keyed_limit_options {
    ($builder:ty, |$this:ident| $options:expr) => {
        impl $builder {
            /// Sets the key: runs with equal keys are counted together. Default: one key for all runs.
            pub fn by(mut self, key: Key) -> Self {
                let $this = &mut self;
                $options.key = key;
                self
            }

            /// Limits only these runs. Further calls add runs. Default: all runs.
            pub fn runs(mut self, runs: Runs) -> Self {
                let $this = &mut self;
                $options.runs.add(runs);
                self
            }

            /// Limits runs of a kind: short for `runs(Runs::of_kind(kind))`.
            pub fn of_kind(self, kind: impl Into<std::borrow::Cow<'static, str>>) -> Self {
                self.runs(Runs::of_kind(kind))
            }

            /// Lets a run wait up to `at_most` before it is denied; with [`Duration::MAX`], the wait has no limit.
            /// Default: a run does not wait.
            pub fn wait(mut self, at_most: Duration) -> Self {
                let $this = &mut self;
                $options.wait = Some(at_most);
                self
            }
        }
    };
}

pub(crate) use keyed_limit_options;

/// The events of limits, and the denials that the events report.
impl OwnEvents {
    /// Emits [`Delayed`] for a run that has waited since `came`.
    pub(crate) async fn delayed(&self, key: &OwnedKey, came: Instant, ctx: &RunContext) {
        self.emit(ctx, || Delayed { key: key.to_json(), waited_ms: millis(came.elapsed()) }).await;
    }

    pub(crate) async fn deny(&self, key: &OwnedKey, retry_after_ms: u64, reason: String, ctx: &RunContext) -> Error {
        self.emit(ctx, || Denied { key: key.to_json(), retry_after_ms: Some(retry_after_ms) }).await;
        Error::denied(self.name(), reason).detail("retry_after_ms", retry_after_ms)
    }

    /// Denies a run that has no key, or whose key function failed.
    pub(crate) async fn deny_keyless(&self, error: Error, ctx: &RunContext) -> Error {
        self.emit(ctx, || Denied { key: Value::Null, retry_after_ms: None }).await;
        Error::denied(self.name(), error.to_string()).caused_by(error)
    }
}
