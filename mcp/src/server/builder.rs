//! The settings of a server.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::Result;
use parking_lot::Mutex;

use crate::call::question::{Elicit, ElicitAnswer, ElicitQuestion};
use crate::child;
use crate::connection::era::Era;
use crate::connection::slot::{Link, Slot, Source};
use crate::error::Fault;
use crate::limits::Limits;
use crate::server::report::Report;
use crate::server::{McpServer, Setup, emitter_of};

/// The settings of an [`McpServer`], which [`connect`](Self::connect) connects to. `Over` is how it is reached.
#[must_use = "the builder does nothing until `connect` is called"]
pub struct McpServerBuilder<Over> {
    pub(crate) over: Over,
    name: String,
    era: Option<Era>,
    connect_timeout: Duration,
    limits: Limits,
    restarts: usize,
    sends_trace_parent: bool,
    elicit: Option<Elicit>,
}

/// A server that is a program.
#[derive(Debug)]
pub struct Command(child::Command);

impl<Over> McpServerBuilder<Over> {
    pub(crate) fn new(over: Over, name: &str) -> Self {
        Self {
            over,
            name: name.replace(|c: char| !c.is_ascii_alphanumeric(), "_"),
            era: None,
            connect_timeout: Duration::from_secs(15),
            limits: Limits::default(),
            restarts: 3,
            sends_trace_parent: false,
            elicit: None,
        }
    }

    /// Sets the name, which errors, the namespace of events and the id of the tools' middleware have. It has letters of
    /// ASCII, digits and `_`. The default is the name of the program, or the host.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the era of the protocol. By default, the server is asked with `server/discover`, and if it does not know
    /// this method, or does not answer within 2 s, with the handshake on a new connection.
    pub const fn era(mut self, era: Era) -> Self {
        self.era = Some(era);
        self
    }

    /// Sets the time in which the server has to be connected, by default 15 s: the first start with `npx` takes long.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the most that the server may send.
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sends the trace of the run with each call, as `traceparent` in `_meta`.
    pub const fn trace_parent(mut self, is_sent: bool) -> Self {
        self.sends_trace_parent = is_sent;
        self
    }

    /// Sets the function that answers questions of the server while its call waits. Without it, a question is [kept with
    /// the session](crate#questions-of-servers). A question that cannot be kept is answered with `decline`, and reported
    /// as [`ElicitationRefused`](crate::events::ElicitationRefused).
    pub fn elicit<F, Fut>(mut self, answer: F) -> Self
    where
        F: Fn(ElicitQuestion) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<ElicitAnswer>> + Send + 'static,
    {
        self.elicit = Some(Arc::new(move |question| Box::pin(answer(question))));
        self
    }

    #[cfg(feature = "http")]
    pub(crate) fn error(&self, fault: Fault) -> crate::McpError {
        fault.of(&self.name.as_str().into())
    }

    /// Makes the handle. Nothing is sent yet.
    pub(crate) fn build(self, link: impl FnOnce(Over) -> Link) -> Result<McpServer> {
        let name: Arc<str> = self.name.into();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            let fault = "its name has to have only letters of ASCII, digits and `_`: set it with `.name(..)`";
            return Err(Fault::Setting(fault.to_owned()).of(&name).into());
        }
        let emitter = emitter_of(&name)?;
        let report = Report::start(emitter.clone());
        let setup = Setup {
            name,
            limits: self.limits,
            connect_timeout: self.connect_timeout,
            era: Mutex::new(self.era),
            restarts: self.restarts,
            sends_trace_parent: self.sends_trace_parent,
            elicit: self.elicit,
            report,
        };
        Ok(McpServer::new(setup, link(self.over), emitter))
    }
}

impl McpServerBuilder<Command> {
    pub(super) fn command(program: OsString, args: Vec<OsString>) -> Self {
        let stem = Path::new(&program).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Self::new(Command(child::Command::new(program, args)), &stem)
    }

    /// Sets a variable of the program's environment.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.over.0.set(name.into(), value.into());
        self
    }

    /// Passes variables of this process on to the program.
    pub fn inherit_env<N: Into<OsString>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        names.into_iter().for_each(|name| self.over.0.inherit(name.into()));
        self
    }

    /// Sets the folder in which the program runs.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.over.0.dir = Some(dir.into());
        self
    }

    /// Sets how often calls may start the program again within five minutes, by default 3 times. The first of these
    /// starts waits for 0.2 s, the second for 1.4 s, and each later one for 10 s.
    pub const fn restarts(mut self, restarts: usize) -> Self {
        self.restarts = restarts;
        self
    }

    /// Starts the program, connects to it, and reads its list of tools.
    ///
    /// # Errors
    ///
    /// Returns an [`McpError`](crate::McpError) if the program cannot be started, ends, or does not answer in time, if it
    /// supports no version of the protocol in common, or if its tools cannot be read.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the program is killed.
    pub async fn connect(self) -> Result<McpServer> {
        let server = self.build(|Command(command)| Link::Child(Slot::new(Source::Child(command))))?;
        let Some(slot) = server.shared.only_slot() else { return Ok(server) };
        let list = slot.tools(&server.shared.setup).await;
        list.map_err(|fault| server.shared.error(fault))?;
        Ok(server)
    }
}

impl<Over> fmt::Debug for McpServerBuilder<Over> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpServerBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}
