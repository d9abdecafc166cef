//! What a [`Retry`] is told before it is made.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::Error;

use super::Retry;

type RetryPredicate = dyn Fn(&Error) -> bool + Send + Sync;
type RetryAfterFn = dyn Fn(&Error) -> Option<Duration> + Send + Sync;

/// Options of a [`Retry`]. Made by [`Retry::builder`].
#[must_use = "it retries nothing until it is built"]
#[derive(Debug, Default)]
pub struct RetryBuilder(RetryOptions);

/// Why there is no such [`Retry`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RetryError {
    /// Delays would shrink, or be none.
    #[error("the delays of a retry cannot grow by `{factor}`: give a factor from 1, such as 2")]
    Factor {
        /// What was given.
        factor: f32,
    },
    /// The first delay is longer than the longest.
    #[error(
        "the first delay of a retry, {base:?}, is longer than the longest, {max:?}: give a shorter one, or `max_delay` too"
    )]
    BaseDelay {
        /// The first.
        base: Duration,
        /// The longest.
        max: Duration,
    },
}

impl RetryBuilder {
    /// How often it tries again at most. Default: 2.
    pub fn max_retries(mut self, most: u32) -> Self {
        self.0.max_retries = most;
        self
    }

    /// How long it waits before the first retry. Default: 500 ms.
    pub fn base_delay(mut self, delay: Duration) -> Self {
        self.0.base_delay = delay;
        self
    }

    /// By what the delay grows with each retry. Default: 2.
    pub fn factor(mut self, factor: f32) -> Self {
        self.0.factor = factor;
        self
    }

    /// How long it waits at most, jitter and what errors ask for included. Default: 30 s.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.0.max_delay = delay;
        self
    }

    /// Delays are as they are computed: for tests, and where nobody else calls.
    pub fn without_jitter(mut self) -> Self {
        self.0.jitter = Jitter::None;
        self
    }

    /// Delays are the same for each run: for tests.
    pub fn jitter_seed(mut self, seed: u64) -> Self {
        self.0.jitter = Jitter::Seeded(seed);
        self
    }

    /// Which failures and time-outs are tried again; of other control flow it is not asked. Default: those that
    /// [are retryable](Error::is_retryable).
    ///
    /// If it panics, that is logged, and nothing is tried again.
    pub fn when(mut self, predicate: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        self.0.when = Some(Arc::new(predicate));
        self
    }

    /// How long an error asks to wait. It is asked first; where it finds nothing, a [`RetryAfter`](super::RetryAfter)
    /// among the causes says it, then a detail `retry_after_ms`.
    ///
    /// If it panics, that is logged, and it has found nothing.
    pub fn retry_after(mut self, extractor: impl Fn(&Error) -> Option<Duration> + Send + Sync + 'static) -> Self {
        self.0.retry_after = Some(Arc::new(extractor));
        self
    }

    /// Makes it.
    ///
    /// # Errors
    ///
    /// If delays would not grow, or the first one is longer than the longest.
    pub fn build(self) -> Result<Retry, RetryError> {
        let RetryOptions { factor, base_delay: base, max_delay: max, .. } = self.0;
        // Not a number is not from 1 either.
        if !(factor >= 1.0 && factor.is_finite()) {
            return Err(RetryError::Factor { factor });
        }
        if base > max {
            return Err(RetryError::BaseDelay { base, max });
        }
        Ok(Retry::of(self.0))
    }
}

/// What it was told.
pub(super) struct RetryOptions {
    pub(super) max_retries: u32,
    pub(super) base_delay: Duration,
    pub(super) factor: f32,
    pub(super) max_delay: Duration,
    pub(super) jitter: Jitter,
    pub(super) when: Option<Arc<RetryPredicate>>,
    pub(super) retry_after: Option<Arc<RetryAfterFn>>,
}

#[derive(Clone, Copy)]
pub(super) enum Jitter {
    Random,
    Seeded(u64),
    None,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self {
            max_retries: 2,
            base_delay: Duration::from_millis(500),
            factor: 2.0,
            max_delay: Duration::from_secs(30),
            jitter: Jitter::Random,
            when: None,
            retry_after: None,
        }
    }
}

impl fmt::Debug for RetryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max_retries, base_delay, factor, max_delay, jitter, when, .. } = self;
        write!(f, "at most {max_retries}, after {base_delay:?} × {factor} up to {max_delay:?}")?;
        f.write_str(match jitter {
            Jitter::Random => " with jitter",
            Jitter::Seeded(_) => " with jitter of a seed",
            Jitter::None => "",
        })?;
        f.write_str(if when.is_some() { ", when a function says so" } else { "" })
    }
}
