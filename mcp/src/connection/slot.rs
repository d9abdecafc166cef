//! The place of a connection: it is opened when it is needed, opened again when it has ended, and keeps its list of tools.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use emitree_runtime::RunContext;
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, sleep};

use crate::child::Command;
use crate::connection::Connection;
use crate::connection::era::connect;
use crate::error::Fault;
use crate::events::{Restarted, ServerLog};
use crate::server::Setup;
use crate::tools::list::{ToolList, read};

/// The period in which the starts of a process are counted.
const WITHIN: Duration = Duration::from_secs(5 * 60);

/// How a server is reached.
pub(crate) enum Source {
    Child(Command),
    #[cfg(feature = "http")]
    Http(crate::http::Endpoint),
}

/// The connections of a server.
pub(crate) enum Link {
    Child(Arc<Slot>),
    #[cfg(feature = "http")]
    Http(crate::http::pool::Pool),
}

/// The place of one connection.
pub(crate) struct Slot {
    source: Source,
    state: AsyncMutex<State>,
    list: AsyncMutex<Option<Arc<ToolList>>>,
    /// The connection under way, for readers that do not wait for another one.
    current: Mutex<Option<Arc<Connection>>>,
    is_closed: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The times of the starts, except for the first one.
    restarts: VecDeque<Instant>,
    has_started: bool,
    last: Option<String>,
}

impl Slot {
    pub(crate) fn new(source: Source) -> Arc<Self> {
        let (state, list, current) = (AsyncMutex::default(), AsyncMutex::default(), Mutex::default());
        Arc::new(Self { source, state, list, current, is_closed: AtomicBool::new(false) })
    }

    fn current(&self) -> Option<Arc<Connection>> {
        self.current.lock().as_ref().filter(|connection| !connection.has_ended()).map(Arc::clone)
    }

    /// Returns the connection. If there is none, it is opened, and all callers wait for it. If the caller that opens it
    /// is dropped, the next one opens it.
    pub(crate) async fn connection(&self, setup: &Arc<Setup>) -> Result<Arc<Connection>, Fault> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let mut state = self.state.lock().await;
        self.check_open()?;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let is_restart = std::mem::replace(&mut state.has_started, true) && matches!(self.source, Source::Child(_));
        if is_restart {
            self.wait_for_restart(&mut state, setup).await?;
        }
        let opened = connect(&self.source, setup).await;
        let connection = Arc::new(opened.inspect_err(|fault| state.last = Some(fault.to_string()))?);
        // Closed meanwhile: the connection is dropped.
        self.check_open()?;
        if is_restart {
            setup.report.send(Restarted { restarts: state.restarts.len() });
        }
        // An ended connection is dropped without the lock: that may take the last handle of something.
        let before = self.current.lock().replace(Arc::clone(&connection));
        drop(before);
        Ok(connection)
    }

    fn check_open(&self) -> Result<(), Fault> {
        if self.is_closed.load(Ordering::Acquire) { Err(Fault::Shut) } else { Ok(()) }
    }

    /// Counts a start, and waits before it.
    async fn wait_for_restart(&self, state: &mut State, setup: &Setup) -> Result<(), Fault> {
        let now = Instant::now();
        while state.restarts.front().is_some_and(|start| now.duration_since(*start) > WITHIN) {
            state.restarts.pop_front();
        }
        let times = state.restarts.len();
        if times >= setup.restarts {
            let last = state.last.clone().unwrap_or_else(|| "has ended".to_owned());
            return Err(Fault::Restarts { times: times + 1, within: WITHIN, last });
        }
        state.restarts.push_back(now);
        // 0.2 s, 1.4 s, 9.8 s, and then 10 s.
        let delay = 7_u64.saturating_pow(u32::try_from(times).unwrap_or(u32::MAX)).saturating_mul(200).min(10_000);
        sleep(Duration::from_millis(delay)).await;
        Ok(())
    }

    /// Notes the failure of a connection that has ended, for the error after the last restart.
    pub(crate) async fn note(&self, fault: &Fault) {
        self.state.lock().await.last = Some(fault.to_string());
    }

    /// Returns the list of tools, which is read again if it has changed. If the process has ended, the last list counts
    /// until a call starts it again.
    pub(crate) async fn tools(&self, setup: &Arc<Setup>) -> Result<Arc<ToolList>, Fault> {
        let mut list = self.list.lock().await;
        #[cfg(feature = "http")]
        if let (Source::Http(endpoint), None) = (&self.source, &*list)
            && let Some(public) = endpoint.public()
        {
            return Ok(public);
        }
        let connection = match (self.current(), &*list) {
            (Some(connection), _) => connection,
            (None, Some(last)) if matches!(self.source, Source::Child(_)) => return Ok(Arc::clone(last)),
            (None, _) => self.connection(setup).await?,
        };
        if let Some(last) = &*list
            && last.is_of(&connection)
            && last.is_fresh()
            && !connection.signals.take_stale()
        {
            return Ok(Arc::clone(last));
        }
        // A change that is told while the list is read makes it stale again.
        connection.signals.take_stale();
        match (read(&connection, setup, list.as_deref()).await, &*list) {
            (Ok(new), _) => {
                let new = Arc::clone(list.insert(Arc::new(new)));
                #[cfg(feature = "http")]
                if let Source::Http(endpoint) = &self.source {
                    endpoint.share(&new);
                }
                Ok(new)
            }
            (Err(fault), None) => Err(fault),
            (Err(fault), Some(last)) => {
                // The next turn tries again.
                connection.signals.set_stale();
                let data = format!("the list of tools could not be read again: the server {fault}").into();
                setup.report.send(ServerLog { level: "client".to_owned(), data });
                Ok(Arc::clone(last))
            }
        }
    }

    pub(crate) async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let connection = self.current.lock().take();
        if let Some(connection) = &connection {
            connection.close().await;
        }
    }
}

impl Link {
    /// Returns the place of the connection for a run.
    pub(crate) fn slot(&self, ctx: &RunContext) -> Result<Arc<Slot>, Fault> {
        let _ = ctx;
        match self {
            Self::Child(slot) => Ok(Arc::clone(slot)),
            #[cfg(feature = "http")]
            Self::Http(pool) => pool.slot(ctx),
        }
    }

    /// Returns the place of the connection, if it is the same for all runs.
    pub(crate) fn only_slot(&self) -> Option<Arc<Slot>> {
        match self {
            Self::Child(slot) => Some(Arc::clone(slot)),
            #[cfg(feature = "http")]
            Self::Http(pool) => pool.only_slot(),
        }
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::Child(slot) => slot.close().await,
            #[cfg(feature = "http")]
            Self::Http(pool) => pool.close().await,
        }
    }
}
