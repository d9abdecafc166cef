//! The circuits of a breaker, by key: the state that its clones share.
//!
//! 1. The lock is held over no await, and over no code of the user's.
//! 2. Who was let through as the probe says how it ended exactly once: by its end, or by its drop.
//! 3. A key without recent failures takes no place.

use std::collections::HashMap;

use emitree_runtime::RunContext;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::key::Key;
use super::state::{Admission, Change, Circuit, Denial, Limits, Verdict};

pub(super) struct Circuits {
    pub(super) limits: Limits,
    by_key: Mutex<ByKey>,
}

#[derive(Default)]
struct ByKey {
    circuits: HashMap<Key, Circuit>,
    /// With how many it looks for idle ones next.
    sweep_at: usize,
}

/// A call that was let through.
pub(super) struct Admitted<'a> {
    circuits: &'a Circuits,
    key: &'a Key,
    pub(super) is_probe: bool,
    is_settled: bool,
}

impl Circuits {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, by_key: Mutex::default() }
    }

    /// Lets a call pass, or says why not.
    pub(super) fn admit<'a>(&'a self, key: &'a Key, ctx: &RunContext) -> Result<Admitted<'a>, Denial> {
        let above = std::iter::successors(ctx.parent(), |run| run.parent()).map(RunContext::run_id);
        let admission = match self.by_key.lock().circuits.get_mut(key) {
            Some(circuit) => circuit.admit(Instant::now(), ctx.run_id(), above),
            None => Admission::Passes,
        };
        let is_probe = match admission {
            Admission::Passes => false,
            Admission::Probes => true,
            Admission::Denied(denial) => return Err(denial),
        };
        Ok(Admitted { circuits: self, key, is_probe, is_settled: false })
    }

    fn settle(&self, key: &Key, is_probe: bool, verdict: Verdict) -> Option<Change> {
        let (now, limits) = (Instant::now(), self.limits);
        let mut by_key = self.by_key.lock();
        if is_probe {
            return by_key.circuits.get_mut(key)?.probed(now, verdict, limits);
        }
        let (change, idle) = match verdict {
            Verdict::Failure(_) => by_key.fail(key, now, verdict, limits),
            Verdict::Success | Verdict::Nothing => (None, by_key.forget(key, now, limits)),
        };
        drop(by_key);
        // May hold the last handle of an instance's emitter, whose drop is user code.
        drop(idle);
        change
    }
}

type Idle = Vec<(Key, Circuit)>;

impl ByKey {
    fn fail(&mut self, key: &Key, now: Instant, failure: Verdict, limits: Limits) -> (Option<Change>, Idle) {
        let idle = self.sweep(now, limits);
        (self.circuits.entry(key.clone()).or_default().passed(now, failure, limits), idle)
    }

    /// Takes out those that are idle, whenever there are twice as many as were left the last time.
    fn sweep(&mut self, now: Instant, limits: Limits) -> Idle {
        if self.circuits.len() < self.sweep_at {
            return Idle::new();
        }
        let idle = self.circuits.extract_if(|_, circuit| circuit.is_idle(now, limits)).collect();
        self.sweep_at = 2 * self.circuits.len() + 16;
        idle
    }

    /// Takes it out, if it is idle.
    fn forget(&mut self, key: &Key, now: Instant, limits: Limits) -> Idle {
        let is_idle = self.circuits.get(key).is_some_and(|circuit| circuit.is_idle(now, limits));
        if is_idle { self.circuits.remove_entry(key).into_iter().collect() } else { Idle::new() }
    }
}

impl Admitted<'_> {
    /// Says how it ended.
    pub(super) fn settle(mut self, verdict: Verdict) -> Option<Change> {
        self.is_settled = true;
        self.circuits.settle(self.key, self.is_probe, verdict)
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if !self.is_settled && self.is_probe {
            self.circuits.settle(self.key, true, Verdict::Nothing);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_without_recent_failures_takes_no_place() {
        let second = Duration::from_secs(1);
        let circuits = Circuits::new(Limits { failures: 2, window: 30 * second, cool_down: second });
        let len = || circuits.by_key.lock().circuits.len();
        for n in 0..1_000 {
            assert_eq!(circuits.settle(&Key::Named(n.to_string()), false, Verdict::Failure("busy".into())), None);
            assert!(len() <= 2 * 31 + 16, "{}", len());
            advance(second).await;
        }
        let last = Key::Named("999".to_owned());
        advance(29 * second).await;
        let before = len();
        circuits.settle(&last, false, Verdict::Success);
        assert_eq!(len(), before, "its failure is within the window");
        advance(second).await;
        circuits.settle(&last, false, Verdict::Success);
        assert_eq!(len(), before - 1);
    }
}
