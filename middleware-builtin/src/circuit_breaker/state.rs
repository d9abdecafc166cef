//! The states of one circuit, and the calls that each state admits. This file uses no clock, no lock and no user code.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// The thresholds at which a circuit opens, its cool-down, and the maximum number of circuits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thresholds {
    pub(super) failures: u32,
    pub(super) window: Duration,
    pub(super) cool_down: Duration,
    /// The maximum number of circuits.
    pub(super) keys: usize,
}

/// One circuit. A closed circuit without failures needs no entry in the table.
#[derive(Debug)]
pub(super) enum Circuit {
    /// The times of failures, oldest first. Those that have left the window are removed when a failure is counted.
    Closed {
        failures: VecDeque<Instant>,
    },
    Open(OpenState),
    /// A probe is running. `probe` is the id of its run. Runs below that run are admitted too.
    HalfOpen {
        probe: Uuid,
        opening: OpenState,
    },
}

/// The start, the end and the cause of an open state. Without an end, the circuit stays open for good.
#[derive(Clone, Debug)]
pub(super) struct OpenState {
    since: Instant,
    until: Option<Instant>,
    cause: Arc<str>,
}

/// The decision about a call: it passes, becomes the probe or is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Passes,
    Probes,
    Refused(Denial),
}

/// The reason for refusing a call, and the time until a probe may pass, if known.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Denial {
    pub(super) wait: Option<Duration>,
    pub(super) cause: Arc<str>,
}

/// How an ended call counts: as a success, as a failure, or not at all.
#[derive(Debug)]
pub(super) enum CallOutcome {
    Success,
    Failure(Arc<str>),
    Uncounted,
}

/// A change of state caused by the end of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Transition {
    Opened { failures: u32, cause: Arc<str> },
    Closed,
}

impl Default for Circuit {
    fn default() -> Self {
        Self::Closed { failures: VecDeque::new() }
    }
}

impl Circuit {
    /// Decides whether a call passes, becomes the probe or is refused. `above` yields the ids of the runs above.
    pub(super) fn admit(&mut self, now: Instant, run: Uuid, mut above: impl Iterator<Item = Uuid>) -> Admission {
        match self {
            Self::Closed { .. } => Admission::Passes,
            Self::Open(opening) => {
                let wait = opening.until.map(|until| until.saturating_duration_since(now));
                if wait != Some(Duration::ZERO) {
                    return Admission::Refused(Denial { wait, cause: Arc::clone(&opening.cause) });
                }
                // The caller holds the lock, so only one call becomes the probe.
                *self = Self::HalfOpen { probe: run, opening: opening.clone() };
                Admission::Probes
            }
            Self::HalfOpen { probe, .. } if run == *probe || above.any(|above| above == *probe) => Admission::Passes,
            Self::HalfOpen { opening, .. } => {
                Admission::Refused(Denial { wait: None, cause: Arc::clone(&opening.cause) })
            }
        }
    }

    /// Counts a call that has ended. Only a closed circuit changes.
    pub(super) fn on_call_ended(
        &mut self,
        now: Instant,
        outcome: CallOutcome,
        thresholds: Thresholds,
    ) -> Option<Transition> {
        let Self::Closed { failures } = self else { return None };
        // Failures that have left the window no longer count.
        while failures.front().is_some_and(|at| now.duration_since(*at) > thresholds.window) {
            failures.pop_front();
        }
        let CallOutcome::Failure(cause) = outcome else { return None };
        failures.push_back(now);
        let count = u32::try_from(failures.len()).unwrap_or(u32::MAX);
        if count < thresholds.failures { None } else { Some(self.open(now, count, cause, thresholds)) }
    }

    /// Closes or reopens the circuit when its probe has ended.
    pub(super) fn on_probe_ended(
        &mut self,
        now: Instant,
        outcome: CallOutcome,
        thresholds: Thresholds,
    ) -> Option<Transition> {
        let Self::HalfOpen { opening, .. } = self else { return None };
        match outcome {
            CallOutcome::Success => {
                *self = Self::default();
                Some(Transition::Closed)
            }
            CallOutcome::Failure(cause) => Some(self.open(now, 1, cause, thresholds)),
            // `until` has passed already, so the next call becomes the probe.
            CallOutcome::Uncounted => {
                *self = Self::Open(opening.clone());
                None
            }
        }
    }

    fn open(&mut self, now: Instant, failures: u32, cause: Arc<str>, thresholds: Thresholds) -> Transition {
        let until = now.checked_add(thresholds.cool_down);
        *self = Self::Open(OpenState { since: now, until, cause: Arc::clone(&cause) });
        Transition::Opened { failures, cause }
    }

    /// Returns `true` if the circuit is closed and has no failure within the window.
    pub(super) fn is_idle(&self, now: Instant, thresholds: Thresholds) -> bool {
        match self {
            Self::Closed { failures } => failures.back().is_none_or(|at| now.duration_since(*at) > thresholds.window),
            Self::Open(_) | Self::HalfOpen { .. } => false,
        }
    }

    /// Returns the time of the last failure; `None` while a probe is running, so that the circuit is not forgotten.
    pub(super) fn last_failure(&self) -> Option<Instant> {
        match self {
            Self::Closed { failures } => failures.back().copied(),
            Self::Open(opening) => Some(opening.since),
            Self::HalfOpen { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLDS: Thresholds =
        Thresholds { failures: 3, window: Duration::from_secs(10), cool_down: Duration::from_secs(20), keys: 9 };

    fn busy() -> CallOutcome {
        CallOutcome::Failure("busy".into())
    }

    #[test]
    fn the_circuit_opens_when_failures_within_the_window_reach_the_threshold() {
        let rows: [(&[u64], bool); 6] = [
            (&[0, 1], false),
            (&[0, 1, 2], true),
            (&[0, 5, 10], true),
            (&[0, 5, 11], false),
            (&[0, 5, 11, 12], true),
            (&[0, 11, 22, 33], false),
        ];
        let begun = Instant::now();
        for (failures, opens) in rows {
            let mut circuit = Circuit::default();
            for at in failures {
                let now = begun + Duration::from_secs(*at);
                circuit.on_call_ended(now, CallOutcome::Success, THRESHOLDS);
                circuit.on_call_ended(now, busy(), THRESHOLDS);
            }
            assert_eq!(matches!(circuit, Circuit::Open(_)), opens, "{failures:?}: {circuit:?}");
        }
    }

    #[test]
    fn a_cool_down_that_is_too_long_for_the_clock_never_ends() {
        let (thresholds, mut circuit) =
            (Thresholds { failures: 1, cool_down: Duration::MAX, ..THRESHOLDS }, Circuit::default());
        circuit.on_call_ended(Instant::now(), busy(), thresholds);
        let denied = Admission::Refused(Denial { wait: None, cause: "busy".into() });
        assert_eq!(circuit.admit(Instant::now(), Uuid::nil(), std::iter::empty()), denied);
    }
}
