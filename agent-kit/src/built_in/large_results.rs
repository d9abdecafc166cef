//! Large results of tools in a key-value store: [`LargeResults`].

use std::collections::{BTreeSet, HashSet};
use std::fmt::{self, Write as _};
use std::mem::take;
use std::sync::Arc;

use emitree_emitter::{AnyEvent, Emitter, Event, EventName, Namespace};
use emitree_middleware::own_events::{OwnEvents, UserTexts};
use emitree_middleware::values::{KeyValues, ValueKey};
use emitree_runtime::{Error, Result, RunContext, Stage};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ends_the_run;
use super::transcript::transcript;
use emitree_agent::values::Written;
use emitree_agent::{
    AgentContext, AgentMiddleware, CallResult, Hooks, Part, Session, State, Tool, ToolError, ToolOutput, tool_fn,
};

/// The name of the tool.
const TOOL: &str = "read_result";

/// The beginning of each id. 32 hexadecimal digits follow.
const PREFIX: &str = "result_";

const NOTE: &str = "the result is too large to be shown as a whole: read other parts with `read_result`";

/// Puts large results of tools into a key-value store, and shows the model the beginning and the end.
///
/// A result of more bytes than the limit is stored: text as it is, any other value as the text of its JSON. In its
/// place, the model and the history get an object:
///
/// | member | |
/// |---|---|
/// | `result_id` | the id of the stored result |
/// | `bytes` | its size |
/// | `head` | its beginning, at most a quarter of the limit |
/// | `tail` | its end, at most an eighth of the limit |
/// | `note` | a hint at the tool |
///
/// The model reads other parts with the tool `read_result {id, from, bytes}`. It returns `text`, at most as many bytes
/// as the limit, `bytes`, the size of the whole, and `next`, the position at which the text goes on, or null at the
/// end. No character is cut. Errors are stored too, and stay errors. An [answer](ToolOutput::answer()) of a tool is not
/// stored. The texts of [parts](ToolOutput::parts) are stored behind the content; images, sounds and files stay parts.
///
/// ```
/// use emitree_agent_kit::built_in::LargeResults;
/// use emitree_agent::{Agent, ChatModel, ChatRequest, Reply, ScriptedModel, tool_fn};
/// use emitree_runtime::RunContext;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Log {}
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let read = tool_fn("read_log", "Reads the log", |_: Log, _: RunContext| async {
///     Ok(format!("started {} failed {} stopped", ".".repeat(500), ".".repeat(500)))
/// });
/// let model = ScriptedModel::by("test", |request: &ChatRequest| {
///     let results: Vec<_> = request.messages.iter().flat_map(|message| message.tool_results()).collect();
///     match results.last() {
///         None => Reply::calls([("read_log", json!({}))]),
///         Some(result) => match result.response.get("result_id") {
///             Some(id) => Reply::calls([("read_result", json!({"id": id, "from": 500, "bytes": 20}))]),
///             None => Reply::text(result.response["text"].as_str().unwrap_or_default()),
///         },
///     }
/// });
/// let agent = Agent::builder("operator", ChatModel::new(model)?)
///     .tool(read)
///     .with(LargeResults::over_bytes(100))
///     .build()?;
///
/// let answer = agent.ask("What happened?").await?;
/// assert_eq!(answer.text(), "........ failed ....");
/// let shown = &answer.messages[2].tool_results().next().unwrap().response;
/// assert_eq!((&shown["bytes"], &shown["tail"]), (&json!(1_024), &json!(".... stopped")));
/// # Ok(())
/// # }
/// ```
///
/// # The store
///
/// By default, results are in the [store of the agent](AgentContext::values), behind its layers.
/// [`in_store`](Self::in_store) sets another store, without layers. The keys are `["large_results", <id>]`. A program
/// that restores sessions needs a store that outlives the process. An id is enough to read a result, also in another
/// session; ids are random.
///
/// At the end of a run, results are removed whose id is in no message any more, for example because a
/// [`Summarize`](super::Summarize) has replaced the messages, or because an attempt was discarded. Without a
/// [session](emitree_agent::AgentRun::session), and after a [handoff](emitree_agent::kinds::Handoff) to the agent, all results of the run
/// are removed, because no other run can read them. A
/// result stays in the store if the process ends, or the tokio runtime shuts down, before the run has ended, and if it is
/// older than the last [fork](Session::fork) of the session, because both sessions may need it.
///
/// # What it remembers
///
/// In the session: the ids of its results. In the run: the ids of the results that the run has stored.
///
/// # Its own events
///
/// `middleware.large_results.stored`, a [`LargeResultStored`]; `middleware.large_results.failed`, a
/// [`LargeResultFailed`].
///
/// # Order
///
/// The hook is called at `tool.result`. Hooks after it see the short form, so add `LargeResults` after a
/// [`Guardrail`](super::Guardrail) for results.
///
/// # When it fails
///
/// If a result cannot be stored, because the store fails, a guard denies the write or a layer skips it, the event
/// `failed` is emitted, and the model gets the whole result. If a result cannot be removed, the event is emitted too,
/// and the next run of the session tries again. If a layer returns a halt, an abort, an interrupt, a request for a
/// retry or a fatal error, the run ends. An id that the store does not have, and a part beyond the end, are errors for
/// the model.
///
/// If the run is dropped before all hooks of `tool.result` have returned, the history keeps neither the result nor its
/// short form, but only that the tool was called.
///
/// A limit of 0 bytes is an error of [`build`](emitree_agent::AgentBuilder::build), or of the run to which the middleware is
/// added.
#[derive(Clone)]
pub struct LargeResults {
    over_bytes: usize,
    store: Option<Arc<dyn KeyValues>>,
    own_events: OwnEvents,
}

impl LargeResults {
    /// Creates the middleware. A result of more bytes is stored: of a text, the bytes in UTF-8 count, and of any other
    /// value, the bytes of its JSON.
    #[must_use]
    pub fn over_bytes(bytes: usize) -> Self {
        Self { over_bytes: bytes, store: None, own_events: OwnEvents::new(Namespace::new("middleware.large_results")) }
    }

    /// Sets the store, by default the [store of the agent](AgentContext::values).
    #[must_use]
    pub fn in_store(mut self, store: impl KeyValues) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Returns the emitter of the middleware, for listeners that receive its events about all runs.
    #[must_use]
    pub const fn emitter(&self) -> &Emitter {
        self.own_events.emitter()
    }

    /// Stores a result that is too large, and replaces it with its short form.
    async fn shorten(&self, result: &mut CallResult, memory: &State<Memory>, ctx: &RunContext) -> Result<()> {
        let CallResult { call, output, .. } = result;
        if output.is_answer || call.name == TOOL {
            return Ok(());
        }
        let text = text_of(output);
        if text.len() <= self.over_bytes {
            return Ok(());
        }
        let bytes = text.len();
        match self.store(&text, memory, ctx).await {
            Ok(id) => {
                // Only once the store has the text: otherwise the id would lead nowhere (A17).
                output.content = self.short_form(&id, &text);
                output.parts.retain(|part| !matches!(part, Part::Text { .. }));
                self.own_events.emit(ctx, || LargeResultStored { id, tool: call.name.clone(), bytes }).await;
                Ok(())
            }
            Err(error) if ends_the_run(&error) => Err(error),
            Err(error) => {
                self.failed(&error, ctx).await;
                Ok(())
            }
        }
    }

    /// Writes a text into the store. Returns its id.
    async fn store(&self, text: &str, memory: &State<Memory>, ctx: &RunContext) -> Result<String> {
        let id = new_id()?;
        let key = key_of(&id)?;
        // The run knows the id before the write: if the run is dropped meanwhile, the result is removed.
        self.of_run(memory, ctx)?.0.lock().push(id.clone());
        let written = match &self.store {
            Some(store) => store.write(&key, &text.into()).await.map(|()| Written::Stored),
            None => ctx.values()?.write(&key, text).await,
        };
        match written? {
            Written::Stored => Ok(id),
            _ => Err(Error::new("a layer of `values.write` skipped the result")),
        }
    }

    fn short_form(&self, id: &str, text: &str) -> Value {
        let head = &text[..text.floor_char_boundary(self.over_bytes / 4)];
        let tail = &text[text.ceil_char_boundary(text.len() - self.over_bytes / 8)..];
        json!({"result_id": id, "bytes": text.len(), "head": head, "tail": tail, "note": NOTE})
    }

    async fn failed(&self, error: &Error, ctx: &RunContext) {
        let error = error.explain();
        self.own_events.emit(ctx, || LargeResultFailed { error }).await;
    }

    /// Returns the part of a stored text that a call asks for.
    async fn read(&self, part: &ReadArgs, ctx: &RunContext) -> Result<ToolOutput> {
        let ReadArgs { id, from, bytes } = part;
        let key = key_of(id)?;
        let stored = match &self.store {
            Some(store) => store.read(&key).await,
            None => ctx.values()?.read(&key).await,
        }?;
        let Some(text) = stored.as_ref().and_then(Value::as_str) else {
            return Ok(ToolOutput::error(format!("there is no result `{id}`: it was removed, or the id is wrong")));
        };
        let size = text.len();
        if *from >= size || *bytes == 0 {
            return Ok(ToolOutput::error(format!(
                "`from: {from}, bytes: {bytes}` is no part of the result `{id}`: `from` must be less than its size of \
                 {size} bytes, and `bytes` at least 1"
            )));
        }
        // Both ends are rounded down, so that parts that follow each other share no character and leave none out.
        let begin = text.floor_char_boundary(*from);
        let end = text.floor_char_boundary(from.saturating_add(*bytes.min(&self.over_bytes)));
        // At least one character, even if it is larger than the part.
        let end = if end > begin { end } else { text.ceil_char_boundary(begin + 1) };
        let next = (end < size).then_some(end);
        Ok(ToolOutput::new(json!({"text": &text[begin..end], "next": next, "bytes": size})))
    }

    fn tool(&self) -> Result<Tool, ToolError> {
        let this = self.clone();
        let description = "Reads a part of a large result of a tool, by its `result_id`. `next` is the position at \
                           which the text goes on, or null at the end.";
        tool_fn(TOOL, description, move |part: ReadArgs, ctx: RunContext| {
            let this = this.clone();
            async move { this.read(&part, &ctx).await }
        })
    }

    /// Returns the ids that the run has stored. At the end of the run, results that no message needs are removed.
    fn of_run(&self, memory: &State<Memory>, ctx: &RunContext) -> Result<Arc<OfRun>> {
        if let Some(of_run) = ctx.own_extension::<OfRun>() {
            return Ok(of_run);
        }
        let this = self.clone();
        let memory = memory.clone();
        let run = ctx.clone();
        // Async observers of the end are called even if the run is dropped.
        ctx.emitter().observe_async(Stage::Finish, move |_: &dyn AnyEvent, _| {
            let this = this.clone();
            let memory = memory.clone();
            let run = run.clone();
            Box::pin(async move { Ok(this.remove_unused(&memory, &run).await?) })
        })?;
        Ok(ctx.own_extension_or_default::<OfRun>())
    }

    /// Removes the results of the session and of the run whose ids are in no message.
    async fn remove_unused(&self, memory: &State<Memory>, ctx: &RunContext) -> Result<()> {
        let text = match ctx.history() {
            // A session that the caller has set goes on after this run.
            Some(history) if ctx.own_extension::<Session>().is_some() => transcript(history.messages()),
            _ => String::new(),
        };
        let used = ids_in(&text);
        let of_run = take(&mut *ctx.own_extension_or_default::<OfRun>().0.lock());
        let last_fork = ctx.session().and_then(|session| session.last_fork());
        // Results that another run of the session is adding are in that run's `OfRun`, so they stay (A17).
        let unused = memory.with(ctx, |memory| {
            memory.ids.extend(of_run);
            if memory.last_fork != last_fork {
                // The other session may need each of them.
                memory.ids.clear();
                memory.last_fork = last_fork;
            }
            let (used, unused) = take(&mut memory.ids).into_iter().partition(|id| used.contains(id.as_str()));
            memory.ids = used;
            unused
        })?;
        self.remove(unused, memory, ctx).await
    }

    async fn remove(&self, ids: BTreeSet<String>, memory: &State<Memory>, ctx: &RunContext) -> Result<()> {
        for id in ids {
            let key = key_of(&id)?;
            let removed = match &self.store {
                Some(store) => store.remove(&key).await,
                None => ctx.values()?.remove(&key).await.map(drop),
            };
            if let Err(error) = removed {
                memory.with(ctx, |memory| memory.ids.insert(id))?;
                self.failed(&error, ctx).await;
            }
        }
        Ok(())
    }
}

/// The state in the session: the ids of results that were in its messages at the end of a run. The ids of a run under
/// way are in its [`OfRun`], because another run of the session does not see them in a message yet.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Memory {
    ids: BTreeSet<String>,
    /// The other session of the last fork that was noticed. The ids of the results before it are forgotten.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_fork: Option<String>,
}

/// The ids that a run has stored, in all its attempts.
#[derive(Default)]
struct OfRun(Mutex<Vec<String>>);

/// The arguments of `read_result`.
#[derive(Deserialize, JsonSchema)]
struct ReadArgs {
    /// The `result_id`.
    id: String,
    /// The position of the first byte, from 0.
    from: usize,
    /// The number of bytes.
    bytes: usize,
}

/// Returns the content and the texts of the parts, with a blank line between two of them.
fn text_of(output: &ToolOutput) -> String {
    let texts = output.parts.iter().filter_map(|part| match part {
        Part::Text { content } => Some(content.clone()),
        _ => None,
    });
    [output.text()].into_iter().chain(texts).collect::<Vec<_>>().join("\n\n")
}

/// Makes an id that cannot be guessed.
fn new_id() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    let mut id = PREFIX.to_owned();
    // Writing to a `String` cannot fail.
    bytes.iter().for_each(|byte| _ = write!(id, "{byte:02x}"));
    Ok(id)
}

fn key_of(id: &str) -> Result<ValueKey> {
    Ok(ValueKey::new(["large_results", id])?)
}

/// Returns all texts that have the form of an id.
fn ids_in(text: &str) -> HashSet<&str> {
    let ids = text.match_indices(PREFIX).filter_map(|(at, _)| text.get(at..at + PREFIX.len() + 32));
    ids.collect()
}

impl AgentMiddleware for LargeResults {
    fn id(&self) -> &str {
        "large_results"
    }

    fn init(&self) -> Result<()> {
        if self.over_bytes == 0 {
            return Err(Error::new(
                "`LargeResults::over_bytes(0)` would store every result and show nothing of it: allow at least 1 byte",
            ));
        }
        Ok(())
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let this = self.clone();
        let memory = hooks.state::<Memory>();
        hooks.tool(self.tool());
        let shortens = this.clone();
        let remembers = memory.clone();
        hooks.on_result_async(move |result, ctx| {
            let this = shortens.clone();
            let memory = remembers.clone();
            Box::pin(async move { this.shorten(result, &memory, ctx).await })
        });
        // The run itself may have stored nothing, but have removed messages.
        hooks.on_end(move |_, ctx| {
            let is_empty = memory.with(ctx, |memory| memory.ids.is_empty())?;
            if is_empty { Ok(()) } else { this.of_run(&memory, ctx).map(drop) }
        });
        Ok(())
    }
}

/// Shows the options: `over 8000 bytes, in MemoryValues { len: 2 }`.
impl fmt::Debug for LargeResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "over {} bytes", self.over_bytes)?;
        self.store.as_ref().map_or(Ok(()), |store| write!(f, ", in {store:?}"))
    }
}

/// The event `stored` of [`LargeResults`]: a result is in the store, and the model gets its short form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LargeResultStored {
    /// The id.
    pub id: String,
    /// The name of the tool.
    pub tool: String,
    /// The size of the result.
    pub bytes: usize,
}

/// The event `failed` of [`LargeResults`]: a result could not be stored, or not be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LargeResultFailed {
    /// The error, with its causes and the name of who denied.
    pub error: String,
}

impl Event for LargeResultStored {
    const NAME: EventName = EventName::new("stored");
}

impl UserTexts for LargeResultStored {
    fn user_texts(&mut self, _: &mut dyn FnMut(&mut String)) {}
}

impl Event for LargeResultFailed {
    const NAME: EventName = EventName::new("failed");
}

impl UserTexts for LargeResultFailed {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.error.user_texts(change);
    }
}
