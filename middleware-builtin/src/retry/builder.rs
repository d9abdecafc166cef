//! The options of a [`Retry`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::Error;

use super::Retry;

type RetryPredicate = dyn Fn(&Error) -> bool + Send + Sync;
type RetryAfterFn = dyn Fn(&Error) -> Option<Duration> + Send + Sync;

/// Builds a [`Retry`]. Returned by [`Retry::builder`].
#[must_use = "nothing is retried until it is built"]
#[derive(Debug, Default)]
pub struct RetryBuilder(RetryOptions);

/// Invalid options of a [`Retry`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RetryError {
    /// The factor is less than 1, or is not a finite number.
    #[error("the delays of a retry cannot grow by `{factor}`: set a finite factor of 1 or more, such as 2")]
    Factor {
        /// The given factor.
        factor: f32,
    },
    /// The first delay is longer than the longest delay.
    #[error(
        "the first delay of a retry, {base:?}, is longer than the longest delay, {max:?}: use a shorter `base_delay`, or a longer `max_delay`"
    )]
    BaseDelay {
        /// The first delay.
        base: Duration,
        /// The longest delay.
        max: Duration,
    },
}

impl RetryBuilder {
    /// Sets the maximum number of retries. Default: 2.
    pub fn max_retries(mut self, most: u32) -> Self {
        self.0.max_retries = most;
        self
    }

    /// Sets the delay before the first retry. Default: 500 ms.
    pub fn base_delay(mut self, delay: Duration) -> Self {
        self.0.base_delay = delay;
        self
    }

    /// Sets the factor by which the delay grows with each retry; with a factor of 1, the delay stays the same. Default:
    /// 2.
    pub fn factor(mut self, factor: f32) -> Self {
        self.0.factor = factor;
        self
    }

    /// Sets the longest delay. It also limits delays with jitter and delays that errors ask for. Default: 30 s.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.0.max_delay = delay;
        self
    }

    /// Uses delays without a random part, for tests and for services with a single caller.
    pub fn without_jitter(mut self) -> Self {
        self.0.jitter = Jitter::None;
        self
    }

    /// Seeds the random part of the delays, so that each sequence of retries has the same delays, for example in tests.
    pub fn jitter_seed(mut self, seed: u64) -> Self {
        self.0.jitter = Jitter::Seeded(seed);
        self
    }

    /// Sets which errors are retried. Default: errors that [are retryable](Error::is_retryable). The predicate is not
    /// called for a denial, a halt, an abort, an interrupt or a request for a retry, because these are never retried.
    /// [`Retry::when`] is short for a retry with this option only.
    ///
    /// If the predicate panics, the panic is logged and the error is not retried.
    pub fn when(mut self, predicate: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        self.0.when = Some(Arc::new(predicate));
        self
    }

    /// Sets a function that returns the delay after an error. If the function returns `None`, the delay is taken from a
    /// [`RetryAfter`](super::RetryAfter) among the error's causes. If there is no `RetryAfter`, the delay is taken from
    /// the error's detail `retry_after_ms`. Without that detail, the delay is computed.
    ///
    /// A panic of the function is logged and counts as `None`.
    pub fn retry_after(mut self, extractor: impl Fn(&Error) -> Option<Duration> + Send + Sync + 'static) -> Self {
        self.0.retry_after = Some(Arc::new(extractor));
        self
    }

    /// Builds the [`Retry`].
    ///
    /// # Errors
    ///
    /// Returns an error if the factor is less than 1, if the factor is not finite, or if the first delay is longer than
    /// the longest delay.
    pub fn build(self) -> Result<Retry, RetryError> {
        let RetryOptions { factor, base_delay: base, max_delay: max, .. } = self.0;
        // `factor >= 1.0` is false for NaN, so NaN is rejected too.
        if !(factor >= 1.0 && factor.is_finite()) {
            return Err(RetryError::Factor { factor });
        }
        if base > max {
            return Err(RetryError::BaseDelay { base, max });
        }
        Ok(Retry::of(self.0))
    }
}

/// The options of a retry.
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
            Jitter::Seeded(_) => " with seeded jitter",
            Jitter::None => "",
        })?;
        f.write_str(if when.is_some() { ", for errors that a function selects" } else { "" })
    }
}
