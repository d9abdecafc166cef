//! Tokio's clock, as governor reads it: paused in tests, it stands still for both.

use std::ops::Add;
use std::time::Duration;

use governor::clock::{Clock, Reference};
use governor::nanos::Nanos;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug)]
pub(super) struct TokioClock;

/// A moment; arithmetic ends at what a clock can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(pub(super) Instant);

impl Clock for TokioClock {
    type Instant = Moment;

    fn now(&self) -> Moment {
        Moment(Instant::now())
    }
}

impl Reference for Moment {
    fn duration_since(&self, earlier: Self) -> Nanos {
        let nanos = self.0.saturating_duration_since(earlier.0).as_nanos();
        u64::try_from(nanos).unwrap_or(u64::MAX).into()
    }

    fn saturating_sub(&self, duration: Nanos) -> Self {
        Self(self.0.checked_sub(duration.into()).unwrap_or(self.0))
    }
}

impl Add<Nanos> for Moment {
    type Output = Self;

    fn add(self, nanos: Nanos) -> Self {
        Self(self.0.checked_add(Duration::from(nanos)).unwrap_or(self.0))
    }
}
