//! Tokens of models, which are added up for the agents above.

use emitree_sinks::runs::Run;

/// Tokens of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tokens {
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) cached_input: u64,
    pub(super) reasoning: u64,
    pub(super) is_estimated: bool,
}

impl Tokens {
    /// Returns the tokens of a run, without the runs below.
    pub(super) const fn of(run: &Run) -> Self {
        Self {
            input: run.input_tokens,
            output: run.output_tokens,
            cached_input: run.cached_input_tokens,
            reasoning: run.reasoning_tokens,
            is_estimated: run.is_estimated,
        }
    }

    pub(super) const fn plus(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            output: self.output.saturating_add(other.output),
            cached_input: self.cached_input.saturating_add(other.cached_input),
            reasoning: self.reasoning.saturating_add(other.reasoning),
            is_estimated: self.is_estimated || other.is_estimated,
        }
    }
}
