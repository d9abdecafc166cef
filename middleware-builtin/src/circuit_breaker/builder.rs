//! What a [`CircuitBreaker`] is told before it is made.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::Error;

use super::CircuitBreaker;
use super::state::Thresholds;
use crate::shared::key::Key;

type FailurePredicate = dyn Fn(&Error) -> bool + Send + Sync;

/// Options of a [`CircuitBreaker`]. Made by [`CircuitBreaker::builder`].
#[must_use = "it breaks no circuit until it is built"]
#[derive(Debug, Default)]
pub struct CircuitBreakerBuilder(CircuitBreakerOptions);

/// Why there is no such [`CircuitBreaker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CircuitBreakerError {
    /// It would never have been closed.
    #[error("a circuit breaker cannot open after `0` failures: give 1 or more")]
    NoFailures,
    /// No two failures are within it.
    #[error("a circuit breaker counts nothing within a window of `0` seconds: give a longer one, such as 30 s")]
    NoWindow,
    /// It would forget each failure at once.
    #[error("a circuit breaker that remembers `0` keys never opens: give 1 or more")]
    NoKeys,
}

impl CircuitBreakerBuilder {
    /// After how many failures it opens. Default: 5.
    pub fn failures(mut self, failures: u32) -> Self {
        self.0.thresholds.failures = failures;
        self
    }

    /// Within how long they have to happen. Default: 30 s.
    pub fn window(mut self, window: Duration) -> Self {
        self.0.thresholds.window = window;
        self
    }

    /// For how long it is open before a probe may pass. Default: 30 s.
    pub fn cool_down(mut self, cool_down: Duration) -> Self {
        self.0.thresholds.cool_down = cool_down;
        self
    }

    /// Which runs share their failures: those with the same key. Default: all.
    pub fn by(mut self, key: Key) -> Self {
        self.0.key = key;
        self
    }

    /// How many keys with failures it remembers at most, beside those that are being probed. Where there is no room for one more, some are forgotten, those first whose
    /// last failure is longest ago: they are closed then, as if they had never failed. Default: 10,000.
    pub fn max_keys(mut self, most: usize) -> Self {
        self.0.thresholds.keys = most;
        self
    }

    /// Which failures and time-outs count. Default: all.
    ///
    /// If it panics, that is logged, and the failure counts.
    pub fn when(mut self, predicate: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        self.0.when = Some(Arc::new(predicate));
        self
    }

    /// Makes it.
    ///
    /// # Errors
    ///
    /// If it would open after no failure, or within no time, or remembers no key.
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

/// What it was told.
pub(super) struct CircuitBreakerOptions {
    pub(super) thresholds: Thresholds,
    pub(super) key: Key,
    pub(super) when: Option<Arc<FailurePredicate>>,
}

impl Default for CircuitBreakerOptions {
    fn default() -> Self {
        let (window, cool_down) = (Duration::from_secs(30), Duration::from_secs(30));
        let thresholds = Thresholds { failures: 5, window, cool_down, keys: 10_000 };
        Self { thresholds, key: Key::default(), when: None }
    }
}

impl fmt::Debug for CircuitBreakerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Thresholds { failures, window, cool_down, .. } = self.thresholds;
        write!(f, "opens after {failures} failures within {window:?}, for {cool_down:?}, {:?}", self.key)?;
        f.write_str(if self.when.is_some() { ", of those that a function counts" } else { "" })
    }
}
