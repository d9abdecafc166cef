//! One call of a provider, from the request to the response.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use emitree_emitter::Emitter;
use emitree_middleware::budget::{self, Price};
use emitree_runtime::{Error, Result, RunContext};
use futures_util::StreamExt;
use rust_decimal::Decimal;

use crate::model::events::{ChatStart, ChatSuccess, UsageReported};
use crate::model::incoming::IncomingReply;
use crate::model::passage::Passage;
use crate::model::provider::DynProvider;
use crate::model::received::Received;
use crate::model::response::drop_repeated_calls;
use crate::model::text_stage::TextStage;
use crate::model::{emit, log, not_taken_over};
use crate::{ChatOptions, ChatRequest, ChatResponse, EstimatedTokens, Provider, TokenCounter, ToolSpec, Usage};

/// A provider, with the settings of its model. Clones share the provider.
#[derive(Clone)]
pub(super) struct Backend {
    parts: Arc<Parts>,
    pub(super) price: Option<Price>,
    /// Counts the tokens of an attempt whose provider reports none.
    pub(super) counter: Arc<dyn TokenCounter>,
    pub(super) options: ChatOptions,
    /// `true` if the model has alternatives, so that each response has to name the model that answered.
    pub(super) names_replies: bool,
}

struct Parts {
    provider: Box<dyn DynProvider>,
    emitter: Emitter,
    /// `true` once a warning was logged that a listener changed the model's own `start`.
    is_warned: AtomicBool,
}

impl Backend {
    pub(super) fn new(provider: impl Provider, emitter: Emitter) -> Self {
        let parts = Arc::new(Parts { provider: Box::new(provider), emitter, is_warned: AtomicBool::new(false) });
        let counter = Arc::new(EstimatedTokens);
        Self { parts, price: None, counter, options: ChatOptions::default(), names_replies: false }
    }

    pub(super) fn emitter(&self) -> &Emitter {
        &self.parts.emitter
    }

    /// Returns the name of the model.
    pub(super) fn name(&self) -> &str {
        self.emitter().creator().map_or("", |creator| creator.name())
    }

    /// Checks that the provider accepts tools.
    pub(super) fn check(&self, tools: &[ToolSpec]) -> Result<()> {
        self.parts.provider.check(tools).map_err(|error| error.detail("model", self.name()))
    }

    /// Sends a request and receives the reply. The caller has `received` even if the reply fails, and charges its tokens.
    pub(super) async fn attempt(
        &self,
        input: &ChatRequest,
        ctx: &RunContext,
        received: &mut Received,
    ) -> Result<ChatResponse> {
        received.expect(ctx).await?;
        if ctx.has_listeners() {
            let mut start = self.start(input);
            emit(ctx, &mut start).await?;
            // The guards have seen `input`, so `input` is sent, and not the request that the listeners left in the event.
            if !start.request.is_same_request(input) {
                not_taken_over(ctx, "request", &self.parts.is_warned);
            }
        }
        self.check(&input.tools)?;
        received.sent();
        let mut deltas = self.parts.provider.chat(input, ctx).await?;
        received.begin();
        let passage = Passage::of(ctx);
        let mut stages = passage.as_ref().map(Passage::begin_attempt).unwrap_or_default();
        if let Some(stage) = TextStage::of(ctx) {
            stages.push(stage);
        }
        let mut reply = IncomingReply::new(stages, input.options.stream == Some(true), ctx);
        // A reply that is not streamed passes through the stages in one call.
        let mut arrived = Vec::new();
        let mut is_stopped = false;
        while let Some(delta) = deltas.next().await {
            let delta = delta?;
            received.push(&delta);
            if !reply.streams {
                arrived.push(delta);
            } else if reply.push(delta).await? {
                is_stopped = true;
                break;
            }
        }
        // If a listener stopped the stream, end the provider's call now, because the listeners of the remaining pieces
        // may be slow.
        drop(deltas);
        // The stages are called with `ended` in any case, so that they can add the pieces that they kept back.
        is_stopped |= reply.receive(arrived, true).await?;
        let (mut response, is_as_staged) = reply.finish(is_stopped);
        drop_repeated_calls(&mut response);
        response.is_empty = !is_stopped && received.is_empty();
        if self.names_replies && response.model.is_none() {
            response.model = Some(self.name().to_owned());
        }
        // A reply that a listener has changed is not noted, so it passes the stages again, as a whole.
        if let Some(passage) = passage.filter(|_| is_as_staged) {
            passage.left_stages(&response);
        }
        Ok(response)
    }

    /// Returns the event `start` of an attempt.
    fn start(&self, input: &ChatRequest) -> ChatStart {
        let (server_address, server_port) = self.parts.provider.server().unzip();
        let provider = self.parts.provider.name().to_owned();
        let model = self.name().to_owned();
        ChatStart {
            request: input.clone(),
            provider,
            model,
            server_address: server_address.map(Into::into),
            server_port,
        }
    }

    /// Charges the tokens of an attempt to the budgets of the run. Returns the cost of the tokens, if the model has a
    /// price, and an error if a budget is closed.
    pub(super) async fn charge(&self, usage: Usage, ctx: &RunContext) -> (Option<Decimal>, Result<()>) {
        let tokens = budget::Usage::of(self.name().to_owned())
            .input_tokens(usage.input_tokens)
            .cached_input_tokens(usage.cached_input_tokens)
            .output_tokens(usage.output_tokens);
        let mut tokens = if usage.estimated { tokens.estimated() } else { tokens };
        tokens.cost = self.price.map(|price| price.cost(&tokens));
        (tokens.cost, budget::charge(ctx, tokens).await)
    }

    /// Charges the tokens of a response, and emits `usage` and `success`.
    pub(super) async fn succeed(
        &self,
        mut response: ChatResponse,
        ctx: &RunContext,
        used: Option<Usage>,
    ) -> Result<ChatResponse> {
        // Stages may have removed the counts. If a listener stopped the stream, the piece with the counts may have been
        // dropped.
        let staged = response.usage.filter(|_| used.is_none_or(|used| !used.estimated));
        response.usage = staged.or(used);
        if let Some(usage) = response.usage {
            // Charge first, because the tokens are spent even if a listener fails. Emit the event even if a budget is
            // closed.
            let (cost, charged) = self.charge(usage, ctx).await;
            let emitted = emit(ctx, &mut UsageReported::new(usage, cost, self.name())).await;
            // The error of the budget takes precedence, because it is not retryable.
            charged.and(emitted)?;
            response.cost = cost;
        }
        if !ctx.has_listeners() {
            return Ok(response);
        }
        let mut success = ChatSuccess::new(response);
        emit(ctx, &mut success).await?;
        Ok(success.response)
    }

    /// Charges the tokens of a failed attempt. Returns the error of the attempt, or the error of a closed budget.
    pub(super) async fn fail(&self, error: Error, ctx: &RunContext, used: Option<Usage>) -> Result<ChatResponse> {
        if let Some(usage) = used {
            let (cost, charged) = self.charge(usage, ctx).await;
            log(emit(ctx, &mut UsageReported::new(usage, cost, self.name())).await, "usage");
            charged?;
        }
        Err(error)
    }
}
