//! Tools as runs.

pub(crate) mod events;
pub(crate) mod into_tool;
pub(crate) mod output;
#[cfg(feature = "json-schema")]
mod with_schema;

use std::fmt;
use std::future::{Future, ready};
use std::marker::PhantomData;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use emitree_emitter::{BuildError, Creator, Emitter};
use emitree_runtime::{Error, IntoMiddleware, Middleware, Result, RunContext, Runnable};
use futures_core::future::BoxFuture;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error as ThisError;

use crate::model::{emit, log, not_taken_over};
use crate::session::turn::CallInTurn;
use crate::tool::events::{ToolFailure, ToolFinish, ToolRetriesExceeded, ToolRetry, ToolStart, ToolSuccess};
#[cfg(feature = "json-schema")]
use crate::tool::with_schema::Schema;
use crate::typed::{from_value, schema_of};
use crate::{ToolOutput, ToolSpec};

/// A tool that models may call. Each call is a run of the kind `Tool`.
///
/// Created by [`tool_fn`], or by `Tool::with_schema` (feature `json-schema`). The input of a run is the JSON value of
/// the arguments. The input does not contain the id of the call, so that caches and approvals can compare inputs; the
/// id is the run's own extension [`CallId`].
///
/// # Its own events
///
/// The run emits these events for each attempt, in the namespace `tool.<name>` (with `_` for each `-` in the name), and
/// only while it has listeners. If a listener fails, the attempt fails. If the attempt has already failed, the
/// listener's error is only logged, except that an error of a listener for `retry` fails the run.
///
/// | event | payload | when |
/// |---|---|---|
/// | `start` | [`ToolStart`] | before the work; changes by a listener have no effect (see below) |
/// | `success` | [`ToolSuccess`] | after the work; a listener may change the output |
/// | `error` | [`ToolFailure`] | the attempt has failed, unless only a listener of `finish` failed |
/// | `finish` | [`ToolFinish`] | after `success` or `error` |
/// | `retry` | [`ToolRetry`] | another attempt follows (see [`retries`](Self::retries)) |
/// | `retries_exceeded` | [`ToolRetriesExceeded`] | the last of these attempts has failed with a retryable error |
///
/// The guards of the run have decided on the arguments before `start` is emitted, so what a listener leaves in `start`
/// is not executed. If it differs, one warning is logged. To change arguments, use the run's own `start`
/// ([`Run::on_start`](emitree_runtime::Run::on_start)), which comes before all layers and guards.
///
/// The function may emit other events on the emitter of its run, `ctx.emitter()`, in the same namespace.
#[derive(Clone)]
pub struct Tool {
    shared: Arc<ToolParts>,
    middlewares: Vec<Arc<dyn Middleware>>,
    retries: u32,
    is_exclusive: bool,
    is_idempotent: bool,
}

struct ToolParts {
    spec: ToolSpec,
    emitter: Emitter,
    work: Box<dyn Work>,
    /// `true` once a warning was logged that a listener changed the tool's own `start`.
    is_warned: AtomicBool,
}

/// Identifies a tool and its clones.
pub(crate) struct ToolIdentity(Weak<ToolParts>);

impl ToolIdentity {
    pub(crate) fn is_of(&self, tool: &Tool) -> bool {
        // The allocation lives as long as this, so no other tool has its address.
        self.0.as_ptr() == Arc::as_ptr(&tool.shared)
    }
}

/// The id of the tool call that a tool's run executes. An agent sets the id as the run's own extension. If there are
/// listeners, the context of the run's `start` has the id under `call_id`, also if a guard then denies the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallId(pub String);

/// The reason why a tool cannot be made.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum ToolError {
    /// Models cannot call a tool with this name.
    #[error("`{0}` cannot be the name of a tool: use 1 to 64 characters of A-Z, a-z, 0-9, `_` and `-`")]
    Name(String),
    /// The schema of the arguments does not have the type `object`.
    #[error(
        "the schema of the arguments of `{name}` is `{schema}`: its `type` must be `object`, as for a struct with named fields"
    )]
    NotAnObject {
        /// The tool's name.
        name: String,
        /// The schema of the arguments.
        schema: Value,
    },
    /// The schema of the arguments is not a valid JSON Schema.
    #[cfg(feature = "json-schema")]
    #[error("the schema of the arguments of `{name}` is not a valid JSON Schema: {fault}")]
    Schema {
        /// The tool's name.
        name: String,
        /// The problem and its place in the schema.
        fault: String,
    },
    /// The emitter cannot be built.
    #[error(transparent)]
    Emitter(#[from] BuildError),
}

/// Makes a tool from an async function. The model receives the JSON Schema of the function's argument type.
///
/// The function may return any serializable value, or a [`ToolOutput`], for example to add
/// [`details`](ToolOutput::details). Doc comments of the argument's fields become descriptions in the schema.
///
/// ```
/// use emitree_agent::tool_fn;
/// use emitree_runtime::{RunContext, Runnable};
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Count {
///     /// The text to count in.
///     text: String,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let count = tool_fn("count_words", "Counts the words of a text", |args: Count, _: RunContext| async move {
///     Ok(args.text.split_whitespace().count())
/// })?;
/// assert_eq!(count.run(json!({"text": "to be or not"})).await?.content, json!(4));
/// assert_eq!(count.spec().parameters["properties"]["text"]["description"], "The text to count in.");
///
/// let wrong = count.check(&json!({"text": 4})).unwrap_err();
/// assert_eq!(wrong, "at `text`: invalid type: integer `4`, expected a string");
/// # Ok(())
/// # }
/// ```
///
/// # Limits
///
/// The arguments are checked by deserializing them and, with the feature `json-schema`, against the schema. Without this
/// feature, constraints that only the schema has, such as `range`, `length` and `regex` of `schemars`, are sent to the
/// model, but not checked. With it, arguments that the type would accept and the schema does not, such as a number as
/// text for a lenient `deserialize_with`, are refused: describe such a type with `#[schemars(with = "…")]`.
///
/// # Errors
///
/// Returns an error if models cannot call a tool with this name, if the schema of the arguments does not have the type
/// `object`, or, with the feature `json-schema`, if the schema is not valid, as with a pattern that is not a regex.
pub fn tool_fn<A, O, F, Fut>(name: impl Into<String>, description: impl Into<String>, f: F) -> Result<Tool, ToolError>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    O: Serialize + 'static,
    F: Fn(A, RunContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O>> + Send + 'static,
{
    let spec = ToolSpec::new(name, description, schema_of::<A>());
    #[cfg(feature = "json-schema")]
    let schema = Schema::of_tool(&spec)?;
    let work = Function {
        f,
        args: PhantomData::<fn(A)>,
        #[cfg(feature = "json-schema")]
        schema,
    };
    Tool::make(spec, Box::new(work))
}

impl Tool {
    fn make(spec: ToolSpec, work: Box<dyn Work>) -> Result<Self, ToolError> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if spec.name.is_empty() || spec.name.len() > 64 || !spec.name.chars().all(is_part) {
            return Err(ToolError::Name(spec.name));
        }
        if spec.parameters["type"] != "object" {
            return Err(ToolError::NotAnObject { name: spec.name, schema: spec.parameters });
        }
        let emitter = Emitter::root()
            .child_builder(["tool", &spec.name.replace('-', "_")])
            .creator(Creator::new("Tool", spec.name.clone()))
            .declares_data::<ToolStart>()
            .declares_data::<ToolSuccess>()
            .declares_data::<ToolFailure>()
            .declares_event::<ToolFinish>()
            .declares_data::<ToolRetry>()
            .declares_data::<ToolRetriesExceeded>()
            .build()?;
        let is_warned = AtomicBool::new(false);
        let shared = Arc::new(ToolParts { spec, emitter, work, is_warned });
        Ok(Self { shared, middlewares: Vec::new(), retries: 0, is_exclusive: false, is_idempotent: false })
    }

    /// Binds a middleware to each run of this tool and of its later clones.
    #[must_use]
    pub fn middleware<Sort>(mut self, middleware: impl IntoMiddleware<Sort>) -> Self {
        self.middlewares.push(Arc::new(middleware.into_middleware()));
        self
    }

    /// Sets the maximum number of retries, by default 0. The function is called again, without a delay, if it fails
    /// with an error that is [`retryable`](Error::retryable). The number applies to this tool and to its later clones.
    ///
    /// All attempts are made in one run, inside its layers. For delays between attempts, or limits on retries, bind a
    /// middleware that retries instead.
    #[must_use]
    pub const fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Makes the tool exclusive: while one of its calls runs, no other call of the same turn runs. The call starts when
    /// all calls before it have settled, in the order of the model's response, and the calls behind it wait until it has
    /// settled. This applies to this tool and to its later clones. [`AgentBuilder::parallel_tools`] makes all tools of an
    /// agent exclusive.
    ///
    /// If a call ends the agent's run, with a halt, a fatal error, an abort or an interrupt, the calls that wait behind
    /// it are not executed. Their results in the history are "not executed: the run was stopped".
    ///
    /// Calls of other runs are not affected, for example those of another run of the same agent. A call that a gate has
    /// answered, skipped, denied or interrupted, or that was not valid before the gate, runs no tool: it does not wait,
    /// and no call waits for it. A gate that changes the name of a call also changes which tool counts.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use emitree_agent::{Agent, ChatModel, ScriptedModel, tool_fn};
    /// use emitree_runtime::RunContext;
    /// use schemars::JsonSchema;
    /// use serde::Deserialize;
    /// use serde_json::json;
    ///
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Nothing {}
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let lines = Arc::new(Mutex::new(Vec::new()));
    /// let logs = |name: &'static str| {
    ///     let lines = Arc::clone(&lines);
    ///     tool_fn(name, "Logs its begin and its end", move |_: Nothing, _: RunContext| {
    ///         let lines = Arc::clone(&lines);
    ///         async move {
    ///             lines.lock().unwrap().push(format!("{name} begins"));
    ///             tokio::task::yield_now().await;
    ///             lines.lock().unwrap().push(format!("{name} ends"));
    ///             Ok("done")
    ///         }
    ///     })
    /// };
    /// let calls = ["read", "read", "write", "read"].map(|name| (name, json!({})));
    /// let model = ChatModel::new(ScriptedModel::new("test").calls(calls).text("Written."))?;
    /// let agent = Agent::builder("writer", model).tool(logs("read")).tool(logs("write")?.exclusive()).build()?;
    /// agent.ask("Write.").await?;
    /// assert_eq!(lines.lock().unwrap()[..4], ["read begins", "read begins", "read ends", "read ends"]);
    /// assert_eq!(lines.lock().unwrap()[4..], ["write begins", "write ends", "read begins", "read ends"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`AgentBuilder::parallel_tools`]: crate::AgentBuilder::parallel_tools
    #[must_use]
    pub const fn exclusive(mut self) -> Self {
        self.is_exclusive = true;
        self
    }

    /// Marks the tool as idempotent: executing a call of it again has no further effect, for example because it passes
    /// [`RunContext::key`] to a service that executes each key once. If the run of an agent stops during such a call,
    /// [`Agent::resume`](crate::Agent::resume) makes the call again, with the same key. This applies to this tool and to
    /// its later clones.
    ///
    /// Only the function of an idempotent tool may ask questions ([`RunContext::ask`]), because it is called again to get
    /// the answer. An agent that the function runs without a session of yours goes on where it stopped.
    #[must_use]
    pub const fn idempotent(mut self) -> Self {
        self.is_idempotent = true;
        self
    }

    pub(crate) const fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    /// Returns the tool description that models receive.
    #[must_use]
    pub fn spec(&self) -> &ToolSpec {
        &self.shared.spec
    }

    pub(crate) const fn has_middlewares(&self) -> bool {
        !self.middlewares.is_empty()
    }

    /// Returns `true` if the tools are clones of one tool, and so have the same spec.
    pub(crate) fn is_clone_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns what identifies the tool and its clones, without keeping it alive.
    pub(crate) fn identity(&self) -> ToolIdentity {
        ToolIdentity(Arc::downgrade(&self.shared))
    }

    /// Checks arguments without running the tool.
    ///
    /// # Errors
    ///
    /// Returns a text for the model, with the problem and its place in the arguments. A description of more than 500
    /// characters is shortened in the middle.
    pub fn check(&self, arguments: &Value) -> Result<(), String> {
        self.shared.work.check(arguments)
    }

    /// Makes one attempt, and emits its events.
    fn attempt<'a>(&'a self, input: &'a Value, ctx: &'a RunContext) -> BoxFuture<'a, Result<ToolOutput>> {
        if !ctx.has_listeners() {
            return self.call(input, ctx);
        }
        Box::pin(async move {
            let result = self.attempt_between_events(input, ctx).await;
            if let Err(error) = &result {
                // The error of the attempt is returned, and the error of a listener is logged.
                log(emit(ctx, &mut ToolFailure { error: error.report() }).await, "error");
            }
            let finished = emit(ctx, &mut ToolFinish {}).await;
            if result.is_ok() {
                return finished.and(result);
            }
            log(finished, "finish");
            result
        })
    }

    /// Calls the function between `start` and `success`.
    fn attempt_between_events<'a>(
        &'a self,
        input: &'a Value,
        ctx: &'a RunContext,
    ) -> BoxFuture<'a, Result<ToolOutput>> {
        Box::pin(async move {
            let call_id = ctx.own_extension::<CallId>().map(|id| id.0.clone());
            let mut start = ToolStart { input: input.clone(), call_id };
            emit(ctx, &mut start).await?;
            // The guards have seen `input`, so `input` is executed, and not the arguments that the listeners left.
            if start.input != *input {
                not_taken_over(ctx, "arguments", &self.shared.is_warned);
            }
            let output = self.call(input, ctx).await?;
            let mut success = ToolSuccess { output };
            emit(ctx, &mut success).await?;
            Ok(success.output)
        })
    }

    fn call<'a>(&'a self, input: &'a Value, ctx: &'a RunContext) -> BoxFuture<'a, Result<ToolOutput>> {
        // From here on, the function may have effects, so the result of the call must not be "not executed". If the
        // call already has that result, the function must not be called (A1).
        if let Some(call) = ctx.own_extension::<CallInTurn>() {
            if call.is_stored() {
                return Box::pin(async move {
                    call.store_begin(true, ctx).await?;
                    ctx.begin();
                    self.shared.work.call(input, ctx).await
                });
            }
            if let Err(error) = call.begin(true) {
                return Box::pin(ready(Err(error)));
            }
        }
        ctx.begin();
        self.shared.work.call(input, ctx)
    }
}

impl Runnable for Tool {
    type Input = Value;
    type Output = ToolOutput;

    fn emitter(&self) -> &Emitter {
        &self.shared.emitter
    }

    fn is_idempotent(&self) -> bool {
        self.is_idempotent
    }

    async fn execute(&self, input: &Value, ctx: &RunContext) -> Result<ToolOutput> {
        let mut retry = 0;
        loop {
            let result = self.attempt(input, ctx).await;
            let Some(error) = result.as_ref().err().filter(|error| error.is_retryable() && self.retries > 0) else {
                return result;
            };
            let report = error.report();
            if retry == self.retries {
                let mut exceeded = ToolRetriesExceeded { retries: retry, error: report };
                log(emit(ctx, &mut exceeded).await, "retries_exceeded");
                return result;
            }
            retry += 1;
            // A stream that buffers the events of the failed attempt discards them now.
            ctx.discard_attempt(report.message.clone(), retry).await?;
            emit(ctx, &mut ToolRetry { retry, error: report }).await?;
        }
    }

    fn middlewares(&self) -> &[Arc<dyn Middleware>] {
        &self.middlewares
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("name", &self.shared.spec.name).finish_non_exhaustive()
    }
}

/// The work of a tool, without the type of its arguments.
trait Work: Send + Sync {
    fn check(&self, arguments: &Value) -> Result<(), String>;
    fn call<'a>(&'a self, arguments: &'a Value, ctx: &'a RunContext) -> BoxFuture<'a, Result<ToolOutput>>;
}

struct Function<F, A> {
    f: F,
    args: PhantomData<fn(A)>,
    /// Checks what the type does not, such as a range (A5).
    #[cfg(feature = "json-schema")]
    schema: Schema,
}

impl<F, A: DeserializeOwned> Function<F, A> {
    /// Deserializes arguments that fit the type and its schema. The type comes first, because its messages are clearer.
    fn parse(&self, arguments: &Value) -> Result<A, String> {
        let parsed = from_value(arguments)?;
        #[cfg(feature = "json-schema")]
        self.schema.check(arguments)?;
        Ok(parsed)
    }
}

impl<A, O, F, Fut> Work for Function<F, A>
where
    A: DeserializeOwned + Send + 'static,
    O: Serialize + 'static,
    F: Fn(A, RunContext) -> Fut + Send + Sync,
    Fut: Future<Output = Result<O>> + Send,
{
    fn check(&self, arguments: &Value) -> Result<(), String> {
        self.parse(arguments).map(|_| ())
    }

    fn call<'a>(&'a self, arguments: &'a Value, ctx: &'a RunContext) -> BoxFuture<'a, Result<ToolOutput>> {
        Box::pin(async move {
            let arguments = self.parse(arguments).map_err(|fault| does_not_fit(&fault))?;
            ToolOutput::of((self.f)(arguments, ctx.clone()).await?)
        })
    }
}

/// The error of a tool whose call is already answered with "not executed". It is fatal, so that no layer retries.
pub(crate) fn too_late() -> Error {
    Error::new("the turn of this call has ended, so the call is not executed").fatal(true)
}

fn does_not_fit(fault: &str) -> Error {
    Error::new(format!("the arguments are invalid: {fault}"))
}
