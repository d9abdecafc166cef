//! Tokio's clock for `governor`, so that tests that pause the clock also pause the limit.

use governor::clock::Clock;
use governor::nanos::Nanos;
use tokio::time::Instant;

/// A clock that counts the nanoseconds since its creation, because `governor` computes in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokioClock(Instant);

impl TokioClock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the instant of a `governor` time, or the clock's start if the instant cannot be represented.
    pub(super) fn instant(&self, moment: Nanos) -> Instant {
        self.0.checked_add(moment.into()).unwrap_or(self.0)
    }
}

impl Clock for TokioClock {
    type Instant = Nanos;

    #[inline]
    fn now(&self) -> Nanos {
        let since = self.0.elapsed();
        since.as_secs().saturating_mul(1_000_000_000).saturating_add(since.subsec_nanos().into()).into()
    }
}
