//! Times in events and errors.

use std::time::Duration;

/// Returns whole milliseconds, rounded up: a caller that comes back then does not come too early.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
