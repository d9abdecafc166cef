//! Outputs that replace the work: [`OverrideOutput`].

mod dry_run;
mod source;

use std::borrow::Cow;
use std::fmt;
use std::future::ready;
use std::sync::Arc;

use emitree_emitter::{AnyEvent, BoxError, EventMeta, Namespace, Options};
use emitree_runtime::{Data, Description, LifecycleMut, Middleware, Result, RunContext, Stage};
use futures_core::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::dry_run::Defaults;

use self::dry_run::dry_run_source;
use self::source::{OutputSource, SourceKind, json_source, typed_source, value_source};
use crate::shared::built_in::built_in;
use crate::shared::own_events::{OwnEvents, kind_and_name, own_events};
use crate::shared::runs::{FilterSpec, Runs};

/// Answers a run with a value or with the result of a function, in place of the run's work.
///
/// The override sets the output when a run starts. The output replaces the work only: input middlewares, layers, guards
/// and output middlewares are called as usual. An output that is already set is kept, so the first of several overrides
/// wins.
///
/// ```
/// use emitree_middleware::OverrideOutput;
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let ask = runnable_fn("ask", |question: String, _: RunContext| async move { Ok(format!("no idea: {question}")) });
///
/// let canned = OverrideOutput::value("42".to_owned());
/// assert_eq!(ask.run("why?".to_owned()).middleware(canned).await?, "42");
///
/// let some = OverrideOutput::with(|question: &String, _: &RunContext| {
///     Ok((question == "why?").then(|| "because".to_owned()))
/// });
/// assert_eq!(ask.run("why?".to_owned()).middleware(some.clone()).await?, "because");
/// assert_eq!(ask.run("how?".to_owned()).middleware(some).await?, "no idea: how?");
/// # Ok(())
/// # }
/// ```
///
/// # Which runs
///
/// The override answers a run that it is bound to if the run is [selected](Self::runs) and its
/// [input](Self::when_input) meets all conditions. By default, it answers every run that it is bound to. If the value
/// or function does not fit the run's types, the run fails with an error that names the types. JSON that does not fit
/// the output type also makes the run fail. To answer only runs of matching types, use [`runs`](Self::runs).
///
/// # Order
///
/// The override listens to `start` with the lowest priority: it is called after other listeners on the run, and before
/// the listeners on the instance and on emitters above it. Those listeners may still change the input and the output.
/// If the function fails or panics, the run fails.
///
/// # Its own events
///
/// `middleware.override_output.answered`, an [`Answered`], after a run is answered. A dry run emits
/// `middleware.override_output.would_run`, a [`WouldRun`], instead.
///
/// # Cancel safety
///
/// Dropping the run drops the future that the function of [`with_async`](Self::with_async) returned.
#[derive(Clone)]
pub struct OverrideOutput(Arc<OutputOverride>);

type InputPredicate = dyn Fn(&Value) -> bool + Send + Sync;

#[derive(Clone)]
struct OutputOverride {
    answer: OutputSource,
    runs: FilterSpec,
    inputs: Vec<Arc<InputPredicate>>,
    own_events: OwnEvents,
}

/// A run was answered instead of doing its work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Answered {
    /// The kind of the instance.
    pub kind: String,
    /// The name of the instance.
    pub name: String,
}

/// A run was answered by [`OverrideOutput::dry_run`] or [`OverrideOutput::dry_run_with`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WouldRun {
    /// The kind of the instance.
    pub kind: String,
    /// The name of the instance.
    pub name: String,
    /// The run's input at the time when the run was answered.
    pub input: Value,
}

own_events! {
    Answered = "answered";
    WouldRun = "would_run" { input };
}

/// Constructors, by the source of the output.
impl OverrideOutput {
    /// Answers with clones of a value.
    #[must_use]
    pub fn value<O: Clone + Send + Sync + 'static>(output: O) -> Self {
        Self::new(value_source(output))
    }

    /// Answers with the result of a function of the input. If the function returns `None`, the run does its work.
    #[must_use]
    pub fn with<I: Data, O: Data>(f: impl Fn(&I, &RunContext) -> Result<Option<O>> + Send + Sync + 'static) -> Self {
        Self::with_async(move |input: &I, ctx| Box::pin(ready(f(input, ctx))))
    }

    /// Answers with the result of an async function of the input. If the result is `None`, the run does its work.
    ///
    /// ```
    /// # use emitree_middleware::OverrideOutput;
    /// # use emitree_runtime::RunContext;
    /// # async fn look_up(key: &str) -> Option<String> { Some(key.to_owned()) }
    /// let looked_up = OverrideOutput::with_async(|key: &String, _: &RunContext| {
    ///     Box::pin(async move { Ok(look_up(key).await) })
    /// });
    /// ```
    #[must_use]
    pub fn with_async<I: Data, O: Data>(
        f: impl for<'a> Fn(&'a I, &'a RunContext) -> BoxFuture<'a, Result<Option<O>>> + Send + Sync + 'static,
    ) -> Self {
        Self::new(typed_source(f))
    }

    /// Answers runs of any type with a JSON value.
    #[must_use]
    pub fn json(output: impl Into<Value>) -> Self {
        let output = output.into();
        let source = SourceKind::Text(format!("json {output}"));
        Self::new(json_source(source, move |_, _| Ok(Some(output.clone()))))
    }

    /// Answers runs of any type with JSON that a function computes from the input. If the function returns `None`, the
    /// run does its work.
    #[must_use]
    pub fn json_with(f: impl Fn(&Value, &RunContext) -> Result<Option<Value>> + Send + Sync + 'static) -> Self {
        Self::new(json_source(SourceKind::Function("json"), f))
    }

    /// Answers from a table of inputs and outputs. Inputs are compared as JSON, and outputs are set as JSON. If the
    /// table contains an input twice, the first entry wins. For other inputs, the run does its work.
    ///
    /// ```
    /// # use emitree_middleware::OverrideOutput;
    /// let canned = OverrideOutput::canned([("why?", "because"), ("how?", "like this")])?;
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if an input or an output cannot be serialized.
    pub fn canned<I: Serialize, O: Serialize>(answers: impl IntoIterator<Item = (I, O)>) -> serde_json::Result<Self> {
        let to_json = |(input, output)| Ok((serde_json::to_value(input)?, serde_json::to_value(output)?));
        let table: Vec<(Value, Value)> = answers.into_iter().map(to_json).collect::<serde_json::Result<_>>()?;
        let source = SourceKind::Text(format!("{} canned answers", table.len()));
        Ok(Self::new(json_source(source, move |input, _| {
            Ok(table.iter().find(|(known, _)| known == input).map(|(_, output)| output.clone()))
        })))
    }

    /// Answers each run with an empty value, and emits a [`WouldRun`] for each run.
    ///
    /// The empty value is the first of `null`, `false`, `0`, `""`, `[]` and `{}` that fits the run's output. If none of
    /// these values fits, the run fails with an error that names the run; use [`dry_run_with`](Self::dry_run_with) for
    /// such runs.
    ///
    /// ```
    /// use emitree_middleware::OverrideOutput;
    /// use emitree_runtime::for_tree;
    ///
    /// let no_tool_is_called = for_tree(OverrideOutput::dry_run().of_kind("Tool"));
    /// ```
    #[must_use]
    pub fn dry_run() -> Self {
        Self::dry_run_with(Defaults::new())
    }

    /// Answers each run with the default of its output type if `defaults` contains that type, and otherwise with an
    /// empty value, as [`dry_run`](Self::dry_run) does.
    #[must_use]
    pub fn dry_run_with(defaults: Defaults) -> Self {
        Self::new(dry_run_source(defaults))
    }

    fn new(answer: OutputSource) -> Self {
        let own_events = OwnEvents::new(Namespace::new("middleware.override_output"));
        Self(Arc::new(OutputOverride { answer, runs: FilterSpec::default(), inputs: Vec::new(), own_events }))
    }
}

/// Options that select the runs to answer.
impl OverrideOutput {
    /// Answers only these runs. Further calls add runs. Default: all runs.
    #[must_use]
    pub fn runs(self, runs: Runs) -> Self {
        let mut answering = Arc::unwrap_or_clone(self.0);
        answering.runs.add(runs);
        Self(Arc::new(answering))
    }

    /// Answers runs of a kind: short for `runs(Runs::of_kind(kind))`.
    #[must_use]
    pub fn of_kind(self, kind: impl Into<Cow<'static, str>>) -> Self {
        self.runs(Runs::of_kind(kind))
    }

    /// Answers only runs whose input, as JSON, meets a condition. Each call adds a condition, and the input must meet
    /// all of them.
    #[must_use]
    pub fn when_input(self, f: impl Fn(&Value) -> bool + Send + Sync + 'static) -> Self {
        let mut answering = Arc::unwrap_or_clone(self.0);
        answering.inputs.push(Arc::new(f));
        Self(Arc::new(answering))
    }
}

built_in!(OverrideOutput, |this| this.0.own_events);

impl Middleware for OverrideOutput {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if !self.0.runs.has(ctx) {
            return Ok(());
        }
        // Use the lowest priority, so that other listeners on the run can change the input or set an output first.
        let answering = Arc::clone(&self.0);
        let last = Options::new().priority(i32::MIN);
        ctx.emitter().with(last).on_async(Stage::Start, move |event: &mut dyn AnyEvent, meta| {
            let answering = Arc::clone(&answering);
            Box::pin(async move { answering.start(event, meta).await })
        })?;
        Ok(())
    }

    fn name(&self) -> &str {
        "override_output"
    }

    fn handles(&self, kind: &str, name: &str) -> bool {
        self.0.runs.may_have(kind, name)
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self).with_near_miss(|kind, name| self.0.runs.near_miss(kind, name))
    }
}

impl OutputOverride {
    async fn start(&self, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> Result<(), BoxError> {
        let Some(ctx) = RunContext::current() else { return Ok(()) };
        let Some(LifecycleMut::Start(start)) = LifecycleMut::of(event, meta) else { return Ok(()) };
        // If another listener has already set an output, keep that output (M6).
        if start.output_json().is_some() || !self.inputs.iter().all(|is_met| is_met(&start.input_json())) {
            return Ok(());
        }
        // Copy the input before the answer is set; only a dry run reports the input.
        let input = self.answer.is_dry().then(|| start.input_json());
        if self.answer.give(event, meta, &ctx).await? {
            self.emit_answered(input, &ctx).await;
        }
        Ok(())
    }

    async fn emit_answered(&self, would_get: Option<Value>, ctx: &RunContext) {
        let (kind, name) = kind_and_name(ctx.creator());
        match would_get {
            Some(input) => self.own_events.emit(ctx, || WouldRun { kind, name, input }).await,
            None => self.own_events.emit(ctx, || Answered { kind, name }).await,
        }
    }
}

impl fmt::Debug for OverrideOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{}", self.0.answer, self.0.runs.after(", runs "))?;
        self.0.inputs.iter().try_for_each(|_| f.write_str(", by input"))
    }
}
