//! The circuits of a breaker, by key. All clones of the breaker share them.
//!
//! 1. Nothing is awaited and no user code runs under the lock.
//! 2. Every probe reports its end exactly once: in `settle`, or in its drop.
//! 3. A key without an entry has a closed circuit without failures. Only a failure adds an entry. An entry is added
//!    only while the number of entries, not counting circuits that are being probed, is below the maximum.

use std::collections::HashMap;

use emitree_runtime::RunContext;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::state::{Admission, CallOutcome, Circuit, Denial, Thresholds, Transition};
use crate::shared::key::OwnedKey;

pub(super) struct Circuits {
    pub(super) thresholds: Thresholds,
    table: Mutex<CircuitTable>,
}

#[derive(Default)]
struct CircuitTable {
    circuits: HashMap<OwnedKey, Circuit>,
    /// The number of circuits at which idle circuits are removed next.
    sweep_at: usize,
}

/// Removed circuits, to be dropped after unlocking: a key may hold the last handle to an instance's emitter, whose drop
/// may call user code (1).
type RemovedCircuits = Vec<(OwnedKey, Circuit)>;

/// An admitted call. If a probe is dropped before it has settled, the next call becomes the probe.
pub(super) struct Admitted<'a> {
    circuits: &'a Circuits,
    key: &'a OwnedKey,
    pub(super) is_probe: bool,
    is_settled: bool,
}

impl Circuits {
    pub(super) fn new(thresholds: Thresholds) -> Self {
        Self { thresholds, table: Mutex::default() }
    }

    /// Admits a call, or returns the reason for its refusal.
    pub(super) fn admit<'a>(&'a self, key: &'a OwnedKey, ctx: &RunContext) -> Result<Admitted<'a>, Denial> {
        let above = std::iter::successors(ctx.parent(), |run| run.parent()).map(RunContext::run_id);
        let admission = match self.table.lock().circuits.get_mut(key) {
            Some(circuit) => circuit.admit(Instant::now(), ctx.run_id(), above),
            // The circuit of a key without an entry is closed (3).
            None => Admission::Passes,
        };
        let is_probe = match admission {
            Admission::Passes => false,
            Admission::Probes => true,
            Admission::Refused(denial) => return Err(denial),
        };
        Ok(Admitted { circuits: self, key, is_probe, is_settled: false })
    }

    /// Records the end of a call.
    fn settle(&self, key: &OwnedKey, is_probe: bool, outcome: CallOutcome) -> Option<Transition> {
        let now = Instant::now();
        let thresholds = self.thresholds;
        let mut table = self.table.lock();
        if is_probe {
            return table.circuits.get_mut(key)?.on_probe_ended(now, outcome, thresholds);
        }
        // Successes and uncounted calls add no entry: they only remove the entry of an idle circuit (3).
        let (transition, removed) = match outcome {
            CallOutcome::Failure(_) => table.record_failure(key, now, outcome, thresholds),
            CallOutcome::Success | CallOutcome::Uncounted => (None, table.remove_if_idle(key, now, thresholds)),
        };
        drop(table);
        drop(removed);
        transition
    }
}

impl CircuitTable {
    /// Records a failure. If the key is new, makes room for it first.
    fn record_failure(
        &mut self,
        key: &OwnedKey,
        now: Instant,
        outcome: CallOutcome,
        thresholds: Thresholds,
    ) -> (Option<Transition>, RemovedCircuits) {
        let removed =
            if self.circuits.contains_key(key) { RemovedCircuits::new() } else { self.make_room(now, thresholds) };
        (self.circuits.entry(key.clone()).or_default().on_call_ended(now, outcome, thresholds), removed)
    }

    /// Removes idle circuits if the number of circuits has more than doubled since the last removal, or if the table is
    /// full. If the table is still full, removes the oldest eighth, so that the next keys are added without another
    /// search.
    fn make_room(&mut self, now: Instant, thresholds: Thresholds) -> RemovedCircuits {
        if self.circuits.len() < self.sweep_at.min(thresholds.keys) {
            return RemovedCircuits::new();
        }
        let mut removed: RemovedCircuits =
            self.circuits.extract_if(|_, circuit| circuit.is_idle(now, thresholds)).collect();
        if self.circuits.len() >= thresholds.keys {
            removed.extend(self.remove_oldest(thresholds.keys - thresholds.keys.div_ceil(8)));
        }
        self.sweep_at = 2 * self.circuits.len() + 16;
        removed
    }

    /// Removes the circuits that failed least recently, until `left` circuits remain. Circuits without a last failure,
    /// such as circuits with a running probe, stay.
    fn remove_oldest(&mut self, left: usize) -> RemovedCircuits {
        let mut surplus = self.circuits.len().saturating_sub(left);
        let mut failures: Vec<_> = self.circuits.values().filter_map(Circuit::last_failure).collect();
        if surplus == 0 || failures.is_empty() {
            return RemovedCircuits::new();
        }
        // Find the latest failure among the circuits to remove, in linear time. Then remove the circuits that failed at
        // that time or earlier. `surplus` limits the removals among circuits with equal times.
        let last = surplus.min(failures.len()) - 1;
        let until = *failures.select_nth_unstable(last).1;
        let is_old = |circuit: &Circuit| circuit.last_failure().is_some_and(|at| at <= until);
        let take = self.circuits.extract_if(|_, circuit| {
            let is_old = surplus > 0 && is_old(circuit);
            surplus -= usize::from(is_old);
            is_old
        });
        take.collect()
    }

    /// Removes a circuit if it is idle.
    fn remove_if_idle(&mut self, key: &OwnedKey, now: Instant, thresholds: Thresholds) -> RemovedCircuits {
        let is_idle = self.circuits.get(key).is_some_and(|circuit| circuit.is_idle(now, thresholds));
        if is_idle { self.circuits.remove_entry(key).into_iter().collect() } else { RemovedCircuits::new() }
    }
}

impl Admitted<'_> {
    /// Records how the call ended.
    pub(super) fn settle(mut self, outcome: CallOutcome) -> Option<Transition> {
        // Set this first: the drop at the end of this function must not settle again (2).
        self.is_settled = true;
        self.circuits.settle(self.key, self.is_probe, outcome)
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        // A dropped call does not count. Only the drop of a probe changes the circuit.
        if !self.is_settled && self.is_probe {
            self.circuits.settle(self.key, true, CallOutcome::Uncounted);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_without_recent_failures_is_not_kept() {
        let second = Duration::from_secs(1);
        let thresholds = Thresholds { failures: 2, window: 30 * second, cool_down: second, keys: usize::MAX };
        let circuits = Circuits::new(thresholds);
        let len = || circuits.table.lock().circuits.len();
        for n in 0..1_000 {
            assert_eq!(
                circuits.settle(&OwnedKey::Text(n.to_string().into()), false, CallOutcome::Failure("busy".into())),
                None
            );
            assert!(len() <= 2 * 31 + 16, "{}", len());
            advance(second).await;
        }
        let last = OwnedKey::Text("999".into());
        advance(29 * second).await;
        let before = len();
        circuits.settle(&last, false, CallOutcome::Success);
        assert_eq!(len(), before, "its failure is within the window");
        advance(second).await;
        circuits.settle(&last, false, CallOutcome::Success);
        assert_eq!(len(), before - 1);
    }

    fn open(circuits: &Circuits, n: u32) {
        circuits.settle(&OwnedKey::Text(n.to_string().into()), false, CallOutcome::Failure("busy".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn open_circuits_are_kept_up_to_the_maximum_and_the_latest_stay() {
        let second = Duration::from_secs(1);
        for (keys, cool_down) in [(1, second), (2, second), (100, second), (100, Duration::MAX)] {
            let circuits = Circuits::new(Thresholds { failures: 1, window: second, cool_down, keys });
            for n in 0..1_000 {
                open(&circuits, n);
                let is_known = circuits.table.lock().circuits.contains_key(&OwnedKey::Text(n.to_string().into()));
                let known = circuits.table.lock().circuits.len();
                assert!(is_known && known <= keys, "{known} of {keys}");
                advance(second).await;
            }
            // Only the most recent keys are left.
            let known = circuits.table.lock();
            let last =
                |key: &OwnedKey| matches!(key, OwnedKey::Text(n) if n.parse().is_ok_and(|n: usize| n + keys >= 1_000));
            assert!(known.circuits.keys().all(last));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_circuit_that_is_being_probed_is_not_evicted() {
        let second = Duration::from_secs(1);
        let circuits = Circuits::new(Thresholds { failures: 1, window: second, cool_down: second, keys: 4 });
        open(&circuits, 0);
        advance(second).await;
        let first = OwnedKey::Text("0".into());
        let probe = Admission::Probes;
        let now = Instant::now();
        let nobody = std::iter::empty();
        let admitted =
            circuits.table.lock().circuits.get_mut(&first).map(|it| it.admit(now, uuid::Uuid::nil(), nobody));
        assert_eq!(admitted, Some(probe));
        for n in 1..100 {
            open(&circuits, n);
        }
        assert!(circuits.table.lock().circuits.len() <= 5);
        assert_eq!(circuits.settle(&first, true, CallOutcome::Success), Some(Transition::Closed));
    }
}
