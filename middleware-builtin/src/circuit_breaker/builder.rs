//! The builder of a [`CircuitBreaker`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::Error;

use super::CircuitBreaker;
use super::state::Thresholds;
use crate::shared::key::Key;

type FailurePredicate = dyn Fn(&Error) -> bool + Send + Sync;

/// A builder of a [`CircuitBreaker`]. Created by [`CircuitBreaker::builder`].
#[must_use = "a circuit breaker is created only by `build`"]
#[derive(Debug, Default)]
pub struct CircuitBreakerBuilder(CircuitBreakerOptions);

/// An invalid option of a [`CircuitBreaker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CircuitBreakerError {
    /// The number of failures is 0.
    #[error("a circuit breaker cannot open after `0` failures: set 1 or more")]
    NoFailures,
    /// The window is 0: each failure would leave it immediately.
    #[error(
        "a circuit breaker with a window of `0` seconds forgets each failure at once: set a longer window, such as 30 s"
    )]
    NoWindow,
    /// The maximum number of keys is 0: each failure would be forgotten immediately.
    #[error("a circuit breaker that remembers `0` keys never opens: set 1 or more")]
    NoKeys,
}

impl CircuitBreakerBuilder {
    /// Sets the number of failures that open the breaker. Default: 5.
    pub fn failures(mut self, failures: u32) -> Self {
        self.0.thresholds.failures = failures;
        self
    }

    /// Sets the window within which the failures must happen. Default: 30 s.
    pub fn window(mut self, window: Duration) -> Self {
        self.0.thresholds.window = window;
        self
    }

    /// Sets how long the breaker stays open before a probe may pass. Default: 30 s.
    pub fn cool_down(mut self, cool_down: Duration) -> Self {
        self.0.thresholds.cool_down = cool_down;
        self
    }

    /// Sets the key: runs with equal keys share one state. Default: all runs share one state.
    pub fn by(mut self, key: Key) -> Self {
        self.0.key = key;
        self
    }

    /// Limits the number of remembered keys. To make room for a new key, the keys that failed least recently are
    /// forgotten, except keys with a running probe. A forgotten key is closed, as if it had never failed. Default:
    /// 10,000.
    pub fn max_keys(mut self, most: usize) -> Self {
        self.0.thresholds.keys = most;
        self
    }

    /// Sets a predicate that selects the failures and time-outs that count. If the predicate returns `false`, the call
    /// counts as a success. Default: all failures and time-outs count.
    ///
    /// If the predicate panics, the panic is logged and the failure counts.
    pub fn when(mut self, predicate: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        self.0.when = Some(Arc::new(predicate));
        self
    }

    /// Builds the [`CircuitBreaker`].
    ///
    /// # Errors
    ///
    /// Returns an error if the number of failures, the window or the number of keys is 0.
    pub fn build(self) -> Result<CircuitBreaker, CircuitBreakerError> {
        let Thresholds { failures, window, keys, .. } = self.0.thresholds;
        match (failures, window, keys) {
            (0, ..) => Err(CircuitBreakerError::NoFailures),
            (_, Duration::ZERO, _) => Err(CircuitBreakerError::NoWindow),
            (.., 0) => Err(CircuitBreakerError::NoKeys),
            _ => Ok(CircuitBreaker::of(self.0)),
        }
    }
}

/// The options of a breaker.
pub(super) struct CircuitBreakerOptions {
    pub(super) thresholds: Thresholds,
    pub(super) key: Key,
    pub(super) when: Option<Arc<FailurePredicate>>,
}

impl Default for CircuitBreakerOptions {
    fn default() -> Self {
        let window = Duration::from_secs(30);
        let cool_down = Duration::from_secs(30);
        let thresholds = Thresholds { failures: 5, window, cool_down, keys: 10_000 };
        Self { thresholds, key: Key::default(), when: None }
    }
}

impl fmt::Debug for CircuitBreakerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Thresholds { failures, window, cool_down, .. } = self.thresholds;
        write!(f, "opens after {failures} failures within {window:?}, for {cool_down:?}, {:?}", self.key)?;
        f.write_str(if self.when.is_some() { ", only errors that a function selects" } else { "" })
    }
}
