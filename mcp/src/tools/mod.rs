//! The tools of a server, as a middleware of agents.

pub(crate) mod list;
mod made;
mod names;
mod schema;
mod selection;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use emitree_agent::hook::AgentSpec;
use emitree_agent::{AgentMiddleware, Hooks, Tool};
use emitree_runtime::{Result, RunContext};
use parking_lot::Mutex;

use crate::events::ToolWithheld;
use crate::server::Shared;
use crate::text::quoted;
use crate::tools::list::{Entry, ToolList};
use crate::tools::made::{Made, MadeTool, Names, Neighbours, Owner, choose};
use crate::tools::selection::Selection;

/// The tools of a server, as a middleware that [`AgentBuilder::with`](emitree_agent::AgentBuilder::with) adds to an
/// agent. Created by [`McpServer::tools`](crate::McpServer::tools).
///
/// At each turn, the agent has the tools that the server then lists. The methods take the server's names of tools,
/// without the prefix. Models receive names of at most 64 letters, digits, `_` and `-`; a name that had to be changed
/// ends with six digits of its hash.
///
/// The arguments of a call are checked against the tool's schema before anything is sent. The result is the structured
/// content, or else the texts. Images, sounds, files and links are its [parts](emitree_agent::ToolOutput::part), with
/// the bounds of parts; a link is never fetched, not even by the server of a model, because it is no image. Content that
/// is for the user only is in the output's details, under `for_user`. If the run of a call is aborted or dropped, the
/// call is cancelled at the server. The run emits [`ToolProgress`](crate::events::ToolProgress) as `progress`.
#[derive(Clone)]
pub struct McpTools {
    shared: Arc<Shared>,
    id: String,
    selection: Selection,
    memory: Arc<Mutex<Memory>>,
}

/// The state between turns.
#[derive(Debug, Default)]
struct Memory {
    /// The tools that were made of the last lists, the newest last.
    made: Vec<Arc<Made>>,
    /// The names of the tools that each agent has by itself.
    fixed: HashMap<String, Vec<String>>,
    /// The names of the first list, for models. A tool that comes later gives way to one with its name.
    first: Option<HashSet<String>>,
    /// The tools that were reported, and the fault.
    withheld: HashSet<(String, String)>,
}

/// The most lists whose tools are kept: one for each connection.
const LISTS: usize = 64;

fn names<N: Into<String>>(names: impl IntoIterator<Item = N>) -> impl Iterator<Item = String> {
    names.into_iter().map(Into::into)
}

impl McpTools {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let id = format!("mcp_{}", shared.setup.name);
        Self { shared, id, selection: Selection::default(), memory: Arc::default() }
    }

    /// Keeps these tools, and no others.
    #[must_use]
    pub fn only<N: Into<String>>(mut self, tools: impl IntoIterator<Item = N>) -> Self {
        self.selection.only.get_or_insert_default().extend(names(tools));
        self
    }

    /// Leaves these tools out.
    #[must_use]
    pub fn except<N: Into<String>>(mut self, tools: impl IntoIterator<Item = N>) -> Self {
        self.selection.except.extend(names(tools));
        self
    }

    /// Puts a prefix before the names that models receive.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.selection.prefix = prefix.into();
        self
    }

    /// Keeps the tools that the server calls read-only. This hint is a claim of the server, which nothing checks.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.selection.is_read_only = true;
        self
    }

    /// Marks tools as [idempotent](Tool::idempotent): a call that was interrupted is made again by a resume, and a failed
    /// connection makes its error retryable. In the old era, it is also made again after the answer to a
    /// [question](crate#questions-of-servers), and in the new era, if the server does not take its state any more. The
    /// server's own hint is not used, because a wrong one repeats effects.
    #[must_use]
    pub fn idempotent<N: Into<String>>(mut self, tools: impl IntoIterator<Item = N>) -> Self {
        self.selection.idempotent.extend(names(tools));
        self
    }

    /// Makes tools [exclusive](Tool::exclusive): while a call of one runs, no other call of the turn does.
    #[must_use]
    pub fn exclusive<N: Into<String>>(mut self, tools: impl IntoIterator<Item = N>) -> Self {
        self.selection.exclusive.extend(names(tools));
        self
    }

    /// Asks a person before each call of these tools ([`Approval::by_interrupt`](emitree_middleware::approval::Approval::by_interrupt)). If the server's first list lacks one
    /// of the names, the run fails, because a misspelled name would guard nothing.
    #[must_use]
    pub fn ask_before<N: Into<String>>(mut self, tools: impl IntoIterator<Item = N>) -> Self {
        self.selection.ask_before.extend(names(tools));
        self
    }

    /// Limits the time of each attempt of a call ([`Timeout::per_attempt`](emitree_middleware::Timeout::per_attempt)). A call that takes longer is cancelled at
    /// the server.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.selection.timeout = Some(timeout);
        self
    }

    /// Returns the tools of a turn.
    async fn of_turn(&self, ctx: &RunContext) -> Result<Vec<Tool>> {
        let Self { shared, id, memory, .. } = self;
        let slot = shared.link.slot(ctx).map_err(|fault| shared.error(fault))?;
        let list = slot.tools(&shared.setup).await.map_err(|fault| shared.error(fault))?;
        let made = self.made(&list, ctx)?;
        let neighbours = ctx.own_extension_or_default::<Neighbours>();
        // The usual case: the list has not changed since the last turn.
        if let Some(tools) = neighbours.same(id, &made) {
            return Ok(tools);
        }
        let mut taken = Names::new();
        for name in memory.lock().fixed.get(ctx.name()).into_iter().flatten() {
            let origin = format!("one of the agent `{}`", ctx.name());
            taken.insert(name.clone(), Owner { origin, is_late: false });
        }
        neighbours.add_names(id, &mut taken);
        let tools = choose(&made, &shared.setup.name, taken, |entry, fault| self.withhold(entry, fault))?;
        neighbours.set(id, &shared.setup.name, made, tools.clone());
        Ok(tools)
    }

    /// Returns the tools of a list. A list that was read again and has not changed has the same tools.
    fn made(&self, list: &Arc<ToolList>, ctx: &RunContext) -> Result<Arc<Made>> {
        let first = {
            let memory = self.memory.lock();
            if let Some(made) = memory.made.iter().find(|made| made.list.has_tools_of(list)) {
                return Ok(Arc::clone(made));
            }
            memory.first.clone()
        };
        if first.is_none() {
            self.selection.check(list, &self.shared.setup.name, ctx)?;
        }
        let (mut tools, mut seen) = (Vec::new(), HashSet::new());
        for entry in list.entries.iter().filter(|entry| self.selection.takes(entry)) {
            match self.selection.tool(entry, &self.shared) {
                Ok(tool) => {
                    let name = tool.spec().name.clone();
                    let is_late = first.as_ref().is_some_and(|first| !first.contains(&name) || seen.contains(&name));
                    seen.insert(name);
                    tools.push(MadeTool { tool, entry: Arc::clone(entry), is_late });
                }
                Err(fault) => self.withhold(entry, fault.to_string()),
            }
        }
        let made = Arc::new(Made { list: Arc::clone(list), tools });
        let mut memory = self.memory.lock();
        memory.first.get_or_insert(seen);
        if memory.made.len() == LISTS {
            memory.made.remove(0);
        }
        memory.made.push(Arc::clone(&made));
        Ok(made)
    }

    /// Reports a tool that no agent receives, once.
    fn withhold(&self, entry: &Entry, fault: String) {
        let tool = quoted(&entry.name);
        if self.memory.lock().withheld.insert((tool.clone(), fault.clone())) {
            self.shared.setup.report.send(ToolWithheld { tool, fault });
        }
    }
}

impl AgentMiddleware for McpTools {
    fn id(&self) -> &str {
        &self.id
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let tools = self.clone();
        hooks.tools_async(move |ctx| {
            let tools = tools.clone();
            Box::pin(async move { tools.of_turn(ctx).await })
        });
        Ok(())
    }

    fn check(&self, agent: &AgentSpec) -> Result<()> {
        let names = agent.tools().iter().map(|spec| spec.name.clone()).collect();
        self.memory.lock().fixed.insert(agent.name().to_owned(), names);
        Ok(())
    }
}

impl fmt::Debug for McpTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shared, selection, .. } = self;
        f.debug_struct("McpTools")
            .field("server", &shared.setup.name)
            .field("selection", selection)
            .finish_non_exhaustive()
    }
}
