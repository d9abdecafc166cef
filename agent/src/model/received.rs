//! What a provider has sent in an attempt, before stages and listeners: its tokens, or an estimate, and whether the
//! reply is empty.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use emitree_emitter::panic_text;
use emitree_middleware::budget;
use emitree_runtime::{Result, RunContext};
use futures_util::FutureExt;

use crate::model::backend::Backend;
use crate::{ChatRequest, Delta, FinishReason, Message, TokenCounter, Usage};

/// The reply of a provider, as far as it has arrived.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// The counts that the provider has reported.
    reported: Option<Usage>,
    finish_reason: Option<FinishReason>,
    /// `true` if a text that is not blank, or a call, has arrived.
    has_content: bool,
    progress: Progress,
    /// All text so far, with reasoning and arguments, if a budget limits tokens or cost. Otherwise, nobody needs an
    /// estimate, and the text is not kept.
    counted: Option<String>,
}

/// How far a call of the provider has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    #[default]
    NotSent,
    /// If the call is dropped now, nobody knows whether the provider has begun: its tokens are charged. If it fails, the
    /// request was refused, and has used no tokens.
    Sent,
    Begun,
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

    /// Notes that the request is about to be sent.
    pub(super) const fn sent(&mut self) {
        self.progress = Progress::Sent;
    }

    /// Notes that the provider has begun to reply.
    pub(super) const fn begin(&mut self) {
        self.progress = Progress::Begun;
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

    /// Returns the tokens to charge if the attempt is dropped now.
    fn usage_if_dropped(
        &mut self,
        request: &ChatRequest,
        counter: &dyn TokenCounter,
        ctx: &RunContext,
    ) -> Option<Usage> {
        if self.progress == Progress::Sent {
            self.progress = Progress::Begun;
        }
        self.usage(request, counter, ctx)
    }

    /// Returns the tokens to charge: those that the provider has reported, or an estimate if a budget limits them.
    fn usage(&self, request: &ChatRequest, counter: &dyn TokenCounter, ctx: &RunContext) -> Option<Usage> {
        let Some(text) = &self.counted else { return self.reported };
        if self.progress != Progress::Begun {
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

/// One attempt. If it is dropped before its end, for example by a timeout, its tokens are charged nevertheless (A9):
/// else a slow server would pass every budget.
pub(super) struct Attempt<'a> {
    backend: &'a Backend,
    input: &'a ChatRequest,
    ctx: &'a RunContext,
    pub(super) received: Received,
    has_ended: bool,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(backend: &'a Backend, input: &'a ChatRequest, ctx: &'a RunContext) -> Self {
        Self { backend, input, ctx, received: Received::default(), has_ended: false }
    }

    /// Ends the attempt, and returns its tokens, for the caller to charge: the provider's counts, or an estimate if a
    /// budget limits them.
    pub(super) fn end(&mut self) -> Option<Usage> {
        self.has_ended = true;
        self.received.usage(self.input, &*self.backend.counter, self.ctx)
    }

    fn charge_dropped(&mut self) {
        let Some(usage) = self.received.usage_if_dropped(self.input, &*self.backend.counter, self.ctx) else { return };
        // The first poll records the usage, and nobody is left to wait for listeners. A budget that this closes stops the
        // run that holds it.
        let _ = self.backend.charge(usage, self.ctx).now_or_never();
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        // Counters, prices and listeners are user code, and this drop may be part of a panic.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.charge_dropped())) {
            let panic = panic_text(payload);
            tracing::warn!(panic, "the tokens of a dropped call were not charged");
        }
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
