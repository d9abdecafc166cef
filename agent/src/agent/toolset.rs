//! The tools of an agent's run.

use std::sync::Arc;

use emitree_runtime::{Error, Result, RunContext};
use parking_lot::Mutex;

use crate::agent::AgentParts;
use crate::agent::builder::{check_names, specs_of};
use crate::agent::middleware::Installed;
use crate::tool::ToolIdentity;
use crate::{Tool, ToolSpec};

/// The tools of a turn: those that every turn has, and then those that middlewares were asked for.
pub(crate) struct Toolset {
    /// Shared with the agent, unless a middleware adds tools.
    tools: Arc<Vec<Tool>>,
    specs: Arc<Vec<ToolSpec>>,
    /// The number of tools that every turn has.
    fixed: usize,
}

/// The descriptions of the tools of a turn that asked for some. A later run with the same tools shares them, because
/// schemas are large.
#[derive(Default)]
pub(crate) struct LastAsked(Mutex<(Vec<ToolIdentity>, Arc<Vec<ToolSpec>>)>);

impl LastAsked {
    /// Returns the descriptions of the tools, if they are those of the last time.
    fn specs_of(&self, tools: &[Tool]) -> Option<Arc<Vec<ToolSpec>>> {
        let (known, specs) = &*self.0.lock();
        let is_same = known.len() == tools.len() && known.iter().zip(tools).all(|(known, tool)| known.is_of(tool));
        is_same.then(|| Arc::clone(specs))
    }

    fn set(&self, tools: &[Tool], specs: &Arc<Vec<ToolSpec>>) {
        *self.0.lock() = (tools.iter().map(Tool::identity).collect(), Arc::clone(specs));
    }
}

impl Toolset {
    /// Returns the tools of the agent and of the middlewares that joined the run.
    pub(crate) fn new(agent: &AgentParts, joined: &[Arc<Installed>], ctx: &RunContext) -> Result<Self> {
        let mut tools = Arc::clone(&agent.tools);
        let mut specs = Arc::clone(&agent.specs);
        let more: Vec<_> = joined.iter().flat_map(|installed| installed.hooks.tools.iter().cloned()).collect();
        // Schemas are large, so a run shares the agent's tool specs, unless a middleware of the run adds tools.
        if !more.is_empty() {
            Arc::make_mut(&mut tools).extend(more);
            check_names(ctx.name(), &tools)?;
            specs = specs_of(&tools);
        }
        Ok(Self { fixed: tools.len(), tools, specs })
    }

    pub(crate) fn tools(&self) -> &[Tool] {
        &self.tools
    }

    pub(crate) const fn specs(&self) -> &Arc<Vec<ToolSpec>> {
        &self.specs
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.spec().name == name)
    }

    /// Asks the middlewares for the tools of a turn. The list of specs is rebuilt only if a tool is another one than in
    /// the last turn, and than in the last run of the agent.
    pub(crate) async fn ask(
        &mut self,
        agent: &AgentParts,
        installed: &[Arc<Installed>],
        ctx: &RunContext,
    ) -> Result<()> {
        let mut asked = Vec::new();
        for installed in installed {
            for source in &installed.hooks.sources {
                let tools = source.ask(ctx).await?;
                asked.extend(tools.into_iter().map(|tool| (installed.id.as_str(), tool)));
            }
        }
        let before = &self.tools[self.fixed..];
        let is_same = before.len() == asked.len() && before.iter().zip(&asked).all(|(a, (_, b))| a.is_clone_of(b));
        let all: Vec<_> = self.tools[..self.fixed].iter().chain(asked.iter().map(|(_, tool)| tool)).cloned().collect();
        if !is_same {
            self.specs = match agent.last_asked.specs_of(&all) {
                Some(specs) => specs,
                None => {
                    self.check_origins(&asked, installed, ctx)?;
                    let specs = specs_of(&all);
                    agent.last_asked.set(&all, &specs);
                    specs
                }
            };
        }
        self.tools = Arc::new(all);
        Ok(())
    }

    /// Returns an error that names both origins if two tools have the same name.
    fn check_origins(&self, asked: &[(&str, Tool)], installed: &[Arc<Installed>], ctx: &RunContext) -> Result<()> {
        let origin = |tool: &Tool| {
            let has = |installed: &&Arc<Installed>| installed.hooks.tools.iter().any(|own| own.is_clone_of(tool));
            let by = installed.iter().find(has).map(|installed| format!("the middleware `{}`", installed.id));
            by.unwrap_or_else(|| "the agent".to_owned())
        };
        let fixed = self.tools[..self.fixed].iter().map(|tool| (tool, origin(tool)));
        let asked = asked.iter().map(|(by, tool)| (tool, format!("the middleware `{by}`")));
        let mut seen = std::collections::HashMap::new();
        for (tool, origin) in fixed.chain(asked) {
            let name = tool.spec().name.as_str();
            if let Some(first) = seen.insert(name, origin.clone()) {
                return Err(Error::new(format!(
                    "the agent `{}` has two tools called `{name}`: one of {first} and one of {origin}",
                    ctx.name()
                )));
            }
        }
        Ok(())
    }
}
