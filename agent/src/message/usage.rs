//! Data that a provider reports with a message: token counts, and the reason why the model stopped.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// The token counts of a model call. A count that the provider does not report is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the request, including cached tokens.
    pub input_tokens: u64,
    /// Tokens of the answer, including reasoning.
    pub output_tokens: u64,
    /// Input tokens that the provider read from its cache.
    pub cached_input_tokens: u64,
    /// Output tokens spent on reasoning.
    pub reasoning_tokens: u64,
    /// `true` if a count is an estimate, because the provider reported none. A sum with an estimate is an estimate.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

impl Usage {
    /// Makes the usage of a call without cached tokens or reasoning.
    #[must_use]
    pub const fn new(input_tokens: u64, output_tokens: u64) -> Self {
        Self { input_tokens, output_tokens, cached_input_tokens: 0, reasoning_tokens: 0, estimated: false }
    }

    /// Makes the estimate of a call whose provider reported no tokens.
    #[must_use]
    pub const fn estimate(input_tokens: u64, output_tokens: u64) -> Self {
        Self { estimated: true, ..Self::new(input_tokens, output_tokens) }
    }

    /// Returns the sum of input and output tokens.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        let add = |to: &mut u64, n: u64| *to = to.saturating_add(n);
        add(&mut self.input_tokens, other.input_tokens);
        add(&mut self.output_tokens, other.output_tokens);
        add(&mut self.cached_input_tokens, other.cached_input_tokens);
        add(&mut self.reasoning_tokens, other.reasoning_tokens);
        self.estimated = self.estimated || other.estimated;
    }
}

/// The reason why a model stopped. In JSON it is a string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
#[non_exhaustive]
pub enum FinishReason {
    /// The answer is complete.
    Stop,
    /// The token limit was reached.
    Length,
    /// The model calls tools.
    ToolCall,
    /// The provider withheld content.
    ContentFilter,
    /// A listener stopped the stream with [`NewToken::stop`](crate::NewToken::stop).
    Stopped,
    /// Another reason, as the provider names it.
    Other(String),
}

impl From<String> for FinishReason {
    fn from(text: String) -> Self {
        match text.as_str() {
            "stop" => Self::Stop,
            // Mistral sends `model_length`, gateways to Anthropic `max_tokens`, and gateways to Gemini `MAX_TOKENS`:
            // <https://docs.mistral.ai/api/#operation/chatCompletion>,
            // <https://docs.claude.com/en/api/handling-stop-reasons>,
            // <https://ai.google.dev/api/generate-content#FinishReason>
            "length" | "model_length" | "max_tokens" | "MAX_TOKENS" => Self::Length,
            // Servers that speak OpenAI's protocol send `tool_calls`.
            "tool_call" | "tool_calls" => Self::ToolCall,
            "content_filter" | "refusal" | "SAFETY" => Self::ContentFilter,
            "stopped" => Self::Stopped,
            _ => Self::Other(text),
        }
    }
}

impl From<FinishReason> for String {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => "stop".to_owned(),
            FinishReason::Length => "length".to_owned(),
            FinishReason::ToolCall => "tool_call".to_owned(),
            FinishReason::ContentFilter => "content_filter".to_owned(),
            FinishReason::Stopped => "stopped".to_owned(),
            FinishReason::Other(text) => text,
        }
    }
}
