//! The selection of a server's tools, and what is bound to them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use emitree_agent::{Tool, ToolError};
use emitree_middleware::Timeout;
use emitree_middleware::approval::Approval;
use emitree_runtime::{Error, Result, RunContext};

use crate::call::call;
use crate::server::Shared;
use crate::text::quoted;
use crate::tools::list::{Entry, ToolList};
use crate::tools::names::model_name;

/// The most names that an error lists.
const LISTED: usize = 20;

/// The settings of [`McpTools`](super::McpTools), by the server's names of tools.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    pub(super) only: Option<HashSet<String>>,
    pub(super) except: HashSet<String>,
    pub(super) prefix: String,
    pub(super) is_read_only: bool,
    pub(super) idempotent: HashSet<String>,
    pub(super) exclusive: HashSet<String>,
    pub(super) ask_before: HashSet<String>,
    pub(super) timeout: Option<Duration>,
}

impl Selection {
    pub(super) fn takes(&self, entry: &Entry) -> bool {
        let is_selected = self.only.as_ref().is_none_or(|only| only.contains(&entry.name));
        is_selected && !self.except.contains(&entry.name) && (!self.is_read_only || entry.claims_read_only)
    }

    /// Checks that the server lists the tools that the settings name. A misspelled name in `ask_before` would guard
    /// nothing, so it is an error; of the others, one warning each is logged.
    pub(super) fn check(&self, list: &ToolList, server: &str, ctx: &RunContext) -> Result<()> {
        let is_missing = |name: &&String| !list.entries.iter().any(|entry| entry.name == **name);
        let listed = || {
            let names = list.entries.iter().take(LISTED).map(|entry| format!("`{}`", quoted(&entry.name)));
            names.collect::<Vec<_>>().join(", ")
        };
        if let Some(name) = self.ask_before.iter().find(is_missing) {
            return Err(Error::new(format!(
                "`ask_before` names the tool `{name}`, but the MCP server `{server}` lists {}",
                listed()
            )));
        }
        let named = self.only.iter().flatten().chain(&self.except).chain(&self.idempotent).chain(&self.exclusive);
        for name in named.filter(is_missing) {
            ctx.warn_once(&format!("mcp {server} {name}"), || {
                format!("a tool `{name}` is named, but the MCP server `{server}` lists {}", listed())
            });
        }
        Ok(())
    }

    /// Makes the tool of an entry.
    pub(super) fn tool(&self, entry: &Arc<Entry>, shared: &Arc<Shared>) -> Result<Tool, ToolError> {
        let (shared, called) = (Arc::clone(shared), Arc::clone(entry));
        let is_idempotent = self.idempotent.contains(&entry.name);
        let name = model_name(&self.prefix, &entry.name);
        let mut tool = Tool::with_schema(name, &*entry.description, entry.schema.clone(), move |arguments, ctx| {
            call(Arc::clone(&shared), Arc::clone(&called), is_idempotent, arguments, ctx)
        })?;
        if is_idempotent {
            tool = tool.idempotent();
        }
        if self.exclusive.contains(&entry.name) {
            tool = tool.exclusive();
        }
        if self.ask_before.contains(&entry.name) {
            tool = tool.middleware(Approval::by_interrupt());
        }
        if let Some(timeout) = self.timeout {
            tool = tool.middleware(Timeout::per_attempt(timeout));
        }
        Ok(tool)
    }
}
