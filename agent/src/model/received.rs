//! What a provider has sent in an attempt, before stages and listeners: its tokens, or an estimate, and whether the
//! reply is empty.

use std::sync::Arc;

use emitree_middleware::budget;
use emitree_runtime::{Result, RunContext};

use crate::{ChatRequest, Delta, FinishReason, Message, TokenCounter, Usage};

/// The reply of a provider, as far as it has arrived.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// The counts that the provider has reported.
    reported: Option<Usage>,
    finish_reason: Option<FinishReason>,
    /// `true` if a text that is not blank, or a call, has arrived.
    has_content: bool,
    /// `true` once the provider has begun to reply: a request that was refused has used no tokens.
    has_begun: bool,
    /// All text so far, with reasoning and arguments, if a budget limits tokens or cost. Otherwise, nobody needs an
    /// estimate, and the text is not kept.
    counted: Option<String>,
}

impl Received {
    /// Prepares an attempt.
    ///
    /// # Errors
    ///
    /// Returns an error if a budget denies the call.
    pub(super) async fn expect(&mut self, ctx: &RunContext) -> Result<()> {
        if budget::expects_usage(ctx).await? {
            self.counted = Some(String::new());
        }
        Ok(())
    }

    pub(super) const fn begin(&mut self) {
        self.has_begun = true;
    }

    pub(super) fn push(&mut self, delta: &Delta) {
        match delta {
            Delta::Text(text) => {
                self.has_content = self.has_content || !text.trim().is_empty();
                self.count(text);
            }
            Delta::Reasoning(text) => self.count(text),
            Delta::ToolCall { name, arguments, .. } => {
                self.has_content = true;
                self.count(name.as_deref().unwrap_or_default());
                self.count(arguments);
            }
            Delta::Usage(usage) => self.reported = Some(*usage),
            Delta::Finish(reason) => self.finish_reason = Some(reason.clone()),
            _ => {}
        }
    }

    fn count(&mut self, text: &str) {
        if let Some(counted) = &mut self.counted {
            counted.push_str(text);
        }
    }

    /// Returns `true` if the reply has ended without text and calls, and names no reason for it.
    pub(super) fn is_empty(&self) -> bool {
        use FinishReason::{ContentFilter, Length, Stopped};
        !self.has_content && !matches!(self.finish_reason, Some(ContentFilter | Length | Stopped))
    }

    /// Returns the tokens to charge: those that the provider has reported, or an estimate if a budget limits them.
    pub(super) fn usage(&self, request: &ChatRequest, counter: &dyn TokenCounter, ctx: &RunContext) -> Option<Usage> {
        let Some(text) = &self.counted else { return self.reported };
        if !self.has_begun {
            return self.reported;
        }
        // Servers that do not count report zeros, and some have counted only the request when their reply breaks off.
        let mut usage = self.reported.unwrap_or_default();
        if usage.input_tokens == 0 {
            usage.input_tokens = counter.count(&messages_of(request), ctx);
            usage.estimated = true;
        }
        if usage.output_tokens == 0 && !text.is_empty() {
            usage.output_tokens = counter.count(&[Arc::new(Message::assistant(text))], ctx);
            usage.estimated = true;
        }
        Some(usage)
    }
}

/// Returns all that a request sends, as messages: the system prompt and the tools come first.
fn messages_of(request: &ChatRequest) -> Vec<Arc<Message>> {
    let mut first = request.system.clone().unwrap_or_default();
    for tool in request.tools.iter() {
        first.push_str(&tool.name);
        first.push_str(&tool.description);
        first.push_str(&tool.parameters.to_string());
    }
    let mut messages = Vec::with_capacity(request.messages.len() + 1);
    if !first.is_empty() {
        messages.push(Arc::new(Message::system(first)));
    }
    messages.extend(request.messages.iter().cloned());
    messages
}
