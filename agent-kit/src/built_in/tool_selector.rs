//! A choice among many tools before the model is asked: [`ToolSelector`].

use std::fmt;
use std::sync::Arc;

use emitree_emitter::{Emitter, Event, EventName, Namespace};
use emitree_middleware::own_events::{OwnEvents, UserTexts};
use emitree_runtime::{Error, Result, RunContext, Runnable, Summary};
use futures_core::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ends_the_run;
use emitree_agent::hook::{AgentSpec, ModelRequest};
use emitree_agent::typed::{from_value, json_in};
use emitree_agent::{
    AgentContext, AgentMiddleware, ChatModel, ChatOptions, ChatRequest, Hooks, Message, ResponseFormat, Role,
    ToolChoice, ToolSpec,
};

/// The id of the middleware.
const ID: &str = "tool_selector";

/// Offers the model only the tools that another model, or a function, selects for the user's message.
///
/// An agent with many tools spends many tokens on their descriptions, and chooses worse. A small model selects the tools
/// from their names and descriptions once for each user message.
///
/// ```
/// use emitree_agent_kit::built_in::ToolSelector;
/// use emitree_agent::{Agent, ChatModel, ScriptedModel, tool_fn};
/// use emitree_runtime::RunContext;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Text { text: String }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let tool = |name: &str| tool_fn(name, "…", |args: Text, _: RunContext| async { Ok(args.text) });
/// let small = ChatModel::new(ScriptedModel::new("small").text(r#"{"tools": ["search"]}"#))?;
/// let script = ScriptedModel::new("large").text("Done.");
/// let agent = Agent::builder("helper", ChatModel::new(script.clone())?)
///     .tool(tool("read"))
///     .tool(tool("write"))
///     .tool(tool("search"))
///     .with(ToolSelector::with(small).at_most(5).always(["read"]))
///     .build()?;
///
/// agent.ask("Find it.").await?;
/// let offered: Vec<_> = script.requests()[0].tools.iter().map(|tool| tool.name.clone()).collect();
/// assert_eq!(offered, ["read", "search"]);
/// # Ok(())
/// # }
/// ```
///
/// # What it remembers
///
/// The selection for the last user message, in the *run*. The next run, another attempt, and a user message that a hook
/// adds to the run are selected for again.
///
/// # Its own events
///
/// On the agent's run:
///
/// | event | payload | when |
/// |---|---|---|
/// | `middleware.tool_selector.selected` | [`ToolsSelected`] | tools were selected |
/// | `middleware.tool_selector.failed` | [`SelectionFailed`] | there is no usable answer, and all tools are offered |
///
/// # Order
///
/// The hook is called at `model.request`, so it selects among the tools that hooks before left, from messages that hooks
/// of `model.wire` have changed. A tool that a later hook adds is offered. A tool that `tool_choice` names is always
/// offered.
///
/// The model of the selector runs below the agent's run: its tokens are charged to the same budgets, but are not in
/// [`AgentOutput::usage`](emitree_agent::AgentOutput::usage). It does not stream, so [`on_token`](emitree_agent::AgentRun::on_token)
/// does not receive its answer.
///
/// # When it fails
///
/// If the model or the function fails or is denied, or its answer names no known tool, all tools are offered. With
/// [`strict`](Self::strict), the run fails. An abort, a halt, an interrupt, a request for a retry and a fatal error end
/// the run in any case. Unknown names are left out, and reported in the event. A tool of
/// [`always`](Self::always) that the agent does not have is an error (see [`AgentSpec::expect_tool`]).
#[derive(Clone)]
pub struct ToolSelector {
    select: Select,
    at_most: Option<usize>,
    always: Vec<String>,
    is_strict: bool,
    events: OwnEvents,
}

type Function = dyn for<'a> Fn(&'a ChatRequest, &'a RunContext) -> BoxFuture<'a, Result<Vec<String>>> + Send + Sync;

#[derive(Clone)]
enum Select {
    Model(Box<ChatModel>),
    Function(Arc<Function>),
}

/// The event `middleware.tool_selector.selected`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolsSelected {
    /// The tools that are offered, in the order of the agent's tools.
    pub tools: Vec<String>,
    /// Names in the answer that are no tools of the agent.
    pub unknown: Vec<String>,
}

/// The event `middleware.tool_selector.failed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SelectionFailed {
    /// The reason.
    pub error: String,
}

impl Event for ToolsSelected {
    const NAME: EventName = EventName::new("selected");
}

impl UserTexts for ToolsSelected {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.unknown.user_texts(change);
    }
}

impl Event for SelectionFailed {
    const NAME: EventName = EventName::new("failed");
}

impl UserTexts for SelectionFailed {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.error.user_texts(change);
    }
}

/// The answer of the selector's model.
#[derive(Deserialize)]
struct Answer {
    tools: Vec<String>,
}

/// The selection of a run: an extension of the agent's run.
#[derive(Default)]
struct LastSelection(Mutex<Option<Selection>>);

#[derive(Clone)]
struct Selection {
    /// The number of the run's attempt.
    attempt: u32,
    /// The user message, which is compared by its address: an equal message may be another one.
    message: Option<Arc<Message>>,
    /// The names of the offered tools, or `None` for all tools.
    tools: Option<Arc<Vec<String>>>,
}

impl ToolSelector {
    fn new(select: Select) -> Self {
        let events = OwnEvents::new(Namespace::new("middleware.tool_selector"));
        Self { select, at_most: None, always: Vec::new(), is_strict: false, events }
    }

    /// Lets a model select the tools. It receives the text of the last user message, and the names and descriptions of
    /// the tools, and is asked for JSON by a response format with a schema.
    #[must_use]
    pub fn with(model: ChatModel) -> Self {
        Self::new(Select::Model(Box::new(model)))
    }

    /// Lets a function select the tools, for example by a search in their descriptions. It receives the request that
    /// offers all tools, and returns names.
    ///
    /// ```
    /// use emitree_agent_kit::built_in::ToolSelector;
    ///
    /// let named = ToolSelector::by(|request, _| {
    ///     let text = request.last_user_text();
    ///     let names = request.tools.iter().map(|tool| tool.name.clone());
    ///     let names = names.filter(|name| text.contains(name.as_str())).collect();
    ///     Box::pin(async move { Ok(names) })
    /// });
    /// ```
    #[must_use]
    pub fn by(
        function: impl for<'a> Fn(&'a ChatRequest, &'a RunContext) -> BoxFuture<'a, Result<Vec<String>>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self::new(Select::Function(Arc::new(function)))
    }

    /// Offers at most this many selected tools, the first in the answer. By default, there is no maximum. Tools that are
    /// [always](Self::always) offered do not count.
    #[must_use]
    pub const fn at_most(mut self, tools: usize) -> Self {
        self.at_most = Some(tools);
        self
    }

    /// Always offers these tools.
    #[must_use]
    pub fn always<N: Into<String>>(mut self, tools: impl IntoIterator<Item = N>) -> Self {
        self.always.extend(tools.into_iter().map(Into::into));
        self
    }

    /// Fails the run if there is no usable answer, instead of offering all tools.
    #[must_use]
    pub const fn strict(mut self) -> Self {
        self.is_strict = true;
        self
    }

    /// Returns the emitter of the middleware's own events, for listeners that receive the events of all runs.
    #[must_use]
    pub const fn emitter(&self) -> &Emitter {
        self.events.emitter()
    }

    /// Leaves only the selected tools in a request.
    async fn limit(&self, call: &mut ModelRequest, ctx: &RunContext) -> Result<()> {
        let message = last_user_message(ctx);
        let attempt = ctx.attempt();
        let last = ctx.own_extension_or_default::<LastSelection>();
        let known = last.0.lock().clone().filter(|known| known.attempt == attempt);
        let known = known.filter(|known| is_same(known.message.as_ref(), message.as_ref()));
        let selection = match known {
            Some(known) => known,
            None => {
                let tools = self.select_for(&call.request, ctx).await?.map(Arc::new);
                let selection = Selection { attempt, message, tools };
                *last.0.lock() = Some(selection.clone());
                selection
            }
        };
        if let Some(names) = selection.tools {
            let is_offered = |tool: &&ToolSpec| names.contains(&tool.name) || self.is_always(&call.request, &tool.name);
            let offered = call.request.tools.iter().filter(is_offered).cloned().collect();
            call.request.tools = Arc::new(offered);
        }
        Ok(())
    }

    fn is_always(&self, request: &ChatRequest, tool: &str) -> bool {
        let is_named = matches!(&request.options.tool_choice, Some(ToolChoice::Tool(name)) if name == tool);
        is_named || self.always.iter().any(|name| name == tool)
    }

    /// Returns the names of the tools to offer, or `None` for all tools.
    async fn select_for(&self, request: &ChatRequest, ctx: &RunContext) -> Result<Option<Vec<String>>> {
        let mut among = request.clone();
        let others = request.tools.iter().filter(|tool| !self.is_always(request, &tool.name)).cloned();
        among.tools = Arc::new(others.collect());
        if among.tools.is_empty() {
            return Ok(None);
        }
        let selected = match self.names(&among, ctx).await {
            Ok(names) => self.usable(names, &among),
            Err(error) => Err(error),
        };
        match selected {
            Ok(ToolsSelected { tools, unknown }) => {
                let is_offered = |tool: &&ToolSpec| tools.contains(&tool.name) || self.is_always(request, &tool.name);
                let offered = || request.tools.iter().filter(is_offered).map(|tool| tool.name.clone()).collect();
                self.events.emit(ctx, || ToolsSelected { tools: offered(), unknown }).await;
                Ok(Some(tools))
            }
            Err(error) if self.is_strict || ends_the_run(&error) => Err(error),
            Err(error) => {
                self.events.emit(ctx, || SelectionFailed { error: error.to_string() }).await;
                Ok(None)
            }
        }
    }

    async fn names(&self, request: &ChatRequest, ctx: &RunContext) -> Result<Vec<String>> {
        match &self.select {
            Select::Function(function) => function(request, ctx).await,
            Select::Model(model) => {
                let reply = model.run(self.question(request)).await?.text();
                let answer: Answer = json_in(&reply, from_value).map_err(|fault| {
                    Error::new(format!("the answer of `{}` has no list `tools`: {fault}", model.name()))
                        .detail("text", reply)
                })?;
                Ok(answer.tools)
            }
        }
    }

    /// Makes the request for the selector's model.
    fn question(&self, request: &ChatRequest) -> ChatRequest {
        let most =
            self.at_most.map_or_else(String::new, |most| format!(" Select at most {most}, the most useful first."));
        let tools: Vec<_> = request.tools.iter().map(|tool| format!("- {}: {}", tool.name, tool.description)).collect();
        let names: Vec<_> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
        let schema = json!({
            "type": "object",
            "properties": {"tools": {"type": "array", "items": {"type": "string", "enum": names}}},
            "required": ["tools"],
            "additionalProperties": false,
        });
        let mut question = ChatRequest::new([Message::user(request.last_user_text())]);
        question.system = Some(format!(
            "Select the tools that are useful for answering the user's message.{most} Reply with JSON only, such as \
             {{\"tools\": [\"name\"]}}.\n\n{}",
            tools.join("\n")
        ));
        let format = ResponseFormat::JsonSchema { name: "tools".to_owned(), schema };
        // Tokens of a selection are not tokens of the answer.
        question.options = ChatOptions::new().response_format(format).stream(false);
        question
    }

    /// Splits the names of an answer. An answer with unknown names alone is not usable; an empty answer is.
    fn usable(&self, names: Vec<String>, among: &ChatRequest) -> Result<ToolsSelected> {
        let is_known = |name: &String| among.tools.iter().any(|tool| tool.name == *name);
        let (mut tools, mut unknown): (Vec<_>, Vec<_>) = names.into_iter().partition(is_known);
        unknown.retain(|name| !self.always.contains(name));
        if tools.is_empty() && !unknown.is_empty() {
            return Err(Error::new(format!("only unknown tools were selected: `{}`", unknown.join("`, `"))));
        }
        let mut seen = std::collections::HashSet::new();
        tools.retain(|name| seen.insert(name.clone()));
        tools.truncate(self.at_most.unwrap_or(usize::MAX));
        Ok(ToolsSelected { tools, unknown })
    }
}

impl AgentMiddleware for ToolSelector {
    fn id(&self) -> &str {
        ID
    }

    fn init(&self) -> Result<()> {
        if self.at_most == Some(0) {
            return Err(Error::new("`ToolSelector::at_most(0)` allows no tool: allow at least 1"));
        }
        Ok(())
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let selector = Arc::new(self.clone());
        hooks.on_request_async(move |call, ctx| {
            let selector = Arc::clone(&selector);
            Box::pin(async move { selector.limit(call, ctx).await })
        });
        Ok(())
    }

    fn check(&self, agent: &AgentSpec) -> Result<()> {
        self.always.iter().try_for_each(|tool| agent.expect_tool(ID, tool))
    }

    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }
}

impl fmt::Debug for ToolSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.select {
            Select::Model(model) => write!(f, "by {}", model.name())?,
            Select::Function(_) => f.write_str("by a function")?,
        }
        if let Some(most) = self.at_most {
            write!(f, ", at most {most}")?;
        }
        if !self.always.is_empty() {
            write!(f, ", always {}", self.always.join(", "))?;
        }
        f.write_str(if self.is_strict { ", strict" } else { "" })
    }
}

fn last_user_message(ctx: &RunContext) -> Option<Arc<Message>> {
    ctx.history()?.messages().iter().rfind(|message| message.role == Role::User).cloned()
}

fn is_same(a: Option<&Arc<Message>>, b: Option<&Arc<Message>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}
