//! Tools that were made of a list, and which of them a run has beside the tools of others.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use emitree_agent::Tool;
use emitree_runtime::{Error, Result};
use parking_lot::Mutex;

use crate::tools::list::{Entry, ToolList};

/// The tools of a list.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) list: Arc<ToolList>,
    pub(super) tools: Vec<MadeTool>,
}

/// A tool that was made of an entry.
#[derive(Debug)]
pub(super) struct MadeTool {
    pub(super) tool: Tool,
    pub(super) entry: Arc<Entry>,
    /// The tool was not in the first list, so it gives way to another one with its name.
    pub(super) is_late: bool,
}

/// The owner of a name.
pub(super) struct Owner {
    pub(super) origin: String,
    pub(super) is_late: bool,
}

/// The names of tools that a run has.
pub(super) type Names = HashMap<String, Owner>;

/// Chooses the tools whose names are not taken. `withheld` receives each of the others, and the fault.
///
/// # Errors
///
/// Returns an error that names both tools if neither came later.
pub(super) fn choose(
    made: &Made,
    server: &str,
    mut taken: Names,
    mut withheld: impl FnMut(&Entry, String),
) -> Result<Vec<Tool>> {
    let mut tools = Vec::with_capacity(made.tools.len());
    for MadeTool { tool, entry, is_late } in &made.tools {
        let name = &tool.spec().name;
        let origin = format!("`{}` of the MCP server `{server}`", entry.name.escape_debug());
        let Some(other) = taken.get(name) else {
            taken.insert(name.clone(), Owner { origin, is_late: *is_late });
            tools.push(tool.clone());
            continue;
        };
        if !is_late && !other.is_late {
            return Err(Error::new(format!(
                "two tools are called `{name}`: {}, and {origin}; set a `prefix` for the tools of the server",
                other.origin
            )));
        }
        withheld(entry, format!("its name `{name}` is also the one of {}: set a `prefix`", other.origin));
    }
    Ok(tools)
}

/// The tools of all servers in one run of an agent.
#[derive(Debug, Default)]
pub(super) struct Neighbours(Mutex<Vec<Neighbour>>);

#[derive(Debug)]
struct Neighbour {
    id: String,
    server: Arc<str>,
    made: Arc<Made>,
    tools: Vec<Tool>,
}

impl Neighbours {
    /// Returns the tools that a server had at the last turn, if its list is the same.
    pub(super) fn same(&self, id: &str, made: &Arc<Made>) -> Option<Vec<Tool>> {
        let all = self.0.lock();
        let same = all.iter().find(|one| one.id == id && Arc::ptr_eq(&one.made, made))?;
        Some(same.tools.clone())
    }

    /// Adds the names of the other servers' tools.
    pub(super) fn add_names(&self, id: &str, names: &mut Names) {
        for one in self.0.lock().iter().filter(|one| one.id != id) {
            let used: HashSet<_> = one.tools.iter().map(|tool| tool.spec().name.as_str()).collect();
            for MadeTool { tool, entry, is_late } in &one.made.tools {
                let name = &tool.spec().name;
                if used.contains(name.as_str()) {
                    let origin = format!("`{}` of the MCP server `{}`", entry.name.escape_debug(), one.server);
                    names.insert(name.clone(), Owner { origin, is_late: *is_late });
                }
            }
        }
    }

    /// Keeps the tools of a server for the next turns.
    pub(super) fn set(&self, id: &str, server: &Arc<str>, made: Arc<Made>, tools: Vec<Tool>) {
        let mut all = self.0.lock();
        all.retain(|one| one.id != id);
        all.push(Neighbour { id: id.to_owned(), server: Arc::clone(server), made, tools });
    }
}
