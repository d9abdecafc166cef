//! The layer around a model's call: it completes the request with the options of the model, and asks the next model if
//! one fails.

use std::borrow::Cow;
use std::iter;
use std::sync::Arc;

use emitree_runtime::{Error, ErrorKind, Layer, Next, Result, RunContext, Runnable, Stack, Summary};
use serde_json::json;

use crate::model::backend::Backend;
use crate::model::emit;
use crate::model::events::ModelFellBack;
use crate::{ChatModel, ChatOptions, ChatRequest, ChatResponse};

tokio::task_local! {
    /// The run whose layers are being called, and the position of the model that they ask. Unlike a value of the run,
    /// it is right even if a layer outside makes two calls at the same time.
    static ASKED: (RunContext, usize);
}

impl ChatModel {
    /// Adds a model that is asked if this model fails, panics or times out. Alternatives are asked in order.
    ///
    /// The alternative is asked in the same run: the layers inside are called again, so it has its own timeout per
    /// attempt, and its reply passes all stages and guards. The price and the [options](Self::options) of `other`, and its
    /// own alternatives, come along. The layer belongs to [`Phase::Retry`](emitree_runtime::Phase::Retry): with a `Retry` that is bound before this call, all
    /// models are asked again; with a `Retry` that is bound after this call, each model is tried again before the next.
    ///
    /// Before an alternative is asked, the run emits `attempt_discarded` and then [`ModelFellBack`]. All events have the
    /// namespace of the first model; the [response](ChatResponse::model), the event
    /// [`usage`](crate::UsageReported::model) and budgets name the model that answered. If all models fail, the error of
    /// the last model has the earlier failures in its detail `after`.
    ///
    /// ```
    /// use emitree_agent::{ChatModel, ScriptedModel};
    /// use emitree_runtime::{Error, Runnable};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let large = ChatModel::new(ScriptedModel::new("large").error(Error::new("overloaded")))?;
    /// let small = ChatModel::new(ScriptedModel::new("small").text("Hello."))?;
    /// let response = large.or(small)?.run("Hi.".into()).await?;
    /// assert_eq!((response.text().as_str(), response.model.as_deref()), ("Hello.", Some("small")));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if `other` has middlewares: in a run of this model, they would not be called.
    pub fn or(mut self, other: Self) -> Result<Self> {
        let bound = other.middlewares.len() - usize::from(other.asks_at.is_some());
        if bound > 0 {
            return Err(Error::new(format!(
                "`or` takes a model without middlewares, but `{}` has {bound}: bind them to `{}` instead, where they \
                 apply to both models",
                other.name(),
                self.name()
            )));
        }
        self.alternatives.extend([other.backend].into_iter().chain(other.alternatives));
        for backend in iter::once(&mut self.backend).chain(&mut self.alternatives) {
            backend.names_replies = true;
        }
        self.bind_ask();
        Ok(self)
    }

    /// Binds the layer for the current options and alternatives, in place of the one for the earlier ones.
    pub(super) fn bind_ask(&mut self) {
        let asked = |backend: &Backend| Asked { name: backend.name().to_owned(), options: backend.options.clone() };
        let models = iter::once(&self.backend).chain(&self.alternatives).map(asked).collect();
        let layer = Arc::new(Stack::<Self>::builder().retry(Ask { models }).build());
        match self.asks_at {
            Some(at) => self.middlewares[at] = layer,
            None => {
                self.asks_at = Some(self.middlewares.len());
                self.middlewares.push(layer);
            }
        }
    }

    /// Returns the model that the current call asks.
    pub(super) fn asked(&self, ctx: &RunContext) -> &Backend {
        // A value that another run has set around this run is not meant for this run.
        let asked = ASKED.try_with(|(run, asked)| if run == ctx { *asked } else { 0 }).unwrap_or(0);
        asked.checked_sub(1).and_then(|at| self.alternatives.get(at)).unwrap_or(&self.backend)
    }
}

/// The layer that adds the options of a model to requests, and asks the next model after a failure.
#[derive(Debug)]
struct Ask {
    models: Vec<Asked>,
}

#[derive(Debug)]
struct Asked {
    name: String,
    options: ChatOptions,
}

impl Asked {
    /// Returns the request with the options of the model that it does not set.
    fn complete<'a>(&self, input: &'a ChatRequest) -> Cow<'a, ChatRequest> {
        if self.options == ChatOptions::default() {
            return Cow::Borrowed(input);
        }
        Cow::Owned(ChatRequest { options: input.options.or(&self.options), ..input.clone() })
    }

    /// Returns the name of the model and its options, for explanations.
    fn summary(&self) -> String {
        match serde_json::to_string(&self.options) {
            Ok(options) if options != "{}" => format!("{} {options}", self.name),
            _ => self.name.clone(),
        }
    }
}

impl Layer<ChatModel> for Ask {
    async fn call(&self, input: &ChatRequest, ctx: &RunContext, next: Next<'_, ChatModel>) -> Result<ChatResponse> {
        let mut after = Vec::new();
        loop {
            let asked = after.len();
            let from = &self.models[asked];
            let input = from.complete(input);
            let result = ASKED.scope((ctx.clone(), asked), next.run(&input)).await;
            let error = match result {
                Err(error) if asks_next(&error) && !ctx.is_aborted() && !next.is_answered() => error,
                result => return result.map_err(|error| with_earlier(error, after)),
            };
            let Some(to) = self.models.get(asked + 1) else { return Err(with_earlier(error, after)) };
            let from = &from.name;
            let to = &to.name;
            // The tokens of the failed attempt are discarded before the next attempt emits (M7).
            ctx.discard_attempt(error.to_string(), json!({"by": "or", "next": to})).await?;
            emit(ctx, &mut ModelFellBack::new(from, to, error.report())).await?;
            after.push(json!({"by": from, "cause": error.to_string()}));
        }
    }

    fn name(&self) -> &str {
        if self.models.len() > 1 { "or" } else { "options" }
    }

    fn debug_summary(&self) -> Summary {
        let models: Vec<_> = self.models.iter().map(Asked::summary).collect();
        models.join(", then ").into()
    }
}

/// Returns `true` for the errors that `Fallback` catches by default.
fn asks_next(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Failed | ErrorKind::Panicked | ErrorKind::TimedOut)
}

/// Adds the failures of the models that were asked before as the detail `after`.
fn with_earlier(error: Error, after: Vec<serde_json::Value>) -> Error {
    if after.is_empty() { error } else { error.detail("after", after) }
}
