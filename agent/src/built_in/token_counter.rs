//! The tokens of messages: [`TokenCounter`].

use std::sync::Arc;

use emitree_runtime::RunContext;

use crate::Message;
use crate::place::measured::{Measured, estimate};

/// Counts the tokens of messages, for middlewares that limit the length of a conversation.
///
/// A closure that takes messages and the context of the run is a counter, for example one that calls a tokenizer. The
/// default of the built-in middlewares is [`EstimatedTokens`].
///
/// ```
/// use std::sync::Arc;
/// use emitree_agent::built_in::SlidingWindow;
/// use emitree_agent::{Agent, ChatModel, Message, ScriptedModel};
/// use emitree_runtime::RunContext;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// // One token for each word.
/// let words = |messages: &[Arc<Message>], _: &RunContext| {
///     messages.iter().map(|message| message.text().split_whitespace().count() as u64).sum::<u64>()
/// };
/// let script = ScriptedModel::new("test").text("Fine.");
/// let agent = Agent::builder("friend", ChatModel::new(script.clone())?)
///     .with(SlidingWindow::tokens(4).counter(words))
///     .build()?;
/// agent.ask(vec![Message::user("I am Ada Lovelace."), Message::user("How are you?")]).await?;
/// assert_eq!(script.requests()[0].messages.len(), 1);
/// # Ok(())
/// # }
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
