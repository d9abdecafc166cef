//! The handle of a server.

pub(crate) mod builder;
pub(crate) mod report;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::{Creator, Emitter};
use emitree_runtime::Result;
use parking_lot::Mutex;

use crate::call::question::Elicit;
use crate::connection::era::Era;
use crate::connection::slot::{Link, Slot};
use crate::error::{Fault, McpError};
use crate::events::{
    Connected, ElicitationRefused, Exited, QuestionCleaned, Restarted, ServerLog, ToolCleaned, ToolWithheld,
    ToolsChanged,
};
use crate::limits::Limits;
use crate::server::builder::{Command, McpServerBuilder};
use crate::server::report::Report;
use crate::tools::McpTools;

/// A server of the Model Context Protocol. Its [`tools`](Self::tools) are tools of agents.
///
/// [`McpServer::command`] starts a program, and `McpServer::http` (feature `http`) reaches a server at an address. A
/// handle is cheap to clone, and serves any number of runs at once. The last handle owns the process: dropping it, and
/// all agents with its tools, kills the process and what it has started.
///
/// # Its own events
///
/// The server's [`emitter`](Self::emitter) has the namespace `mcp.<name>`.
///
/// | event | payload | when |
/// |---|---|---|
/// | `connected` | [`Connected`] | the server has answered |
/// | `exited` | [`Exited`] | its process has ended |
/// | `restarted` | [`Restarted`] | a call has started the process again |
/// | `tools_changed` | [`ToolsChanged`] | a turn has read another list of tools |
/// | `tool_withheld` | [`ToolWithheld`] | the server lists a tool that no agent receives |
/// | `tool_cleaned` | [`ToolCleaned`] | invisible characters were removed from a tool |
/// | `question_cleaned` | [`QuestionCleaned`] | invisible characters were removed from a question |
/// | `elicitation_refused` | [`ElicitationRefused`] | the server's question was answered with `decline` |
/// | `log` | [`ServerLog`] | the server has written a log message, to stderr, or a stray line to stdout |
#[derive(Clone)]
pub struct McpServer {
    pub(crate) shared: Arc<Shared>,
}

/// The state that all handles of a server share.
pub(crate) struct Shared {
    pub(crate) setup: Arc<Setup>,
    pub(crate) link: Link,
    emitter: Emitter,
}

/// The settings that each connection of a server needs.
pub(crate) struct Setup {
    pub(crate) name: Arc<str>,
    pub(crate) limits: Limits,
    pub(crate) connect_timeout: Duration,
    /// The era that was set, or that an answer has shown. One that was found by silence is not remembered.
    pub(crate) era: Mutex<Option<Era>>,
    pub(crate) restarts: usize,
    pub(crate) sends_trace_parent: bool,
    pub(crate) elicit: Option<Elicit>,
    pub(crate) report: Report,
}

impl McpServer {
    /// Returns a builder for a server that is a program. It speaks over stdin and stdout.
    ///
    /// The program receives the variables `PATH`, `HOME`, `TMPDIR` and `LANG`, and no other of this process, unless
    /// [`env`](McpServerBuilder::env) or [`inherit_env`](McpServerBuilder::inherit_env) name them.
    pub fn command<A: Into<std::ffi::OsString>>(
        program: impl Into<std::ffi::OsString>,
        args: impl IntoIterator<Item = A>,
    ) -> McpServerBuilder<Command> {
        McpServerBuilder::command(program.into(), args.into_iter().map(Into::into).collect())
    }

    pub(crate) fn new(setup: Setup, link: Link, emitter: Emitter) -> Self {
        Self { shared: Arc::new(Shared { setup: Arc::new(setup), link, emitter }) }
    }

    /// Returns the name of the server.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.setup.name
    }

    /// Returns the emitter of the server's events. Those of `connect` itself reach only listeners on emitters above, such
    /// as [`Emitter::root`].
    #[must_use]
    pub fn emitter(&self) -> &Emitter {
        &self.shared.emitter
    }

    /// Returns the tools of the server, as a middleware of agents. At each turn, the agent has the tools that the
    /// server then lists.
    #[must_use]
    pub fn tools(&self) -> McpTools {
        McpTools::new(Arc::clone(&self.shared))
    }

    /// Closes all connections. Calls under way fail. A process receives the end of its input, and is killed, with what
    /// it has started, if it has not ended after 3 s. Later calls fail.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the connections are closed, and the process is killed at once.
    pub async fn close(&self) {
        self.shared.link.close().await;
    }
}

impl Shared {
    /// Returns the error of the server for a fault.
    pub(crate) fn error(&self, fault: Fault) -> McpError {
        fault.of(&self.setup.name)
    }

    pub(crate) fn only_slot(&self) -> Option<Arc<Slot>> {
        self.link.only_slot()
    }
}

/// Makes the emitter of a server.
fn emitter_of(name: &str) -> Result<Emitter> {
    let emitter = Emitter::root()
        .child_builder(["mcp", name])
        .creator(Creator::new("McpServer", name.to_owned()))
        .declares_event::<Connected>()
        .declares_data::<Exited>()
        .declares_event::<Restarted>()
        .declares_data::<ToolsChanged>()
        .declares_data::<ToolWithheld>()
        .declares_data::<ToolCleaned>()
        .declares_data::<QuestionCleaned>()
        .declares_data::<ElicitationRefused>()
        .declares_data::<ServerLog>()
        .build()?;
    Ok(emitter)
}

impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpServer").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("name", &self.setup.name).finish_non_exhaustive()
    }
}
