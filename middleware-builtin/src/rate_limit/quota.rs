//! The rate of a limit, checked and converted for `governor`.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::Quota;

/// An invalid rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RateLimitError {
    /// The number of runs is 0, so no run would pass.
    #[error("`{0}` runs in a period would deny every run: at least 1 is needed")]
    NoRuns(u32),
    /// The burst is 0, so no run would pass.
    #[error("a burst of `{0}` lets no run pass: at least 1 is needed")]
    NoBurst(u32),
    /// The rate is higher than one run per nanosecond, the highest supported rate.
    #[error("`{runs}` runs in `{period:?}` are more than one per nanosecond: set a longer period, or fewer runs")]
    TooFast {
        /// The number of runs.
        runs: u32,
        /// The period.
        period: Duration,
    },
    /// It takes more than 100 years to replenish a burst.
    #[error(
        "it takes more than 100 years to replenish a burst of `{burst}` at `{runs}` runs in `{period:?}`: set a smaller burst, or more runs per period"
    )]
    TooSlow {
        /// The number of runs.
        runs: u32,
        /// The period.
        period: Duration,
        /// The burst.
        burst: u32,
    },
}

/// The maximum time to replenish a burst. `governor` stores this time as a 64-bit number of nanoseconds, which is
/// enough for 500 years.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

#[derive(Clone, Copy)]
pub(super) struct Rate {
    pub(super) runs: u32,
    pub(super) period: Duration,
    pub(super) burst: Option<u32>,
}

impl Rate {
    pub(super) fn quota(self) -> Result<Quota, RateLimitError> {
        let Self { runs, period, .. } = self;
        let burst = self.burst.unwrap_or(runs);
        let per_period = NonZeroU32::new(runs).ok_or(RateLimitError::NoRuns(runs))?;
        let at_once = NonZeroU32::new(burst).ok_or(RateLimitError::NoBurst(burst))?;
        let interval = period / per_period.get();
        if interval.checked_mul(burst).is_none_or(|time| time > LONGEST) {
            return Err(RateLimitError::TooSlow { runs, period, burst });
        }
        let quota = Quota::with_period(interval).ok_or(RateLimitError::TooFast { runs, period })?;
        Ok(quota.allow_burst(at_once))
    }
}

#[cfg(test)]
mod tests {
    use super::{Rate, RateLimitError};
    use std::time::Duration;

    #[test]
    fn a_rate_that_cannot_be_counted_is_an_error_that_quotes_the_rate() {
        let second = Duration::from_secs(1);
        let nano = Duration::from_nanos(1);
        let rows = [
            (0, second, None, "`0` runs in a period would deny every run: at least 1 is needed"),
            (1, second, Some(0), "a burst of `0` lets no run pass: at least 1 is needed"),
            (2, nano, None, "`2` runs in `1ns` are more than one per nanosecond: set a longer period, or fewer runs"),
            (
                1,
                second,
                Some(u32::MAX),
                "it takes more than 100 years to replenish a burst of `4294967295` at `1` runs in `1s`: set a smaller burst, or more runs per period",
            ),
        ];
        for (runs, period, burst, message) in rows {
            let error = Rate { runs, period, burst }.quota().expect_err(message);
            assert_eq!(error.to_string(), message);
        }
        let longest = Rate { runs: 1, period: Duration::MAX, burst: None };
        assert!(matches!(longest.quota(), Err(RateLimitError::TooSlow { .. })));
    }

    #[test]
    fn the_default_burst_is_the_number_of_runs_per_period() {
        let quota = Rate { runs: 4, period: Duration::from_secs(1), burst: None }.quota().expect("a valid rate");
        assert_eq!((quota.burst_size().get(), quota.replenish_interval()), (4, Duration::from_millis(250)));
    }
}
