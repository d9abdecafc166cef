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
    /// The first error of a tool or a middleware: `build` returns it.
    failure: Option<Error>,
}

/// A tool, or the error of making a tool, which [`AgentBuilder::build`] then returns.
pub trait IntoTool {
    /// Returns the tool.
    ///
    /// # Errors
    ///
    /// Returns the error of making the tool.
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

    /// Adds a tool. If the tool could not be made, [`build`](Self::build) returns the error.
    pub fn tool(mut self, tool: impl IntoTool) -> Self {
        match tool.into_tool() {
            Ok(tool) => self.tools.push(tool),
            Err(error) => self.fail(error.into()),
        }
        self
    }

    /// Adds a middleware of agents. Its hooks are called after the hooks of the middlewares added before.
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

    /// Sets the maximum number of model calls of an attempt, by default 20. An attempt that needs another call fails.
    pub const fn max_steps(mut self, max_steps: u32) -> Self {
        self.max_steps = max_steps;
        self
    }

    /// Sets the maximum number of agents' runs that this agent's run may be nested in, by default 20. A run that is nested
    /// deeper fails. The limit protects the thread's stack, of which each level takes a part.
    pub const fn max_depth(mut self, max_depth: usize) -> Self {
        self.max_depth = max_depth;
        self
    }

    /// Runs each tool call in a task of its own, so that tools use several threads, and a tool that blocks its thread does
    /// not delay the other calls of its turn. By default all calls of a turn share the task of the agent's run.
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
    /// Returns the first error of a tool or a middleware, unchanged. Also returns an error if the agent's name cannot be
    /// part of a namespace, if two tools have the same name or two middlewares the same id, or if `max_steps` is 0.
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
        // Explanations list each middleware under its id. `Prepare` is the last: it binds the layers of inherited
        // middleware, which come behind the agent's own although inherited middleware is bound first.
        middlewares.extend(installed.iter().map(|installed| Arc::clone(installed) as Arc<dyn Middleware>));
        middlewares.push(Arc::new(Prepare { summary: summary(&model, &tools, &installed) }));
        let namespace = name.replace(['-', ' '], "_");
        // The events are not declared, because middlewares emit their own events on the agent's run.
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

/// Returns the summary of an agent for explanations.
fn summary(model: &ChatModel, tools: &[Tool], installed: &[Arc<Installed>]) -> Map<String, Value> {
    let tools: Vec<_> = tools.iter().map(|tool| tool.spec().name.as_str()).collect();
    let mut fields = Map::from_iter([("model".to_owned(), model.name().into()), ("tools".to_owned(), tools.into())]);
    // Only the last hook of `model.wire` is called. The summary lists the others as replaced.
    let mut wires: Vec<_> = installed.iter().flat_map(|installed| installed.hooks.chains.wire.names()).collect();
    if let Some(used) = wires.pop() {
        fields.insert(Place::ModelWire.to_string(), used.into());
        if !wires.is_empty() {
            fields.insert(format!("{} replaced", Place::ModelWire), wires.into());
        }
    }
    fields
}

/// Returns an error if two tools have the same name, because models call tools by name.
pub(crate) fn check_names(agent: &str, tools: &[Tool]) -> Result<()> {
    let mut names = HashSet::new();
    match tools.iter().map(Tool::spec).find(|spec| !names.insert(spec.name.as_str())) {
        Some(ToolSpec { name, .. }) => Err(Error::new(format!("the agent `{agent}` has two tools called `{name}`"))),
        None => Ok(()),
    }
}
