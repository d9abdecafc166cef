//! Detects cycles of waits, across all caches of the process: a run that would wait for itself does not wait.
//!
//! 1. While a run follows a flight `f`, every flight led by this run or a run above it waits for `f`.
//! 2. All waits are checked and registered under one lock, so the last wait of a cycle is always refused.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Maps each flight to the flights that it waits for, with one entry for each waiting run.
static WAITS: Mutex<BTreeMap<u64, Vec<u64>>> = Mutex::new(BTreeMap::new());

/// A registered wait. Dropping it removes the wait from `WAITS`.
pub(super) struct Wait {
    led: Vec<u64>,
    awaited: u64,
}

impl Wait {
    /// Registers that the flights in `led` wait for `awaited`. If that would close a cycle, registers nothing and
    /// returns `None`.
    pub(super) fn of(led: Vec<u64>, awaited: u64) -> Option<Self> {
        // If `led` is empty, no follower waits for this run or a run above it, so the wait cannot close a cycle.
        if !led.is_empty() {
            let mut waits = WAITS.lock();
            if leads_to(&waits, awaited, &led) {
                return None;
            }
            led.iter().for_each(|led| waits.entry(*led).or_default().push(awaited));
        }
        Some(Self { led, awaited })
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if self.led.is_empty() {
            return;
        }
        let mut waits = WAITS.lock();
        for led in &self.led {
            let Some(awaited) = waits.get_mut(led) else { continue };
            // Remove only one entry: another run below the leader of `led` may also wait for this flight.
            if let Some(at) = awaited.iter().position(|awaited| *awaited == self.awaited) {
                awaited.swap_remove(at);
            }
            if awaited.is_empty() {
                waits.remove(led);
            }
        }
    }
}

/// Returns `true` if the flight `from` is in `to`, or waits for a flight in `to`, directly or through other flights.
fn leads_to(waits: &BTreeMap<u64, Vec<u64>>, from: u64, to: &[u64]) -> bool {
    let mut left = vec![from];
    let mut seen = Vec::new();
    while let Some(flight) = left.pop() {
        if to.contains(&flight) {
            return true;
        }
        if !seen.contains(&flight) {
            seen.push(flight);
            left.extend(waits.get(&flight).into_iter().flatten());
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::{WAITS, Wait};

    #[test]
    fn a_dropped_wait_blocks_no_other_wait_and_leaves_no_entry() {
        // Ids that no cache uses.
        let one = u64::MAX;
        let other = u64::MAX - 1;
        let waits = [Wait::of(vec![one], other), Wait::of(vec![one], other)];
        assert!(waits.iter().all(Option::is_some) && Wait::of(vec![other], one).is_none());
        drop(waits);
        assert!(Wait::of(vec![other], one).is_some());
        assert!([one, other].iter().all(|flight| !WAITS.lock().contains_key(flight)));
    }
}
