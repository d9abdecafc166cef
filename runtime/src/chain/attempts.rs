//! The attempts of a run. Each attempt passes through the whole chain (M7).
//!
//! 1. An attempt calls the `map_input` functions in order, then the layers around the work, then the `map_output`
//!    functions in order.
//! 2. Each attempt starts with the input as `start` left it. An output that was set at `start` replaces the work of
//!    each attempt (M6).
//! 3. A request for a retry starts another attempt only while it is open, that is, until it leaves its run. Before that
//!    attempt, `attempt_discarded` is emitted.

use std::any::{Any, type_name};
use std::sync::atomic::{AtomicU32, Ordering};

use emitree_emitter::json::to_value_noting;
use emitree_emitter::{Event, EventName};
use futures_core::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::chain::erased::{LayerEntry, Work, call};
use crate::chain::{Chain, ValueMaps, by_phase};
use crate::run::config::StartedRun;
use crate::run::panic::discard;
use crate::runnable::value::{Data, fit};
use crate::{Description, Error, ErrorKind, Middleware, Result, RetryRequest, RunContext, Runnable};

/// An event that reports that an attempt was given up and another attempt follows. Receivers should discard the events
/// of the attempt that was given up.
///
/// A run emits this event before it starts another attempt; layers emit it with [`RunContext::discard_attempt`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttemptDiscarded {
    /// The number of the attempt, starting from 0. If a layer calls `next` again, the number stays the same.
    pub attempt: u32,
    /// The reason for giving up the attempt.
    pub reason: String,
    /// Metadata from the request for a retry, or from the layer that tries again.
    pub metadata: Value,
}

impl Event for AttemptDiscarded {
    const NAME: EventName = EventName::new("attempt_discarded");

    fn head(&self) -> Option<Value> {
        Some(json!({"attempt": self.attempt, "reason": self.reason}))
    }
}

impl RunContext {
    /// Emits [`AttemptDiscarded`] on the run, so that receivers discard the events of the current attempt. A
    /// [held](crate::RunStream::held) stream drops these events. Layers call this method before they call `next` again.
    /// The number of the run's [`attempt`](Self::attempt) does not change. Runs of the next attempt may have the
    /// [keys](Self::key) of runs that have succeeded in this attempt.
    ///
    /// ```
    /// use emitree_runtime::{Layer, Next, Op, Result, RunContext};
    ///
    /// #[derive(Debug)]
    /// struct Twice;
    ///
    /// impl<O: Op> Layer<O> for Twice {
    ///     async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
    ///         match next.run(input).await {
    ///             Err(error) if error.is_retryable() => ctx.discard_attempt(error.to_string(), ()).await?,
    ///             result => return result,
    ///         }
    ///         next.run(input).await
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of a listener that fails. Do not call `next` again in that case.
    pub async fn discard_attempt(&self, reason: impl Into<String>, metadata: impl Into<Value>) -> Result<()> {
        let attempt = self.attempt();
        let reason = reason.into();
        let metadata = metadata.into();
        self.emitter().emit_event(&mut AttemptDiscarded { attempt, reason, metadata }).await?;
        self.discard_keys();
        Ok(())
    }
}

/// The attempts that a run has given up, and the number of retries that it may make.
#[derive(Default)]
pub(crate) struct Attempts {
    most: AtomicU32,
    given_up: Mutex<Vec<RetryRequest>>,
}

impl Attempts {
    pub(crate) fn number(&self) -> u32 {
        u32::try_from(self.given_up.lock().len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn feedback(&self) -> Vec<RetryRequest> {
        self.given_up.lock().clone()
    }

    pub(crate) fn may_go_on(&self) -> bool {
        let most = self.most.load(Ordering::Relaxed);
        most > 0 && self.number() < most
    }

    /// Returns the error's request for a retry, if it is open and the run may make another attempt.
    fn request(&self, error: &Error, ctx: &RunContext) -> Option<RetryRequest> {
        let may = error.is_open_request() && !ctx.is_aborted() && self.may_go_on();
        may.then(|| error.retry_request()).flatten()
    }

    async fn give_up(&self, retry: RetryRequest, ctx: &RunContext) -> Result<()> {
        // The event still belongs to the attempt that is given up: count the attempt only afterwards.
        ctx.discard_attempt(retry.reason.clone(), retry.metadata.clone()).await?;
        self.given_up.lock().push(retry);
        Ok(())
    }
}

/// Makes an attempt, and repeats it as long as it fails with an open request for a retry and retries are left.
pub(crate) async fn attempts<R: Runnable>(
    run: &StartedRun<R>,
    runnable: &R,
    answer: Option<R::Output>,
) -> Result<R::Output> {
    let chain = run.existing_chain().and_then(|chain| (chain as &dyn Any).downcast_ref::<Chain<R::Input, R::Output>>());
    let Some(chain) = chain else { return Err(Error::new("the run has no chain of layers for its types")) };
    let input = run.input();
    // Share the layers, so that they live as long as the work even if another driver ends the run first.
    let layers = chain.layers.freeze(by_phase);
    let layers = layers.as_deref().map_or(&[][..], |layers| layers);
    let parts = AttemptParts { maps: chain.freeze_value_maps(), layers, attempts: &chain.attempts };
    match answer {
        None if parts.maps.is_none() && !parts.attempts.may_go_on() => {
            let result = call(layers, &Executes(runnable), input, run).await;
            run.show_attempt(&result);
            result
        }
        // Box these futures: they are larger, and few runs need them.
        None => Box::pin(parts.repeat(&Executes(runnable), input, run)).await,
        Some(output) => Box::pin(parts.repeat(&Answered::new(output), input, run)).await,
    }
}

/// The parts of the chain that each attempt passes through.
struct AttemptParts<'a, I, O> {
    maps: Option<&'a ValueMaps<I, O>>,
    layers: &'a [LayerEntry<I, O>],
    attempts: &'a Attempts,
}

impl<I: Data, O: Data> AttemptParts<'_, I, O> {
    async fn repeat(&self, work: &dyn Work<I, O>, input: &I, ctx: &RunContext) -> Result<O> {
        loop {
            let result = self.attempt(work, input, ctx).await;
            let Some(retry) = result.as_ref().err().and_then(|error| self.attempts.request(error, ctx)) else {
                return result;
            };
            self.attempts.give_up(retry, ctx).await?;
        }
    }

    async fn attempt(&self, work: &dyn Work<I, O>, input: &I, ctx: &RunContext) -> Result<O> {
        // Subscribers see the result of layers and work, before the `map_output` functions change it.
        let Some(ValueMaps { inputs, outputs }) = self.maps else {
            let result = call(self.layers, work, input, ctx).await;
            ctx.show_attempt(&result);
            return result;
        };
        outputs.forget_original();
        let changed = inputs.apply(input, ctx).await?;
        let result = call(self.layers, work, changed.as_ref().unwrap_or(input), ctx).await;
        ctx.show_attempt(&result);
        let mut output = result?;
        outputs.keep_original(&output);
        match outputs.maps.apply(&mut output, ctx).await {
            Ok(()) => Ok(output),
            Err(error) => {
                // Catch a panic in the drop of the output: it would replace the error.
                discard(output);
                Err(error)
            }
        }
    }
}

/// The work of a runnable.
struct Executes<'a, R>(&'a R);

impl<R: Runnable> Work<R::Input, R::Output> for Executes<'_, R> {
    fn call<'a>(&'a self, input: &'a R::Input, ctx: &'a RunContext) -> BoxFuture<'a, Result<R::Output>> {
        Box::pin(self.0.execute(input, ctx))
    }
}

/// An answer that was set at `start` and replaces the work. The first call returns the answer; further calls return
/// copies made from JSON.
struct Answered<O> {
    first: Mutex<Option<O>>,
    /// The answer as JSON, or an error if JSON cannot represent the whole answer. A call must not return an incomplete
    /// answer.
    again: Result<Value>,
}

impl<O: Data> Answered<O> {
    fn new(output: O) -> Self {
        let again = match to_value_noting(&output) {
            Ok((json, true)) => Ok(json),
            Ok((_, false)) => Err(Error::of_kind(
                ErrorKind::Invalid,
                format!(
                    "the answer set at `start`, a `{}`, cannot be returned again: JSON has neither NaN nor infinity",
                    type_name::<O>()
                ),
            )),
            Err(error) => Err(error.into()),
        };
        Self { first: Mutex::new(Some(output)), again }
    }

    fn answer(&self) -> Result<O> {
        let first = self.first.lock().take();
        first.map_or_else(|| fit("output", self.again.as_ref().map_err(Error::clone)?), Ok)
    }
}

impl<I: Sync, O: Data> Work<I, O> for Answered<O> {
    fn call<'a>(&'a self, _: &'a I, _: &'a RunContext) -> BoxFuture<'a, Result<O>> {
        Box::pin(std::future::ready(self.answer()))
    }

    fn is_answered(&self) -> bool {
        true
    }
}

/// A middleware that sets the [maximum number of middleware retries](crate::Run::max_middleware_retries) of each run to
/// which it is bound, for example by [`RunnableFn::middleware`](crate::RunnableFn::middleware). If it is bound to a run
/// several times, the last binding applies, so a run overrides its runnable.
///
/// ```
/// use emitree_runtime::{Error, MaxMiddlewareRetries, RunContext, Runnable, map_output, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let positive = map_output(|n: &mut u32, _: &RunContext| if *n > 0 { Ok(()) } else { Err(Error::retry("it is 0")) });
/// let count = runnable_fn("count", |(): (), ctx: RunContext| async move { Ok(ctx.attempt()) })
///     .middleware(positive)
///     .middleware(MaxMiddlewareRetries(1));
/// assert_eq!(count.run(()).await?, 1);
/// assert!(count.run(()).max_middleware_retries(0).await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MaxMiddlewareRetries(
    /// The maximum number of retries.
    pub u32,
);

impl Middleware for MaxMiddlewareRetries {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        ctx.chain()?.attempts().most.store(self.0, Ordering::Relaxed);
        Ok(())
    }

    fn name(&self) -> &str {
        "max_middleware_retries"
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self).with_summary(|| self.0.to_string())
    }
}
