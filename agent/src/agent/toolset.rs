//! The tools of an agent's run.

use std::sync::Arc;

use emitree_runtime::{Error, Result, RunContext};

use crate::agent::AgentParts;
use crate::agent::builder::{check_names, specs_of};
use crate::agent::middleware::Installed;
use crate::{Tool, ToolSpec};

/// The tools of a turn: those that every turn has, and then those that middlewares were asked for.
pub(crate) struct Toolset {
    /// Shared with the agent, unless a middleware adds tools.
    tools: Arc<Vec<Tool>>,
    specs: Arc<Vec<ToolSpec>>,
    /// The number of tools that every turn has.
    fixed: usize,
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

    /// Asks the middlewares for the tools of a turn. The list of specs is rebuilt only if a tool is another one.
    pub(crate) async fn ask(&mut self, installed: &[Arc<Installed>], ctx: &RunContext) -> Result<()> {
        let mut asked = Vec::new();
        for installed in installed {
            for source in &installed.hooks.sources {
                let tools = source.ask(ctx).await?;
                asked.extend(tools.into_iter().map(|tool| (installed.id.as_str(), tool)));
            }
        }
        let before = &self.tools[self.fixed..];
        let is_same = before.len() == asked.len() && before.iter().zip(&asked).all(|(a, (_, b))| a.is_clone_of(b));
        if !is_same {
            self.check_origins(&asked, installed, ctx)?;
        }
        let tools = Arc::make_mut(&mut self.tools);
        tools.truncate(self.fixed);
        tools.extend(asked.into_iter().map(|(_, tool)| tool));
        if !is_same {
            self.specs = specs_of(&self.tools);
        }
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
