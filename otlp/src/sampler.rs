//! The choice of the traces that are exported.

use uuid::Uuid;

/// The number of values of the random part of a trace id: its last 56 bits, as W3C Trace Context Level 2 defines. The
/// bits before them are not random in the version 7 UUIDs that emitree makes.
const RANDOM: u64 = 1 << 56;

/// Decides which traces are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sampler {
    /// Traces whose random part is at least this number are exported.
    threshold: u64,
}

impl Sampler {
    pub(crate) const ALWAYS: Self = Self { threshold: 0 };

    /// Exports this share of the traces, from 0 to 1.
    pub(crate) fn ratio(share: f64) -> Self {
        Self { threshold: ((1.0 - share) * RANDOM as f64) as u64 }
    }

    pub(crate) fn takes(self, trace: Uuid) -> bool {
        let (_, low) = trace.as_u64_pair();
        low % RANDOM >= self.threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_share_of_the_traces_that_are_exported() {
        let ids: Vec<Uuid> = (0..20_000).map(|_| emitree_emitter::new_id()).collect();
        for share in [0.0, 0.1, 0.5, 0.9, 1.0] {
            let taken = ids.iter().filter(|id| Sampler::ratio(share).takes(**id)).count();
            let expected = share * 20_000.0;
            assert!((taken as f64 - expected).abs() <= expected.min(20_000.0 - expected) * 0.2, "{share}: {taken}");
        }
        assert!(ids.iter().all(|id| Sampler::ALWAYS.takes(*id)));
    }
}
