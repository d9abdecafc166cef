//! Tokio's clock, as governor reads it: paused in tests, it stands still for both.

use governor::clock::Clock;
use governor::nanos::Nanos;
use tokio::time::Instant;

/// Counts from when it was made: what governor reckons with are bare nanoseconds then.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokioClock(Instant);

impl TokioClock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    /// A moment that governor names; where no clock shows it, the start.
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
