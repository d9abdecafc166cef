//! Building an agent.

use std::collections::HashSet;
use std::sync::Arc;

use emitree_emitter::{Creator, Emitter};
use emitree_middleware::values::{KeyValues, MemoryValues};
use emitree_runtime::{Error, IntoMiddleware, MaxMiddlewareRetries, Middleware, Result, Runnable, check_guards};
use serde_json::{Map, Value};

use crate::agent::events::declared;
use crate::agent::middleware::{Installed, Prepare, twice};
use crate::agent::own_hooks::{BUILDER, OwnHooks};
use crate::agent::spec::AgentSpec;
use crate::agent::toolset::LastAsked;
use crate::agent::{Agent, AgentParts};
use crate::handoff::{Handoff, Handoffs};
use crate::{AgentMiddleware, ChatModel, ChatOptions, HookResult, Hooks, IntoTool, Tool, ToolSpec};

/// Builds an [`Agent`]. Created by [`Agent::builder`].
#[derive(Debug)]
#[must_use]
pub struct AgentBuilder {
    name: String,
    model: ChatModel,
    prompt: Option<String>,
    options: ChatOptions,
    tools: Vec<Tool>,
    hooks: Hooks,
    installed: Vec<Arc<Installed>>,
    middlewares: Vec<Arc<dyn Middleware>>,
    values: Arc<dyn KeyValues>,
    max_steps: u32,
    allow_empty: bool,
    max_depth: usize,
    spawn_tools: bool,
    parallel_tools: bool,
    handoffs: Vec<Handoff>,
    max_handoffs: u32,
    /// The first error of a tool or a middleware, which `build` returns.
    failure: Option<Error>,
}

impl AgentBuilder {
    pub(crate) fn new(name: String, model: ChatModel) -> Self {
        Self {
            name,
            model,
            prompt: None,
            options: ChatOptions::default(),
            tools: Vec::new(),
            hooks: Hooks::new(BUILDER),
            installed: Vec::new(),
            middlewares: Vec::new(),
            values: Arc::new(MemoryValues::new()),
            max_steps: 20,
            allow_empty: false,
            max_depth: 20,
            spawn_tools: false,
            parallel_tools: true,
            handoffs: Vec::new(),
            max_handoffs: 5,
            failure: None,
        }
    }

    /// Sets the system prompt. Middlewares may add to it.
    pub fn prompt(mut self, prompt: impl Into<String>) -> Self {
        self.prompt = Some(prompt.into());
        self
    }

    /// Sets options for all model calls. A run can override each option with
    /// [`AgentInput::options`](crate::AgentInput::options).
    pub fn options(mut self, options: ChatOptions) -> Self {
        self.options = options;
        self
    }

    /// Adds a tool. If the tool could not be made, [`build`](Self::build) returns the error.
    pub fn tool(mut self, tool: impl IntoTool) -> Self {
        match tool.into_tool() {
            Ok(tool) => self.tools.push(tool),
            Err(error) => self.fail(error.into()),
        }
        self
    }

    /// Adds an [`AgentMiddleware`]. Its hooks are called after the hooks of the middlewares that were added before it.
    pub fn with(mut self, middleware: impl AgentMiddleware) -> Self {
        match Installed::of(middleware) {
            Ok(installed) => self.installed.push(installed),
            Err(error) => self.fail(error),
        }
        self
    }

    /// Registers hooks of the agent itself, without a middleware. Their names are `builder.<place>`. They are called
    /// before the hooks of the agent's middlewares.
    ///
    /// At each [`Place`](crate::Place), a hook of the agent itself replaces the hooks of all middlewares of the agent,
    /// of the run, and of the runs above (see [`joins`](crate::joins)). [`Run::explain`] and [`RunContext::explain`]
    /// list the names of the replaced hooks, and the middlewares that are skipped because an earlier middleware has the
    /// same id. A hook at `model.prompt` also replaces the [`system_prompt`](AgentMiddleware::system_prompt) of each
    /// middleware. [`prompt`](Self::prompt) replaces nothing.
    ///
    /// Guards are not replaced:
    ///
    /// - all hooks of `tool.gate`;
    /// - layers of [`Phase::Guard`] at `agent.run`, `model.call` and `tool.call`;
    /// - all hooks of a middleware that [is a guard](AgentMiddleware::is_guard);
    /// - guards that [`middleware`](Self::middleware) binds to runs, because they are not hooks.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use emitree_agent::{Agent, AgentRun, ChatModel, Message, ScriptedModel, hooks_fn};
    /// use emitree_runtime::Phase;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let script = ScriptedModel::new("test").text("Hello.");
    /// let agent = Agent::builder("friend", ChatModel::new(script.clone())?)
    ///     .with(hooks_fn("last_40", |hooks| {
    ///         hooks.on_context(|messages, _| drop(messages.drain(..messages.len().saturating_sub(40))));
    ///     }))
    ///     .hooks(|hooks| {
    ///         hooks.on_context(|messages, _| messages.insert(0, Arc::new(Message::user("I am Ada."))));
    ///     })
    ///     .build()?;
    /// let run = agent.ask("Who am I?");
    /// assert!(run.explain().to_string().contains(r#"model.context replaced=["last_40.model.context"]"#));
    /// run.await?;
    /// assert_eq!(script.requests()[0].messages.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Run::explain`]: emitree_runtime::Run::explain
    /// [`RunContext::explain`]: emitree_runtime::RunContext::explain
    /// [`Phase::Guard`]: emitree_runtime::Phase::Guard
    pub fn hooks<Out: HookResult>(mut self, register: impl FnOnce(&mut Hooks) -> Out) -> Self {
        if let Err(error) = register(&mut self.hooks).into_result().and_then(|()| self.hooks.check()) {
            self.fail(error);
        }
        self
    }

    /// Binds a [`Middleware`] to each run of the agent, but not to the runs of its model and its tools. To reach those as
    /// well, use [`for_tree`](emitree_runtime::for_tree). If a guard selects runs by kind or name, and an agent's run
    /// cannot be selected, [`build`](Self::build) returns an error.
    pub fn middleware<Sort>(mut self, middleware: impl IntoMiddleware<Sort>) -> Self {
        self.middlewares.push(Arc::new(middleware.into_middleware()));
        self
    }

    /// Sets the key-value store that [`AgentContext::values`](crate::AgentContext::values) returns in the agent's hooks
    /// and tools, by default a [`MemoryValues`] of this agent. An agent below has a store of its own; to share one, set
    /// it for both agents.
    pub fn values(mut self, store: impl KeyValues) -> Self {
        self.values = Arc::new(store);
        self
    }

    /// Sets the maximum number of turns in one attempt, by default 20. Each turn has one model call. An attempt that
    /// needs more turns fails.
    pub const fn max_steps(mut self, max_steps: u32) -> Self {
        self.max_steps = max_steps;
        self
    }

    /// Sets whether a reply of the model without text and without calls is an answer, by default `false`.
    ///
    /// With `false`, the model is asked once more, and if that reply is empty too, the run fails. A reply is empty if
    /// the provider itself has sent neither text that is not blank nor a call, at most reasoning; text that a stage
    /// removes does not count. A reply that was stopped, cut off by the token limit or filtered by the provider, is
    /// never judged.
    pub const fn allow_empty(mut self, allow_empty: bool) -> Self {
        self.allow_empty = allow_empty;
        self
    }

    /// Sets how often a run's whole attempt may start again if a middleware, a hook or a layer requests that with
    /// [`Error::retry`](emitree_runtime::Error::retry), by default 0.
    /// [`Run::max_middleware_retries`](emitree_runtime::Run::max_middleware_retries) sets another number for one run.
    pub fn max_middleware_retries(self, most: u32) -> Self {
        self.middleware(MaxMiddlewareRetries(most))
    }

    /// Sets the maximum number of agents in which a run of this agent can be nested, by default 20. A run that is
    /// nested deeper fails with a fatal error, which also ends the runs of the outer agents. Each level uses some of
    /// the thread's stack. If less than 1 MiB of the stack is left, an agent continues on a new stack, so the default
    /// also holds in a debug build, on a thread with a stack of 2 MB, and with built-in middleware around each run. A
    /// session with more than 200 sessions in one another cannot be read again.
    pub const fn max_depth(mut self, max_depth: usize) -> Self {
        self.max_depth = max_depth;
        self
    }

    /// Sets whether each tool call runs in its own task, by default `false`. With `true`, a multi-threaded runtime can
    /// run the tools on several threads, so a tool that blocks its thread need not delay the other calls of its turn.
    /// With `false`, all calls of a turn share the task of the agent's run.
    ///
    /// If the agent's run is dropped or aborted, a task may still be at work for a moment. Its call's result in the
    /// history is then "it may have had effects". A call whose result is "not executed" is never executed.
    pub const fn spawn_tools(mut self, spawn_tools: bool) -> Self {
        self.spawn_tools = spawn_tools;
        self
    }

    /// Sets whether the tool calls of a turn may run at the same time, by default `true`. With `false`, each tool is
    /// [exclusive](Tool::exclusive), also the tools of middlewares: the calls run one after the other, in call order.
    /// The model may still request several calls in one turn.
    ///
    /// A guard that asks for an approval during a call then asks one question for each run of the agent, because calls
    /// behind an interrupted call are not executed. A [gate](Hooks::on_gate) can ask about all calls at once.
    pub const fn parallel_tools(mut self, parallel_tools: bool) -> Self {
        self.parallel_tools = parallel_tools;
        self
    }

    /// Lets the model transfer the conversation to another agent. See [`Handoff`].
    pub fn handoff(mut self, handoff: Handoff) -> Self {
        self.handoffs.push(handoff);
        self
    }

    /// Sets how often a conversation may be transferred in a row before this agent may not transfer it, by default 5.
    pub const fn max_handoffs(mut self, max_handoffs: u32) -> Self {
        self.max_handoffs = max_handoffs;
        self
    }

    fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// Builds the agent.
    ///
    /// # Errors
    ///
    /// Returns the first error of a tool, a middleware or [`hooks`](Self::hooks), unchanged. Also returns an error if
    /// the agent's name cannot be part of a namespace, if two tools have the same name, if two middlewares have the
    /// same id, if `max_steps` is 0, if `max_handoffs` is 0 and there are handoffs, if the
    /// [`check`](AgentMiddleware::check) of a middleware fails, if the server of the model or of one of its
    /// alternatives refuses a tool ([`Provider::check`](crate::Provider::check)), or if a guard is bound to the agent,
    /// its model or a tool, but does not handle its runs ([`check_guards`]).
    pub fn build(self) -> Result<Agent> {
        let Self { name, model, prompt, options, mut tools, hooks, mut installed, mut middlewares, .. } = self;
        let Self { values, max_steps, allow_empty, max_depth, spawn_tools, parallel_tools, .. } = self;
        let Self { handoffs, max_handoffs, failure, .. } = self;
        if let Some(error) = failure {
            return Err(error);
        }
        if max_steps == 0 {
            return Err(Error::new(format!(
                "`max_steps(0)` allows the agent `{name}` no model call: allow at least 1"
            )));
        }
        let hands_off = !handoffs.is_empty();
        if hands_off {
            if max_handoffs == 0 {
                return Err(Error::new(format!(
                    "`max_handoffs(0)` allows the agent `{name}` no transfer: remove its handoffs"
                )));
            }
            // The gate of the handoffs comes last, so that a transfer that another gate has refused counts as none.
            installed.push(Installed::of(Handoffs { all: handoffs, most: max_handoffs })?);
        }
        let own = OwnHooks::new(hooks, &mut installed, values);
        // State, errors and explanations refer to a middleware by its id.
        let mut ids = HashSet::new();
        if let Some(installed) = installed.iter().find(|installed| !ids.insert(installed.id.as_str())) {
            return Err(twice(&installed.id));
        }
        tools.extend(installed.iter().flat_map(|installed| installed.hooks.tools.iter().cloned()));
        check_names(&name, &tools)?;
        // `explain()` lists each middleware under its id. `Prepare` is bound last, because it binds the layers of
        // inherited middleware, which have to follow the agent's own layers.
        middlewares.extend(installed.iter().map(|installed| Arc::clone(installed) as Arc<dyn Middleware>));
        let specs = specs_of(&tools);
        model.check(&specs)?;
        let summary = summary(&model, &tools);
        middlewares.push(Arc::new(Prepare { summary, specs: Arc::clone(&specs), own: Arc::new(own) }));
        let namespace = name.replace(['-', ' '], "_");
        // The events are not declared, because middlewares emit their own events on the agent's run.
        let emitter =
            declared(Emitter::root().child_builder(["agent", &namespace]).creator(Creator::new("Agent", name)))
                .build()?;
        let spec =
            AgentSpec::new(emitter.creator().map_or("", Creator::name), Arc::clone(&specs), ask_for_tools(&installed));
        installed.iter().try_for_each(|installed| installed.check(&spec))?;
        let expected = spec.into_expected();
        let shared = AgentParts {
            emitter,
            model,
            prompt,
            options,
            tools: Arc::new(tools),
            specs,
            last_asked: LastAsked::default(),
            installed,
            expected,
            max_steps,
            allow_empty,
            max_depth,
            spawn_tools,
            parallel_tools,
            hands_off,
        };
        let agent = Agent { shared: Arc::new(shared), middlewares };
        check_guards(&agent)?;
        check_guards(&agent.shared.model)?;
        agent.shared.tools.iter().try_for_each(check_guards)?;
        Ok(agent)
    }
}

pub(crate) fn specs_of(tools: &[Tool]) -> Arc<Vec<ToolSpec>> {
    Arc::new(tools.iter().map(|tool| tool.spec().clone()).collect())
}

/// Returns `true` if a middleware is asked for tools at each turn.
pub(crate) fn ask_for_tools(installed: &[Arc<Installed>]) -> bool {
    installed.iter().any(|installed| !installed.hooks.sources.is_empty())
}

/// Returns the summary of an agent for the output of `explain()`.
fn summary(model: &ChatModel, tools: &[Tool]) -> Map<String, Value> {
    let tools: Vec<_> = tools.iter().map(|tool| tool.spec().name.as_str()).collect();
    Map::from_iter([("model".to_owned(), model.name().into()), ("tools".to_owned(), tools.into())])
}

/// Returns an error if two tools have the same name, because models call tools by name.
pub(crate) fn check_names(agent: &str, tools: &[Tool]) -> Result<()> {
    let mut names = HashSet::new();
    match tools.iter().map(Tool::spec).find(|spec| !names.insert(spec.name.as_str())) {
        Some(ToolSpec { name, .. }) => Err(Error::new(format!("the agent `{agent}` has two tools called `{name}`"))),
        None => Ok(()),
    }
}
