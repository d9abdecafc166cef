//! Building an agent.

use std::collections::HashSet;
use std::sync::Arc;

use emitree_emitter::{Creator, Emitter};
use emitree_runtime::{Error, IntoMiddleware, Middleware, Result, Runnable};
use serde_json::{Map, Value};

use crate::agent::middleware::{Installed, Prepare, twice};
use crate::agent::{Agent, AgentParts};
use crate::{AgentMiddleware, ChatModel, ChatOptions, Place, Tool, ToolError, ToolSpec};

/// Builds an [`Agent`]. Made by [`Agent::builder`].
#[derive(Debug)]
#[must_use]
pub struct AgentBuilder {
    name: String,
    model: ChatModel,
    prompt: Option<String>,
    options: ChatOptions,
    tools: Vec<Tool>,
    installed: Vec<Arc<Installed>>,
    middlewares: Vec<Arc<dyn Middleware>>,
    max_steps: u32,
    max_depth: usize,
    spawn_tools: bool,
    /// The first failure of a step: `build` returns it.
    failure: Option<Error>,
}

/// A tool, or the failure to make one: [`AgentBuilder::build`] returns it.
pub trait IntoTool {
    /// Returns the tool.
    ///
    /// # Errors
    ///
    /// Returns the reason why there is none.
    fn into_tool(self) -> Result<Tool, ToolError>;
}

impl IntoTool for Tool {
    fn into_tool(self) -> Result<Tool, ToolError> {
        Ok(self)
    }
}

impl IntoTool for Result<Tool, ToolError> {
    fn into_tool(self) -> Self {
        self
    }
}

impl AgentBuilder {
    pub(crate) fn new(name: String, model: ChatModel) -> Self {
        Self {
            name,
            model,
            prompt: None,
            options: ChatOptions::default(),
            tools: Vec::new(),
            installed: Vec::new(),
            middlewares: Vec::new(),
            max_steps: 20,
            max_depth: 20,
            spawn_tools: false,
            failure: None,
        }
    }

    /// Sets the system prompt. Middlewares may add to it.
    pub fn prompt(mut self, prompt: impl Into<String>) -> Self {
        self.prompt = Some(prompt.into());
        self
    }

    /// Sets options for all model calls. A run's own options override them one by one.
    pub fn options(mut self, options: ChatOptions) -> Self {
        self.options = options;
        self
    }

    /// Adds a tool. A tool that could not be made is the error of [`build`](Self::build).
    pub fn tool(mut self, tool: impl IntoTool) -> Self {
        match tool.into_tool() {
            Ok(tool) => self.tools.push(tool),
            Err(error) => self.fail(error.into()),
        }
        self
    }

    /// Adds a middleware of agents, behind those added before.
    #[expect(clippy::needless_pass_by_value, reason = "a middleware is given away: its hooks keep what they need")]
    pub fn with(mut self, middleware: impl AgentMiddleware) -> Self {
        match Installed::new(&middleware) {
            Ok(installed) => self.installed.push(Arc::new(installed)),
            Err(error) => self.fail(error),
        }
        self
    }

    /// Binds a middleware of runs to each run of the agent.
    pub fn middleware<Sort>(mut self, middleware: impl IntoMiddleware<Sort>) -> Self {
        self.middlewares.push(Arc::new(middleware.into_middleware()));
        self
    }

    /// Sets the most model calls of a run. One more is the run's error. By default 20.
    pub const fn max_steps(mut self, max_steps: u32) -> Self {
        self.max_steps = max_steps;
        self
    }

    /// Sets the most runs of agents that this agent's run may be nested in. One more is the run's error. By default 20:
    /// each level takes some of the thread's stack.
    pub const fn max_depth(mut self, max_depth: usize) -> Self {
        self.max_depth = max_depth;
        self
    }

    /// Runs each tool call in a task of its own, so that tools use several threads and a tool that blocks does not hold the
    /// other calls of its turn up. By default all calls of a turn share the task of the agent's run.
    pub const fn spawn_tools(mut self, spawn_tools: bool) -> Self {
        self.spawn_tools = spawn_tools;
        self
    }

    fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// Builds the agent.
    ///
    /// # Errors
    ///
    /// Returns the first error of a tool or a middleware, in its own words, and an error if the name cannot be part of a
    /// namespace, if two tools or two middlewares have one name, or if no model call is allowed.
    pub fn build(self) -> Result<Agent> {
        let Self { name, model, prompt, options, mut tools, installed, mut middlewares, .. } = self;
        let Self { max_steps, max_depth, spawn_tools, failure, .. } = self;
        if let Some(error) = failure {
            return Err(error);
        }
        if max_steps == 0 {
            return Err(Error::new(format!(
                "`max_steps(0)` allows the agent `{name}` no model call: allow at least 1"
            )));
        }
        // State, errors and explanations refer to a middleware by its id.
        let mut ids = HashSet::new();
        if let Some(installed) = installed.iter().find(|installed| !ids.insert(installed.id.as_str())) {
            return Err(twice(&installed.id));
        }
        tools.extend(installed.iter().flat_map(|installed| installed.tools.iter().cloned()));
        check_names(&name, &tools)?;
        // Each is listed in explanations under its id. `Prepare` is the last, because inherited middleware is bound before
        // the agent's and comes behind it at every place.
        middlewares.extend(installed.iter().map(|installed| Arc::clone(installed) as Arc<dyn Middleware>));
        middlewares.push(Arc::new(Prepare { summary: summary(&model, &tools, &installed) }));
        let namespace = name.replace(['-', ' '], "_");
        // Not declared, because middlewares emit events of their own on the agent's run.
        let emitter =
            Emitter::root().child_builder(["agent", &namespace]).creator(Creator::new("Agent", name)).build()?;
        let specs = specs_of(&tools);
        let shared =
            AgentParts { emitter, model, prompt, options, tools, specs, installed, max_steps, max_depth, spawn_tools };
        Ok(Agent { shared: Arc::new(shared), middlewares })
    }
}

pub(crate) fn specs_of(tools: &[Tool]) -> Arc<Vec<ToolSpec>> {
    Arc::new(tools.iter().map(|tool| tool.spec().clone()).collect())
}

/// Describes an agent in explanations.
fn summary(model: &ChatModel, tools: &[Tool], installed: &[Arc<Installed>]) -> Map<String, Value> {
    let tools: Vec<_> = tools.iter().map(|tool| tool.spec().name.as_str()).collect();
    let mut fields = Map::from_iter([("model".to_owned(), model.name().into()), ("tools".to_owned(), tools.into())]);
    // A slot: the last hook is called, and the others are named as replaced.
    let mut wires: Vec<_> = installed.iter().flat_map(|installed| installed.hooks.chains.wire.names()).collect();
    if let Some(used) = wires.pop() {
        fields.insert(Place::ModelWire.to_string(), used.into());
        if !wires.is_empty() {
            fields.insert(format!("{} replaced", Place::ModelWire), wires.into());
        }
    }
    fields
}

/// Models call tools by name: two of one name cannot be told apart.
pub(crate) fn check_names(agent: &str, tools: &[Tool]) -> Result<()> {
    let mut names = HashSet::new();
    match tools.iter().map(Tool::spec).find(|spec| !names.insert(spec.name.as_str())) {
        Some(ToolSpec { name, .. }) => Err(Error::new(format!("the agent `{agent}` has two tools called `{name}`"))),
        None => Ok(()),
    }
}
