//! Who waits for whom, in all caches: where a wait would come round to itself, nobody waits.
//!
//! 1. What waits for a flight is every flight that is led by a run above the one that has joined it.
//! 2. Of the waits that would close a circle, the last to come finds that: all are entered under one lock.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// What each flight waits for; as often as it does.
static WAITS: Mutex<BTreeMap<u64, Vec<u64>>> = Mutex::new(BTreeMap::new());

/// A wait under way.
pub(super) struct Wait {
    led: Vec<u64>,
    awaited: u64,
}

impl Wait {
    /// Below those flights, waits for another; none where that is one of them, or waits for one.
    pub(super) fn of(led: Vec<u64>, awaited: u64) -> Option<Self> {
        // Nobody can wait for who leads nothing.
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
            if let Some(at) = awaited.iter().position(|awaited| *awaited == self.awaited) {
                awaited.swap_remove(at);
            }
            if awaited.is_empty() {
                waits.remove(led);
            }
        }
    }
}

/// Whether a flight is one of those, or waits for one, however far.
fn leads_to(waits: &BTreeMap<u64, Vec<u64>>, from: u64, to: &[u64]) -> bool {
    let (mut left, mut seen) = (vec![from], Vec::new());
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
    fn who_waits_no_more_keeps_nobody_from_waiting_and_leaves_nothing_behind() {
        // Flights that no cache has.
        let (one, other) = (u64::MAX, u64::MAX - 1);
        let waits = [Wait::of(vec![one], other), Wait::of(vec![one], other)];
        assert!(waits.iter().all(Option::is_some) && Wait::of(vec![other], one).is_none());
        drop(waits);
        assert!(Wait::of(vec![other], one).is_some());
        assert!([one, other].iter().all(|flight| !WAITS.lock().contains_key(flight)));
    }
}
