//! The delay before the next attempt.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use emitree_runtime::Error;

use super::builder::{Jitter, RetryOptions};
use super::layer::call_user_fn;

/// An error cause that states how long to wait before the next attempt, for example because a server sent the header
/// `Retry-After` (RFC 9110, 10.2.3).
///
/// ```
/// use std::time::Duration;
/// use emitree_middleware::retry::RetryAfter;
/// use emitree_runtime::Error;
///
/// let error = Error::new("429: too many requests").retryable(true).caused_by(RetryAfter(Duration::from_secs(2)));
/// assert_eq!(error.find(), Some(&RetryAfter(Duration::from_secs(2))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("retry after {0:?}")]
pub struct RetryAfter(
    /// The time to wait.
    pub Duration,
);

impl RetryOptions {
    /// Returns the delays of one run, one for each retry.
    pub(super) fn delays(&self) -> impl Iterator<Item = Duration> + Send + use<> {
        let most = usize::try_from(self.max_retries).unwrap_or(usize::MAX);
        let growing = ExponentialBuilder::new()
            .with_max_times(most)
            .with_min_delay(self.base_delay)
            .with_factor(self.factor)
            .with_max_delay(self.max_delay);
        let growing = match self.jitter {
            Jitter::Random => growing.with_jitter(),
            Jitter::Seeded(seed) => growing.with_jitter().with_jitter_seed(seed),
            Jitter::None => growing,
        };
        let max = self.max_delay;
        // `backon` limits the delay before it adds the jitter: limit the sum as well.
        growing.build().map(move |delay| delay.min(max))
    }

    /// Returns the delay that an error asks for, if any.
    pub(super) fn asked_for(&self, error: &Error) -> Option<Duration> {
        let own =
            self.retry_after.as_ref().and_then(|extractor| call_user_fn("retry_after", || extractor(error)).flatten());
        let caused = || error.find::<RetryAfter>().map(|after| after.0);
        let detailed = || error.details().get("retry_after_ms")?.as_u64().map(Duration::from_millis);
        // The user's function comes first, so that it can override the delay that the error contains.
        own.or_else(caused).or_else(detailed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(options: &RetryOptions) -> Vec<u64> {
        options.delays().map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)).collect()
    }

    #[test]
    fn delays_grow_by_the_factor_up_to_the_longest() {
        let rows: [(u32, u64, f32, u64, &[u64]); 5] = [
            (0, 500, 2.0, 30_000, &[]),
            (2, 500, 2.0, 30_000, &[500, 1_000]),
            (4, 500, 3.0, 10_000, &[500, 1_500, 4_500, 10_000]),
            (3, 500, 1.0, 30_000, &[500, 500, 500]),
            (3, 0, 2.0, 0, &[0, 0, 0]),
        ];
        for (max_retries, base, factor, max, expected) in rows {
            let base_delay = Duration::from_millis(base);
            let max_delay = Duration::from_millis(max);
            let jitter = Jitter::None;
            let options =
                RetryOptions { max_retries, base_delay, factor, max_delay, jitter, ..RetryOptions::default() };
            assert_eq!(delays(&options), expected);
        }
    }

    #[test]
    fn jitter_at_most_doubles_a_delay_up_to_the_longest_and_a_seed_repeats_the_delays() {
        let max_retries = 4;
        let max_delay = Duration::from_millis(2_500);
        for seed in 0..100 {
            let options =
                RetryOptions { max_retries, max_delay, jitter: Jitter::Seeded(seed), ..RetryOptions::default() };
            let delays = delays(&options);
            assert_eq!(delays, self::delays(&options));
            for (delay, least) in delays.iter().zip([500, 1_000, 2_000, 2_500]) {
                assert!((least..=2 * least).contains(delay) && *delay <= 2_500, "{delays:?}");
            }
        }
    }

    #[test]
    fn no_delay_is_too_long_to_be_computed() {
        let max_delay = Duration::MAX;
        for jitter in [Jitter::Random, Jitter::None] {
            let options =
                RetryOptions { max_retries: 200, factor: f32::MAX, max_delay, jitter, ..RetryOptions::default() };
            assert_eq!(options.delays().count(), 200);
            let options = RetryOptions { base_delay: Duration::MAX, ..options };
            assert_eq!(options.delays().count(), 200);
        }
    }
}
