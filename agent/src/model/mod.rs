//! Language models as runs.

pub(crate) mod chunks;
pub(crate) mod events;
pub(crate) mod provider;
pub(crate) mod registry;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod scripted;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use emitree_emitter::{BuildError, Creator, Emitter, Event};
use emitree_middleware::budget::{self, Price};
use emitree_runtime::{Error, IntoMiddleware, Middleware, Result, RunContext, Runnable};
use futures_util::StreamExt;
use rust_decimal::Decimal;

use crate::model::chunks::{ChunkStage, Chunks, RunStages};
use crate::model::events::{ChatError, ChatFinish, ChatStart, ChatSuccess, NewToken, ResponseHeaders, UsageReported};
use crate::model::provider::DynProvider;
use crate::model::response::ResponseBuilder;
use crate::{ChatRequest, ChatResponse, Delta, Provider, Usage};

/// A language model. Each call is a run of the kind `ChatModel`.
///
/// ```
/// use emitree_agent::{ChatModel, NewToken, ScriptedModel};
/// use emitree_runtime::Runnable;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let model = ChatModel::new(ScriptedModel::new("test").text("Hello, world!"))?;
/// let answer = model
///     .run("Say hello.".into())
///     .on_start(|start, _| start.input.options.stream = Some(true))
///     .on("new_token", |token: &mut NewToken, _| print!("{}", token.text()))
///     .await?;
/// assert_eq!(answer.text(), "Hello, world!");
/// # Ok(())
/// # }
/// ```
///
/// # Its own events
///
/// The run emits these events in the namespace `backend.chat.<provider>`, and only while it has listeners. If a listener
/// fails, the attempt fails; if the attempt has already failed, the listener's error is only logged.
///
/// | event | payload | when |
/// |---|---|---|
/// | `start` | [`ChatStart`] | before a request is sent; a listener may change it |
/// | `response_headers` | [`ResponseHeaders`] | the provider begins to answer, if it reports headers |
/// | `new_token` | [`NewToken`] | each piece of text, if the request enables streaming; a listener may change it, or stop the stream |
/// | `usage` | [`UsageReported`] | the reply is complete or has failed, and the tokens that the provider reported have been charged |
/// | `success` | [`ChatSuccess`] | the reply is complete; a listener may change it |
/// | `error` | [`ChatError`] | the attempt has failed, unless only a listener of `finish` failed |
/// | `finish` | [`ChatFinish`] | after `success` or `error` |
///
/// Each attempt emits these events, so a run with a layer that calls the model again, such as `Retry`, emits them
/// several times. On a run above, listen for the paths of these events: `"backend.chat.*.new_token"`, or
/// `"**.new_token"` for any model.
///
/// # Cost and budgets
///
/// The tokens that a provider reports are charged to the [`Budget`](emitree_middleware::Budget)s of the run and of the
/// runs above, under the name of the model. If the model has a [price](Self::price), the cost of these tokens is
/// computed from it. The response then contains this cost, and budgets use it instead of their own prices.
///
/// Each attempt is charged once, when its reply is complete or fails. If an attempt fails or a listener stops its
/// stream before the provider has reported tokens, nothing is charged. A response that a layer returns instead of the
/// model, such as a cached response, is not charged. A cached response keeps the usage and the cost of the original
/// call. A [`ChunkStage`](crate::ChunkStage) may change the token counts; if it removes them, the counts of the
/// provider are used. A listener of `success` that changes the usage or the cost does not change the charge.
///
/// # Cancel safety
///
/// Dropping or aborting the run drops the provider's future or stream, and thereby ends the provider's call. If the
/// reply is still incomplete, nothing is charged.
#[derive(Clone)]
pub struct ChatModel {
    shared: Arc<ModelParts>,
    price: Option<Price>,
    middlewares: Vec<Arc<dyn Middleware>>,
}

struct ModelParts {
    provider: Box<dyn DynProvider>,
    emitter: Emitter,
}

impl ChatModel {
    /// Makes a model from a provider.
    ///
    /// # Errors
    ///
    /// Returns an error if the provider's name is empty or contains characters other than ASCII letters, digits and
    /// `_`.
    pub fn new(provider: impl Provider) -> Result<Self, BuildError> {
        let creator = Creator::new("ChatModel", provider.model().to_owned());
        let emitter = Emitter::root()
            .child_builder(["backend", "chat", provider.name()])
            .creator(creator)
            .declares_event::<ChatStart>()
            .declares_event::<NewToken>()
            .declares_event::<ResponseHeaders>()
            .declares_event::<UsageReported>()
            .declares_event::<ChatSuccess>()
            .declares_event::<ChatError>()
            .declares_event::<ChatFinish>()
            .build()?;
        let shared = Arc::new(ModelParts { provider: Box::new(provider), emitter });
        Ok(Self { shared, price: None, middlewares: Vec::new() })
    }

    /// Binds a middleware to each run of this model and of its later clones.
    #[must_use]
    pub fn middleware<Sort>(mut self, middleware: impl IntoMiddleware<Sort>) -> Self {
        self.middlewares.push(Arc::new(middleware.into_middleware()));
        self
    }

    /// Sets the price from which the cost of each call is computed, for this model and its later clones. By default
    /// there is no price, and calls have no cost.
    ///
    /// ```
    /// use emitree_agent::{ChatModel, Reply, ScriptedModel, Usage};
    /// use emitree_middleware::budget::{Decimal, Price};
    /// use emitree_runtime::Runnable;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let provider = ScriptedModel::new("test").reply(Reply::text("Hi.").usage(Usage::new(1_000_000, 500_000)));
    /// // A million input tokens cost 2, a million output tokens 8.
    /// let model = ChatModel::new(provider)?.price(Price::per_million(2.into(), 8.into())?);
    /// assert_eq!(model.run("Say hi.".into()).await?.cost, Some(Decimal::from(6)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn price(mut self, price: Price) -> Self {
        self.price = Some(price);
        self
    }

    /// Sends a request and receives the reply. Sets `reported` to the tokens that the provider reports, so that the
    /// caller has the counts even if the reply fails.
    async fn attempt(
        &self,
        input: &ChatRequest,
        ctx: &RunContext,
        reported: &mut Option<Usage>,
    ) -> Result<ChatResponse> {
        let mut request = Cow::Borrowed(input);
        if ctx.has_listeners() {
            // The request is copied only if a listener may change it.
            let mut start = ChatStart::new(input.clone());
            emit(ctx, &mut start).await?;
            request = Cow::Owned(start.request);
        }
        let mut deltas = self.shared.provider.chat(&request, ctx).await?;
        let stages = ctx.own_extension::<RunStages>().map(|stages| stages.begin()).unwrap_or_default();
        let mut reply = IncomingReply {
            ctx,
            stages,
            streams: request.options.stream == Some(true),
            builder: ResponseBuilder::new(),
        };
        // A reply that is not streamed passes through the stages in one call.
        let mut arrived = Vec::new();
        while let Some(delta) = deltas.next().await {
            let delta = delta?;
            if let Delta::Usage(usage) = &delta {
                *reported = Some(*usage);
            }
            if !reply.streams {
                arrived.push(delta);
            } else if reply.is_unobserved() {
                reply.builder.push(delta);
            } else if reply.receive_one(delta).await? {
                // End the provider's call now, because the listeners of the remaining pieces may be slow.
                drop(deltas);
                // The stages are called with `ended`, so that they can add the pieces that they kept back.
                reply.receive(Vec::new(), true).await?;
                return Ok(reply.builder.stopped());
            }
        }
        let is_stopped = reply.receive(arrived, true).await?;
        Ok(if is_stopped { reply.builder.stopped() } else { reply.builder.finish() })
    }
}

impl ChatModel {
    /// Charges the tokens of an attempt to the budgets of the run. Returns the cost of the tokens, if the model has a
    /// price, and an error if a budget is closed.
    async fn charge(&self, usage: Usage, ctx: &RunContext) -> (Option<Decimal>, Result<()>) {
        let tokens = budget::Usage::of(self.name().to_owned())
            .input_tokens(usage.input_tokens)
            .cached_input_tokens(usage.cached_input_tokens)
            .output_tokens(usage.output_tokens);
        let cost = self.price.map(|price| price.cost(&tokens));
        let tokens = cost.into_iter().fold(tokens, budget::Usage::cost);
        (cost, budget::charge(ctx, tokens).await)
    }

    /// Charges the tokens of a response, and emits `usage` and `success`.
    async fn succeed(
        &self,
        mut response: ChatResponse,
        ctx: &RunContext,
        reported: Option<Usage>,
    ) -> Result<ChatResponse> {
        // Stages may have removed the counts. If a listener stopped the stream, the piece with the counts may have been
        // dropped.
        response.usage = response.usage.or(reported);
        if let Some(usage) = response.usage {
            // Charge first, because the tokens are spent even if a listener fails. Emit the event even if a budget is
            // closed.
            let (cost, charged) = self.charge(usage, ctx).await;
            let emitted = emit(ctx, &mut UsageReported::new(usage, cost)).await;
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
    async fn fail(&self, error: Error, ctx: &RunContext, reported: Option<Usage>) -> Result<ChatResponse> {
        if let Some(usage) = reported {
            let (cost, charged) = self.charge(usage, ctx).await;
            log(emit(ctx, &mut UsageReported::new(usage, cost)).await, "usage");
            charged?;
        }
        Err(error)
    }
}

/// A reply that is being received.
struct IncomingReply<'a> {
    ctx: &'a RunContext,
    stages: Vec<Box<dyn ChunkStage>>,
    streams: bool,
    builder: ResponseBuilder,
}

impl IncomingReply<'_> {
    /// Returns `true` if there are no stages and no listeners. The next piece can then be added to the response
    /// directly. This is checked for each piece, because a listener may be added at any time.
    fn is_unobserved(&self) -> bool {
        self.stages.is_empty() && !self.ctx.has_listeners()
    }

    /// Passes pieces through the stages, emits them and adds them to the response. Returns `true` if a listener stopped
    /// the stream; the pieces after the stop are dropped.
    async fn receive(&mut self, deltas: Vec<Delta>, ended: bool) -> Result<bool> {
        let mut chunks = Chunks { deltas, ended };
        for stage in &mut self.stages {
            stage.pass(&mut chunks, self.ctx)?;
            // A stage may have changed `ended`, so it is set again for the next stage.
            chunks.ended = ended;
        }
        for delta in chunks.deltas {
            let (delta, stops) = self.announce(delta).await?;
            self.builder.push(delta);
            if stops {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Receives one piece of a stream. Without stages, no list is allocated for the piece.
    async fn receive_one(&mut self, delta: Delta) -> Result<bool> {
        if !self.stages.is_empty() {
            return self.receive(vec![delta], false).await;
        }
        let (delta, stops) = self.announce(delta).await?;
        self.builder.push(delta);
        Ok(stops)
    }

    /// If a piece has an event and the run has listeners, emits the event. Returns the piece, which listeners may have
    /// changed, and `true` if a listener stopped the stream.
    async fn announce(&mut self, delta: Delta) -> Result<(Delta, bool)> {
        if !self.ctx.has_listeners() {
            return Ok((delta, false));
        }
        match delta {
            Delta::Text(text) if self.streams => {
                let mut token = NewToken::new(text, false);
                emit(self.ctx, &mut token).await?;
                let stops = token.stops();
                Ok((Delta::Text(token.text), stops))
            }
            Delta::Reasoning(text) if self.streams => {
                let mut token = NewToken::new(text, true);
                emit(self.ctx, &mut token).await?;
                let stops = token.stops();
                Ok((Delta::Reasoning(token.text), stops))
            }
            Delta::Headers(headers) => {
                let mut event = ResponseHeaders::new(headers);
                emit(self.ctx, &mut event).await?;
                Ok((Delta::Headers(event.headers), false))
            }
            other => Ok((other, false)),
        }
    }
}

/// Emits one of a run's own events, if the run has listeners.
pub(crate) async fn emit<E: Event>(ctx: &RunContext, event: &mut E) -> Result<()> {
    if ctx.has_listeners() {
        ctx.emitter().emit_event(event).await?;
    }
    Ok(())
}

/// Logs the error of a listener that failed after the attempt had failed.
pub(crate) fn log(emitted: Result<()>, event: &str) {
    if let Err(error) = emitted {
        tracing::warn!(%error, event, "a listener failed after the attempt had failed");
    }
}

impl Runnable for ChatModel {
    type Input = ChatRequest;
    type Output = ChatResponse;

    fn emitter(&self) -> &Emitter {
        &self.shared.emitter
    }

    async fn execute(&self, input: &ChatRequest, ctx: &RunContext) -> Result<ChatResponse> {
        let mut reported = None;
        let result = match self.attempt(input, ctx, &mut reported).await {
            Ok(response) => self.succeed(response, ctx, reported).await,
            Err(error) => self.fail(error, ctx, reported).await,
        };
        if !ctx.has_listeners() {
            return result;
        }
        if let Err(error) = &result {
            // The error of the attempt is returned, and the error of a listener is logged.
            log(emit(ctx, &mut ChatError::new(error.report())).await, "error");
        }
        let finished = emit(ctx, &mut ChatFinish {}).await;
        if result.is_ok() {
            return finished.and(result);
        }
        log(finished, "finish");
        result
    }

    fn middlewares(&self) -> &[Arc<dyn Middleware>] {
        &self.middlewares
    }
}

impl fmt::Debug for ChatModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModelParts { emitter, .. } = &*self.shared;
        f.debug_struct("ChatModel")
            .field("name", &self.name())
            .field("namespace", &emitter.namespace())
            .finish_non_exhaustive()
    }
}
