//! One argument of a tool call, while the model writes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use emitree_emitter::{Emitter, Event, EventName, Namespace};
use emitree_middleware::own_events::{OwnEvents, UserTexts};
use emitree_runtime::{
    AttemptDiscarded, Description, Error, Failure, Middleware, Result, RunContext, Stage, Start, Success,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::model::tool_calls::events::ToolCallDelta;
use crate::model::tool_calls::partial_json::PartialJson;
use crate::{Arguments, ChatModel, ChatRequest, ChatResponse, Tool, ToolCall};

/// Emits one argument of the calls of a tool while the model writes it. Bind it to runs of models, or to an agent's run.
///
/// ```
/// use emitree_agent::reply::{StreamToolCall, ToolCallUpdate};
/// use emitree_agent::{Agent, ChatModel, Reply, ScriptedModel, tool_fn};
/// use emitree_runtime::RunContext;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Place { city: String }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let weather = tool_fn("weather", "Returns the weather", |place: Place, _: RunContext| async move {
///     Ok(format!("It rains in {}.", place.city))
/// })?;
/// let city = StreamToolCall::tool(&weather).key("city").force_streaming(true);
/// city.emitter().on("update", |update: &mut ToolCallUpdate, _| print!("{}", update.delta))?;
///
/// let calls = Reply::calls([("weather", json!({"city": "London"}))]).in_pieces(3);
/// let script = ScriptedModel::new("test").reply(calls).text("It rains.");
/// let agent = Agent::builder("meteorologist", ChatModel::new(script)?).tool(weather).build()?;
/// agent.ask("Does it rain?").middleware(city).await?; // prints "London" piece by piece
/// # Ok(())
/// # }
/// ```
///
/// # Its own events
///
/// The events are emitted on [`emitter`](Self::emitter) and on the run of the model, in the namespace
/// `middleware.stream_tool_call`.
///
/// | event | payload | when |
/// |---|---|---|
/// | `update` | [`ToolCallUpdate`] | more of the argument is known |
/// | `discarded` | [`ToolCallsDiscarded`] | the updates of the run so far do not count: its attempt was discarded or has failed, or a layer has changed the calls |
///
/// A string is emitted as decoded text, as soon as it is certain: only an incomplete escape waits. Any other value is
/// emitted once, when it is complete, as JSON. If the reply is not streamed, or a layer answered instead of the model,
/// there is one update when the run has succeeded. If the arguments are malformed, the last update of the call has an
/// empty `delta`, and `is_complete` is `false`. If the arguments do not have the key, there is no update.
///
/// # Which runs
///
/// Bound to the run of a model, it applies to this run. Bound to any other run, such as an agent's, it applies to the runs
/// of models directly below; with [`nested`](Self::nested), to those at any depth. Calls of several runs, and several
/// calls of one turn, do not mix: `run_id` and `call` tell them apart. A redaction of the run applies to the updates.
///
/// # Cost
///
/// Only new bytes are read. It remembers the text of each call until the run of the model ends.
#[derive(Clone, Debug)]
pub struct StreamToolCall {
    tool: Arc<str>,
    schema: Arc<Value>,
    key: Option<String>,
    forces_streaming: bool,
    is_nested: bool,
    own_events: OwnEvents,
    /// Tells clones of this value from others.
    id: Arc<()>,
}

/// The event `update`: more of an argument of a tool call is known.
///
/// One value is passed to all emits of a call. A listener may take `delta`; what it changes is set again before the next
/// update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallUpdate {
    /// The call.
    pub call: StreamedCall,
    /// The new text. It is empty if the value is complete and the text was known already.
    pub delta: String,
    /// The value, when it is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_structured: Option<Value>,
    /// `true` if the value is complete.
    pub is_complete: bool,
    /// The id of the model's run.
    pub run_id: Uuid,
    /// In JSON it is left out, because a journal of all updates would be of quadratic size.
    #[serde(skip)]
    output: String,
}

impl ToolCallUpdate {
    /// Returns all text of the value so far.
    #[must_use]
    pub fn output(&self) -> &str {
        &self.output
    }
}

/// The call that an update belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StreamedCall {
    /// The id of the call, if it has arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Arc<str>>,
    /// The number of the call in the reply.
    pub index: usize,
    /// The name of the tool.
    pub name: Arc<str>,
}

/// The event `discarded`: the updates of a run so far do not count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallsDiscarded {
    /// The id of the model's run.
    pub run_id: Uuid,
}

impl Event for ToolCallUpdate {
    const NAME: EventName = EventName::new("update");
}

impl Event for ToolCallsDiscarded {
    const NAME: EventName = EventName::new("discarded");
}

impl UserTexts for ToolCallUpdate {
    /// Changes nothing: the pieces of the arguments, and the reply, were redacted as a whole before.
    fn user_texts(&mut self, _: &mut dyn FnMut(&mut String)) {}
}

impl UserTexts for ToolCallsDiscarded {
    fn user_texts(&mut self, _: &mut dyn FnMut(&mut String)) {}
}

impl StreamToolCall {
    /// Makes a middleware for the calls of this tool. Without [`key`](Self::key), the value is all arguments as JSON.
    #[must_use]
    pub fn tool(tool: &Tool) -> Self {
        Self {
            tool: tool.spec().name.as_str().into(),
            schema: Arc::new(tool.spec().parameters.clone()),
            key: None,
            forces_streaming: false,
            is_nested: false,
            own_events: OwnEvents::new(Namespace::new("middleware.stream_tool_call")),
            id: Arc::new(()),
        }
    }

    /// Sets the argument: a key, or a path of keys and indices such as `/items/0/name`. If the schema of the tool does
    /// not have it, each run to which the middleware is bound fails with an error that says so.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets whether the runs of models are streamed, if their requests do not say so (`stream` is `None`), by default
    /// `false`.
    #[must_use]
    pub const fn force_streaming(mut self, forces_streaming: bool) -> Self {
        self.forces_streaming = forces_streaming;
        self
    }

    /// Sets whether the middleware applies to models at any depth below a run, such as the models of sub-agents, by
    /// default `false`.
    #[must_use]
    pub const fn nested(mut self, is_nested: bool) -> Self {
        self.is_nested = is_nested;
        self
    }

    /// Returns the emitter of the updates of all runs.
    #[must_use]
    pub const fn emitter(&self) -> &Emitter {
        self.own_events.emitter()
    }

    /// Returns the path of the argument, if the schema of the tool has it.
    fn path(&self) -> Result<Vec<String>> {
        let Some(key) = &self.key else { return Ok(Vec::new()) };
        let path: Vec<_> = match key.strip_prefix('/') {
            Some(pointer) => pointer.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect(),
            None => vec![key.clone()],
        };
        if has_path(&self.schema, &self.schema, &path, 0) {
            return Ok(path);
        }
        let keys = self.schema["properties"].as_object().into_iter().flatten();
        let mut keys: Vec<_> = keys.map(|(key, _)| format!("`{key}`")).collect();
        keys.sort();
        let hint = if key.starts_with('/') { "" } else { "; write a path as `/items/0/name`" };
        let has = if keys.is_empty() { "no arguments".to_owned() } else { keys.join(", ") };
        Err(Error::new(format!("the tool `{}` has no argument `{key}`: it has {has}{hint}", self.tool)))
    }

    /// Binds the middleware to the run of a model, unless a clone is bound to it already.
    fn bind_to_model(&self, ctx: &RunContext) -> Result<()> {
        let path = self.path()?;
        let bound = ctx.own_extension_or_default::<Bound>();
        {
            let mut bound = bound.0.lock();
            if bound.iter().any(|id| Arc::ptr_eq(id, &self.id)) {
                return Ok(());
            }
            bound.push(Arc::clone(&self.id));
        }
        if self.forces_streaming {
            ctx.emitter().on(Stage::Start, |start: &mut Start<ChatRequest, ChatResponse>, _| {
                start.input.options.stream.get_or_insert(true);
            })?;
        }
        let watch = Arc::new(Watch {
            tool: Arc::clone(&self.tool),
            path,
            own_events: self.own_events.clone(),
            calls: Mutex::default(),
        });
        let of_delta = Arc::clone(&watch);
        ctx.emitter().observe_async("tool_call_delta", move |delta: &ToolCallDelta, _| {
            let watch = Arc::clone(&of_delta);
            Box::pin(async move {
                if *delta.name == *watch.tool
                    && let Some(ctx) = RunContext::current()
                {
                    watch.advance(delta, &ctx).await;
                }
                Ok(())
            })
        })?;
        let of_attempt = Arc::clone(&watch);
        ctx.emitter().observe_async("attempt_discarded", move |_: &AttemptDiscarded, _| discard_later(&of_attempt))?;
        let of_error = Arc::clone(&watch);
        ctx.emitter().observe_async(Stage::Error, move |_: &Failure, _| discard_later(&of_error))?;
        ctx.emitter().observe_async(Stage::Success, move |success: &Success<ChatRequest, ChatResponse>, _| {
            let watch = Arc::clone(&watch);
            let calls = success.output.message.tool_calls().enumerate();
            let calls: Vec<_> =
                calls.filter(|(_, call)| call.name == *watch.tool).map(|(at, it)| (at, it.clone())).collect();
            Box::pin(async move {
                if let Some(ctx) = RunContext::current() {
                    watch.settle(calls, &ctx).await;
                }
                Ok(())
            })
        })?;
        Ok(())
    }
}

/// The instances that are bound to a model's run.
#[derive(Default)]
struct Bound(Mutex<Vec<Arc<()>>>);

impl Middleware for StreamToolCall {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if ctx.is_run_of_type::<ChatModel>() {
            return self.bind_to_model(ctx);
        }
        self.path()?;
        ctx.bind_nested(ForModels { parent: (!self.is_nested).then(|| ctx.run_id()), stream: self.clone() });
        Ok(())
    }

    fn name(&self) -> &'static str {
        "stream_tool_call"
    }

    fn describe(&self) -> Description<'_> {
        let key = self.key.as_deref().unwrap_or_default();
        Description::of(self).with_summary(move || format!("{} {key}", self.tool).trim_end().to_owned())
    }
}

/// Binds the middleware to the runs of models below a run.
#[derive(Debug)]
struct ForModels {
    /// The id of the run, if only its own models count.
    parent: Option<Uuid>,
    stream: StreamToolCall,
}

impl Middleware for ForModels {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let is_meant = self.parent.is_none_or(|parent| ctx.parent().is_some_and(|run| run.run_id() == parent));
        if is_meant && ctx.is_run_of_type::<ChatModel>() { self.stream.bind_to_model(ctx) } else { Ok(()) }
    }

    fn name(&self) -> &'static str {
        "stream_tool_call"
    }

    fn describe(&self) -> Description<'_> {
        self.stream.describe()
    }
}

/// The calls of one run of a model.
struct Watch {
    tool: Arc<str>,
    /// The keys and indices that lead to the argument.
    path: Vec<String>,
    own_events: OwnEvents,
    /// The calls by number. A call is not in the map while its listeners are called.
    calls: Mutex<BTreeMap<usize, Box<Streaming>>>,
}

/// A call that is being written.
struct Streaming {
    argument: PartialJson,
    /// The text of the value so far, which listeners cannot change.
    text: String,
    update: ToolCallUpdate,
    is_complete: bool,
}

impl Streaming {
    fn new(path: &[String], call: StreamedCall, ctx: &RunContext) -> Self {
        let update = ToolCallUpdate {
            call,
            delta: String::new(),
            output_structured: None,
            is_complete: false,
            run_id: ctx.run_id(),
            output: String::new(),
        };
        Self { argument: PartialJson::at(path), text: String::new(), update, is_complete: false }
    }

    /// Emits the new text in `delta` of the update, and the value if it is complete.
    async fn emit(&mut self, value: Option<Value>, watch: &Watch, ctx: &RunContext) {
        self.is_complete = value.is_some();
        self.text.push_str(&self.update.delta);
        self.update.output.push_str(&self.update.delta);
        self.update.run_id = ctx.run_id();
        self.update.is_complete = value.is_some();
        self.update.output_structured = value;
        let is_text = |output: &String| (output.as_ptr().addr(), output.len());
        let before = is_text(&self.update.output);
        watch.own_events.emit_event(ctx, &mut self.update).await;
        // A listener can replace the event as a whole, but it cannot change this text in place.
        if is_text(&self.update.output) != before {
            self.update.output.clone_from(&self.text);
        }
    }
}

/// Returns the future that discards the updates so far.
fn discard_later<'a>(watch: &Arc<Watch>) -> futures_core::future::BoxFuture<'a, Result<(), emitree_emitter::BoxError>> {
    let watch = Arc::clone(watch);
    Box::pin(async move {
        if let Some(ctx) = RunContext::current() {
            watch.discard(&ctx).await;
        }
        Ok(())
    })
}

impl Watch {
    /// Reads a piece of a call.
    async fn advance(&self, piece: &ToolCallDelta, ctx: &RunContext) {
        let call = || StreamedCall { id: piece.id.clone(), index: piece.index, name: Arc::clone(&piece.name) };
        let streaming = self.calls.lock().remove(&piece.index);
        let mut streaming = streaming.unwrap_or_else(|| Box::new(Streaming::new(&self.path, call(), ctx)));
        let delta = &mut streaming.update.delta;
        delta.clear();
        let mut value = None;
        let mut rest = &*piece.arguments;
        while let Some(part) = streaming.argument.next_part(&mut rest) {
            if part.is_whole() {
                delta.push_str(part.delta().unwrap_or_default());
                value = part.value().cloned();
            }
        }
        // A string has been emitted while it arrived.
        if let Some(other) = &value
            && !other.is_string()
        {
            *delta = other.to_string();
        }
        if value.is_some() || !delta.is_empty() {
            streaming.update.call = call();
            streaming.emit(value, self, ctx).await;
        }
        self.calls.lock().insert(piece.index, streaming);
    }

    /// Discards the updates of the run so far, if there are any.
    async fn discard(&self, ctx: &RunContext) {
        let calls = std::mem::take(&mut *self.calls.lock());
        if calls.values().any(|call| !call.text.is_empty() || call.is_complete) {
            self.own_events.emit_event(ctx, &mut ToolCallsDiscarded { run_id: ctx.run_id() }).await;
        }
    }

    /// Compares the updates with the calls of the response, and emits what is missing.
    async fn settle(&self, calls: Vec<(usize, ToolCall)>, ctx: &RunContext) {
        let mut streamed: Vec<_> = std::mem::take(&mut *self.calls.lock()).into_values().collect();
        let values: Vec<_> = calls.iter().map(|(at, call)| self.value_of(*at, call)).collect();
        // The calls of a response are in the order of their numbers.
        let fits =
            streamed.len() <= values.len() && streamed.iter().zip(&values).all(|(call, value)| value.continues(call));
        if !fits {
            *self.calls.lock() = streamed.drain(..).enumerate().collect();
            self.discard(ctx).await;
        }
        let mut streamed = streamed.into_iter();
        for Settled { call, value, text, is_malformed } in values {
            let before = streamed.next();
            let is_known = before.as_ref().is_some_and(|before| before.is_complete);
            if !is_malformed && (is_known || value.is_none()) {
                continue;
            }
            let new = || Box::new(Streaming::new(&self.path, call.clone(), ctx));
            let mut streaming = before.unwrap_or_else(new);
            streaming.update.delta = text.get(streaming.text.len()..).unwrap_or_default().to_owned();
            streaming.update.call = call;
            streaming.emit(value, self, ctx).await;
        }
    }

    fn value_of(&self, index: usize, call: &ToolCall) -> Settled {
        let (value, is_malformed) = match &call.arguments {
            Arguments::Json(arguments) => (self.path.iter().try_fold(arguments, |value, key| step(value, key)), false),
            Arguments::Malformed(_) => (None, true),
        };
        let text = value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        let call_of = StreamedCall { id: Some(call.id.as_str().into()), index, name: Arc::clone(&self.tool) };
        Settled { call: call_of, value: value.cloned(), text: text.unwrap_or_default(), is_malformed }
    }
}

/// A call of the response.
struct Settled {
    call: StreamedCall,
    value: Option<Value>,
    text: String,
    is_malformed: bool,
}

impl Settled {
    /// Returns `true` if the updates of a streamed call are the beginning of this value.
    fn continues(&self, call: &Streaming) -> bool {
        if self.is_malformed || call.text.is_empty() {
            return true;
        }
        if call.is_complete { self.text == call.text } else { self.text.starts_with(&call.text) }
    }
}

fn step<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        other => other.get(key),
    }
}

/// The depth at which references of a schema are no longer followed.
const MAX_DEPTH: usize = 64;

/// Returns `true` unless a schema says that a path does not exist.
fn has_path(root: &Value, schema: &Value, path: &[String], depth: usize) -> bool {
    let Some((key, rest)) = path.split_first() else { return true };
    if depth > MAX_DEPTH {
        return true;
    }
    if let Some(reference) = schema["$ref"].as_str() {
        let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return target.is_none_or(|target| has_path(root, target, path, depth + 1));
    }
    let alternatives = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|name| schema[name].as_array()).flatten();
    let mut alternatives = alternatives.peekable();
    if alternatives.peek().is_some() && alternatives.any(|schema| has_path(root, schema, path, depth + 1)) {
        return true;
    }
    if let Some(member) = schema["properties"].get(key) {
        return has_path(root, member, rest, depth + 1);
    }
    let additional = &schema["additionalProperties"];
    if additional.is_object() {
        return has_path(root, additional, rest, depth + 1);
    }
    if let Ok(index) = key.parse::<usize>() {
        let item = schema["prefixItems"].get(index).unwrap_or(&schema["items"]);
        if item.is_object() || *item == true {
            return has_path(root, item, rest, depth + 1);
        }
    }
    // A schema that lists neither members nor types allows anything.
    *additional == true || *schema == true || schema.as_object().is_some_and(serde_json::Map::is_empty)
}
