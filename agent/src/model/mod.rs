//! Language models as runs.

mod alternatives;
mod backend;
pub(crate) mod chunks;
pub(crate) mod events;
pub(crate) mod incoming;
pub(crate) mod passage;
pub(crate) mod provider;
mod received;
pub(crate) mod registry;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod scripted;
pub(crate) mod text_stage;
pub(crate) mod tokens;
pub(crate) mod tool_calls;

use std::fmt;
use std::iter::successors;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_emitter::{BuildError, Creator, Emitter, Event};
use emitree_middleware::budget::Price;
use emitree_runtime::{IntoMiddleware, Middleware, Result, RunContext, Runnable};
use futures_core::future::BoxFuture;

use crate::model::backend::Backend;
use crate::model::events::{
    ChatError, ChatFinish, ChatStart, ChatSuccess, ModelFellBack, NewToken, ResponseHeaders, UsageReported,
};
use crate::model::received::Attempt;
use crate::model::tool_calls::events::{ToolCallDelta, ToolCallStarted};
use crate::{ChatOptions, ChatRequest, ChatResponse, Provider, TokenCounter, ToolSpec};

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
/// | `start` | [`ChatStart`] | before a request is sent; changes by a listener have no effect (see below) |
/// | `response_headers` | [`ResponseHeaders`] | the provider begins to answer, if it reports headers |
/// | `new_token` | [`NewToken`] | each piece of text, if the request enables streaming; a listener may change it, or stop the stream |
/// | `tool_call_started` | [`ToolCallStarted`] | the name of a tool call has arrived, if the request enables streaming; changes have no effect |
/// | `tool_call_delta` | [`ToolCallDelta`] | each piece of the arguments of a call, if the request enables streaming; changes have no effect |
/// | `usage` | [`UsageReported`] | the reply is complete or has failed, and the tokens that the provider reported have been charged |
/// | `success` | [`ChatSuccess`] | the reply is complete; a listener may change it |
/// | `error` | [`ChatError`] | the attempt has failed, unless only a listener of `finish` failed |
/// | `finish` | [`ChatFinish`] | after `success` or `error` |
/// | `fell_back` | [`ModelFellBack`] | the next [alternative](Self::or) is about to be asked |
///
/// The guards of the run have decided on the request before `start` is emitted, so what a listener leaves in `start` is
/// not sent. If it differs, one warning is logged. To change the request, use the run's own `start`
/// ([`Run::on_start`](emitree_runtime::Run::on_start)), which comes before all layers and guards.
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
/// Each attempt is charged once, when its reply is complete or fails, a listener stops it, or it is dropped after the
/// request was sent. If the provider has reported no tokens by then, and a budget limits tokens or cost, an estimate of
/// the request and of the text received is charged, by the [`token_counter`](Self::token_counter), and the usage is
/// marked as [`estimated`](crate::Usage::estimated). Without such a budget, nothing is charged. A response that a layer returns
/// instead of the model, such as a cached response, is not charged. A cached response keeps the usage and the cost of the original
/// call. A [`ChunkStage`](crate::ChunkStage) may change the token counts; if it removes them, the counts of the
/// provider are used. A listener of `success` that changes the usage or the cost does not change the charge.
///
/// # Cancel safety
///
/// Dropping or aborting the run, or a timeout of the attempt, drops the provider's future or stream, and thereby ends
/// the provider's call. What has arrived by then is charged, but the event `usage` is not emitted.
#[derive(Clone)]
pub struct ChatModel {
    backend: Backend,
    /// The models that are asked if this model fails, in order.
    alternatives: Vec<Backend>,
    middlewares: Vec<Arc<dyn Middleware>>,
    /// The position of the layer that completes requests with the options of a model, and asks the alternatives.
    asks_at: Option<usize>,
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
            .declares_data::<ChatStart>()
            .declares_text::<NewToken>()
            .declares_data::<ResponseHeaders>()
            .declares_data::<ToolCallStarted>()
            .declares_text::<ToolCallDelta>()
            .declares_data::<UsageReported>()
            .declares_data::<ChatSuccess>()
            .declares_data::<ChatError>()
            .declares_event::<ChatFinish>()
            .declares_data::<ModelFellBack>()
            .build()?;
        let backend = Backend::new(provider, emitter);
        Ok(Self { backend, alternatives: Vec::new(), middlewares: Vec::new(), asks_at: None })
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
        self.backend.price = Some(price);
        self
    }

    /// Sets the counter of tokens for this model and its later clones. Default: [`EstimatedTokens`](crate::EstimatedTokens).
    ///
    /// It estimates the tokens of a call whose provider reports none, if a budget limits tokens or cost: once for the
    /// system prompt, the tools and the messages of the request, and once for the text that was received.
    #[must_use]
    pub fn token_counter(mut self, counter: impl TokenCounter) -> Self {
        self.backend.counter = Arc::new(counter);
        self
    }

    /// Sets options for all calls of this model and of its later clones. An option of the request, such as one that an
    /// agent or its run sets, comes before the same option of the model.
    ///
    /// The options are added before the layers of [`Phase::Transform`](emitree_runtime::Phase::Transform) and
    /// [`Phase::Guard`](emitree_runtime::Phase::Guard), so caches and guards see the request that is sent. An
    /// [alternative](Self::or) keeps its own options.
    ///
    /// ```
    /// use emitree_agent::{ChatModel, ChatOptions, ChatRequest, ScriptedModel};
    /// use emitree_runtime::Runnable;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let script = ScriptedModel::new("test").text("Hello.");
    /// let options = ChatOptions::new().temperature(0.0).max_tokens(100);
    /// let model = ChatModel::new(script.clone())?.options(options);
    ///
    /// let mut request = ChatRequest::from("Hi.");
    /// request.options.temperature = Some(1.0);
    /// model.run(request).await?;
    /// let sent = &script.requests()[0].options;
    /// assert_eq!((sent.temperature, sent.max_tokens), (Some(1.0), Some(100)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn options(mut self, options: ChatOptions) -> Self {
        self.backend.options = options;
        self.bind_ask();
        self
    }

    /// Checks that the providers of this model and of its alternatives accept tools.
    pub(crate) fn check(&self, tools: &[ToolSpec]) -> Result<()> {
        [&self.backend].into_iter().chain(&self.alternatives).try_for_each(|backend| backend.check(tools))
    }

    /// Returns the options that this model adds to its requests.
    #[must_use]
    pub const fn own_options(&self) -> &ChatOptions {
        &self.backend.options
    }
}

/// Emits one of a run's own events, if the run has listeners.
pub(crate) async fn emit<E: Event>(ctx: &RunContext, event: &mut E) -> Result<()> {
    if ctx.has_listeners() {
        emit_boxed(ctx, event).await?;
    }
    Ok(())
}

/// Makes the future of an emit, which is large, outside the caller's `poll`: agents may be nested deeply, and in a debug
/// build the frame of a `poll` has room for each future that it makes.
fn emit_boxed<'a, E: Event>(ctx: &'a RunContext, event: &'a mut E) -> BoxFuture<'a, Result<()>> {
    Box::pin(async move { Ok(ctx.emitter().emit_event(event).await?) })
}

/// Warns, the first time, that listeners of a tool's or a model's own `start` changed the event.
pub(crate) fn not_taken_over(ctx: &RunContext, what: &str, is_warned: &AtomicBool) {
    // A redaction changes what later listeners receive, and is not meant to change what is executed.
    if is_warned.load(Ordering::Relaxed) || is_redacted(ctx) || is_warned.swap(true, Ordering::Relaxed) {
        return;
    }
    let kind = ctx.kind();
    let name = ctx.name();
    tracing::warn!(
        "a listener changed the {what} in the event `start` of {kind} `{name}`: the change has no effect, because the \
         guards have already decided; change the input in the run's `start` (`on_start`, or a listener of `run.start`), before all layers"
    );
}

/// Returns `true` if a `Redact` is bound to this run or to a run above, whose listeners redact the run's events.
fn is_redacted(ctx: &RunContext) -> bool {
    let mut runs = successors(Some(ctx), |run| run.parent());
    runs.any(|run| run.explain().middlewares.iter().any(|middleware| middleware.name == "redact"))
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
        self.backend.emitter()
    }

    async fn execute(&self, input: &ChatRequest, ctx: &RunContext) -> Result<ChatResponse> {
        let backend = self.asked(ctx);
        let mut attempt = Attempt::new(backend, input, ctx);
        let attempted = backend.attempt(input, ctx, &mut attempt.received).await;
        let used = attempt.end();
        let result = match attempted {
            Ok(response) => backend.succeed(response, ctx, used).await,
            Err(error) => backend.fail(error, ctx, used).await,
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
        f.debug_struct("ChatModel")
            .field("name", &self.name())
            .field("namespace", &self.emitter().namespace())
            .finish_non_exhaustive()
    }
}
