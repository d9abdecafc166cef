//! Durations in events and errors.

use std::time::Duration;

/// Returns whole milliseconds, rounded up, so that a caller that waits this long does not retry too early.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
