//! The tokens of messages: [`TokenCounter`], and the correction of estimates by the tokens that a provider reported.
//!
//! Requests are measured only in runs in which a counter has asked, so that other runs do not pay for the estimates.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use emitree_runtime::RunContext;
use serde::{Deserialize, Serialize};

use crate::agent::turn::LoopState;
use crate::place::state::State;
use crate::{ChatRequest, Message, Usage};

/// Counts the tokens of messages, for middlewares that limit the length of a conversation.
///
/// A closure that takes messages and the context of the run is a counter, for example one that calls a tokenizer. The
/// default of the built-in middlewares is [`EstimatedTokens`].
///
/// ```
/// use std::sync::Arc;
/// use emitree_agent::{Message, TokenCounter};
/// use emitree_runtime::RunContext;
///
/// // One token for each word.
/// fn words(messages: &[Arc<Message>], _: &RunContext) -> u64 {
///     messages.iter().map(|message| message.text().split_whitespace().count() as u64).sum()
/// }
/// fn is_a_counter(_: impl TokenCounter) {}
/// is_a_counter(words);
/// ```
pub trait TokenCounter: Send + Sync + 'static {
    /// Returns the number of tokens. Middlewares may count a conversation in pieces, and add the counts. `ctx` is the
    /// run in which the messages are counted, usually the run of an agent.
    fn count(&self, messages: &[Arc<Message>], ctx: &RunContext) -> u64;
}

impl<F> TokenCounter for F
where
    F: Fn(&[Arc<Message>], &RunContext) -> u64 + Send + Sync + 'static,
{
    fn count(&self, messages: &[Arc<Message>], ctx: &RunContext) -> u64 {
        self(messages, ctx)
    }
}

/// A [`TokenCounter`] that estimates from the length of the text: a quarter of
/// [`text_len`](crate::Message::text_len), and 8 tokens for each message.
///
/// In the run of an agent and below, the estimate is corrected by the last call of the agent's model: it is multiplied
/// by the `input_tokens` that the provider reported, and divided by the estimate for that request, which includes the
/// system prompt and the tools. The factor is at least 1/4 and at most 4. Without such a report, the factor is 1. A
/// call is measured if a counter was asked before it in the same run.
///
/// # What it remembers
///
/// The two numbers of the last report, in the session, as the state `token_counter`.
#[derive(Clone, Copy, Debug, Default)]
pub struct EstimatedTokens;

impl TokenCounter for EstimatedTokens {
    fn count(&self, messages: &[Arc<Message>], ctx: &RunContext) -> u64 {
        Measured::of(ctx).correct(estimate(messages))
    }
}

/// The last call of the model that was measured. It is kept in the session, so that the first call of a run is corrected
/// too.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The provider's count.
    reported: u64,
    /// Our estimate; 0 before the first report.
    estimated: u64,
}

static STATE: LazyLock<State<Measured>> = LazyLock::new(|| State::new("token_counter"));

impl Measured {
    /// Returns the last measurement of the nearest agent's session. From now on, the agent's run measures its calls.
    pub(crate) fn of(ctx: &RunContext) -> Self {
        let Some(state) = ctx.extension::<LoopState>() else { return Self::default() };
        state.measures.store(true, Ordering::Relaxed);
        // The state cannot be used in a tool of a discarded attempt, whose counts nobody needs any more.
        STATE.with(ctx, |measured| *measured).unwrap_or_default()
    }

    /// Returns the estimate for a request, if the run measures its calls.
    pub(crate) fn begin(state: &LoopState, request: &ChatRequest) -> Option<u64> {
        state.measures.load(Ordering::Relaxed).then(|| estimate_request(request))
    }

    /// Remembers the tokens that the provider reported for a request with this estimate.
    pub(crate) fn end(estimated: Option<u64>, usage: Option<Usage>, ctx: &RunContext) {
        // An estimate says nothing about the provider's tokenizer.
        let reported = usage.filter(|usage| !usage.estimated);
        if let (Some(estimated), Some(Usage { input_tokens: reported @ 1.., .. })) = (estimated, reported) {
            let measured = Self { reported, estimated };
            // If a middleware of the user keeps another type under this id, counts stay uncorrected.
            STATE.with(ctx, |last| *last = measured).ok();
        }
    }

    pub(crate) fn correct(self, estimated: u64) -> u64 {
        if self.estimated == 0 {
            return estimated;
        }
        let reported = self.reported.clamp(self.estimated / 4, self.estimated.saturating_mul(4));
        let corrected = (u128::from(estimated) * u128::from(reported)).div_ceil(u128::from(self.estimated));
        u64::try_from(corrected).unwrap_or(u64::MAX)
    }
}

/// Estimates the tokens of messages: a quarter of the text, and 8 for each message.
pub(crate) fn estimate(messages: &[Arc<Message>]) -> u64 {
    let text: usize = messages.iter().map(|message| message.text_len()).sum();
    (text.div_ceil(4) + 8 * messages.len()) as u64
}

fn estimate_request(request: &ChatRequest) -> u64 {
    let tools = request.tools.iter();
    let tools: usize = tools.map(|it| it.name.len() + it.description.len() + it.parameters.to_string().len()).sum();
    let system = request.system.as_ref().map_or(0, String::len);
    estimate(&request.messages) + (tools + system).div_ceil(4) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_corrected_by_a_factor_between_a_quarter_and_four() {
        let table = [
            // reported, estimated, estimate, corrected
            (0, 0, 100, 100),
            (150, 100, 100, 150),
            (50, 100, 100, 50),
            (1, 100, 100, 25),
            (1_000, 100, 100, 400),
            (3, 2, 3, 5),
            (u64::MAX, u64::MAX, u64::MAX, u64::MAX),
            (u64::MAX, 1, u64::MAX, u64::MAX),
        ];
        for (reported, estimated, estimate, corrected) in table {
            assert_eq!(Measured { reported, estimated }.correct(estimate), corrected, "{reported} of {estimated}");
        }
    }
}
