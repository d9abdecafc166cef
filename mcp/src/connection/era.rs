//! The eras of the protocol, and how the era of a server is found.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{ErrorCode, ProtocolVersion, SubscriptionFilter};
use rmcp::service::{ClientInitializeError, ClientLifecycleMode, RoleClient, serve_client_with_lifecycle};
use rmcp::transport::Transport;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout, timeout_at};

use crate::child::{Child, Command, lines::Lines};
use crate::connection::handler::Handler;
use crate::connection::signals::Signals;
use crate::connection::slot::Source;
use crate::connection::tap::Tap;
use crate::connection::{Connection, DYING};
use crate::error::Fault;
use crate::events::Connected;
use crate::server::Setup;

/// The time in which a server has to answer `server/discover`. A server of the old era may ignore it.
const PROBE: Duration = Duration::from_secs(2);

/// An era of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Era {
    /// The versions up to 2025-11-25: a handshake, and servers that ask in the middle of a call.
    Old,
    /// The versions from 2026-07-28: no session, and calls that end with questions.
    New,
}

impl Era {
    const fn method(self) -> &'static str {
        match self {
            Self::Old => "initialize",
            Self::New => "server/discover",
        }
    }

    fn lifecycle(self) -> ClientLifecycleMode {
        match self {
            Self::Old => ClientLifecycleMode::Initialize,
            Self::New => ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] },
        }
    }
}

/// Why a server is not connected in an era.
enum Refusal {
    /// The server cannot be used in any era.
    Final(Fault),
    /// The server may be of the other era.
    OtherEra(Fault),
}

impl Refusal {
    fn into_fault(self) -> Fault {
        let (Self::Final(fault) | Self::OtherEra(fault)) = self;
        fault
    }
}

/// Connects to a server. If its era is not known, `server/discover` comes first, then the handshake on a new
/// connection, and then once more `server/discover`, for a server that was starting meanwhile.
pub(crate) async fn connect(source: &Source, setup: &Arc<Setup>) -> Result<Connection, Fault> {
    let deadline = Instant::now() + setup.connect_timeout;
    let known = *setup.era.lock();
    if let Some(era) = known {
        return start(source, setup, era, deadline).await.map_err(Refusal::into_fault);
    }
    let is_silent = match timeout(PROBE, start(source, setup, Era::New, deadline)).await {
        Ok(Ok(connection)) => return Ok(remember(setup, connection)),
        Ok(Err(Refusal::Final(fault))) => return Err(fault),
        Ok(Err(Refusal::OtherEra(_))) => false,
        Err(_) => true,
    };
    match start(source, setup, Era::Old, deadline).await {
        // Silence may have been a slow start, so the next connection asks again.
        Ok(connection) if is_silent => Ok(connection),
        Ok(connection) => Ok(remember(setup, connection)),
        Err(refusal) => match start(source, setup, Era::New, deadline).await {
            Ok(connection) => Ok(remember(setup, connection)),
            Err(Refusal::Final(fault)) => Err(fault),
            Err(Refusal::OtherEra(_)) => Err(refusal.into_fault()),
        },
    }
}

fn remember(setup: &Setup, connection: Connection) -> Connection {
    *setup.era.lock() = Some(connection.era);
    connection
}

/// Opens a connection and establishes an era on it.
async fn start(source: &Source, setup: &Arc<Setup>, era: Era, deadline: Instant) -> Result<Connection, Refusal> {
    let secrets = match source {
        Source::Child(_) => Vec::new(),
        #[cfg(feature = "http")]
        Source::Http(endpoint) => endpoint.secrets(),
    };
    let signals = Arc::new(Signals::new(setup.report.clone(), secrets));
    match source {
        Source::Child(command) => {
            let (child, lines) = open(command, setup, &signals).map_err(Refusal::Final)?;
            establish(lines, Some(child), signals, setup, era, deadline).await
        }
        #[cfg(feature = "http")]
        Source::Http(endpoint) => establish(endpoint.open(setup), None, signals, setup, era, deadline).await,
    }
}

type Pipes = Lines<tokio::process::ChildStdout, tokio::process::ChildStdin>;

fn open(command: &Command, setup: &Setup, signals: &Arc<Signals>) -> Result<(Child, Pipes), Fault> {
    let started = Child::spawn(command, &setup.report);
    let program = command.program.to_string_lossy().into_owned();
    let (child, input, output) = started.map_err(|source| Fault::Start { program, source })?;
    Ok((child, Lines::new(output, input, setup.limits.message_bytes, Arc::clone(signals))))
}

async fn establish<T: Transport<RoleClient> + 'static>(
    transport: T,
    child: Option<Child>,
    signals: Arc<Signals>,
    setup: &Arc<Setup>,
    era: Era,
    deadline: Instant,
) -> Result<Connection, Refusal> {
    let began = Instant::now();
    let handler = Handler { setup: Arc::clone(setup), signals: Arc::clone(&signals) };
    let tap = Tap { transport, signals: Arc::clone(&signals), era };
    let starting = serve_client_with_lifecycle(handler, tap, era.lifecycle());
    let service = match timeout_at(deadline, Box::pin(starting)).await {
        Ok(Ok(service)) => service,
        Ok(Err(error)) => return Err(refusal(error, child.as_ref(), &signals, era).await),
        Err(_) => {
            let (after, garbage) = (began.elapsed(), signals.last_stray());
            return Err(Refusal::OtherEra(Fault::Silent { method: era.method(), after, garbage }));
        }
    };
    let info = service.peer().peer_info();
    let version = info.as_ref().map(|info| info.protocol_version.to_string()).unwrap_or_default();
    let tells_changes = info.as_ref().and_then(|info| info.capabilities.tools.as_ref()?.list_changed);
    let mut connection = Connection { service, era, signals, child, listener: None };
    if era == Era::New && tells_changes == Some(true) {
        connection.listener = Some(listen(&connection));
    }
    setup.report.send(Connected { era, version });
    Ok(connection)
}

/// Listens for changes of the list of tools. The connection aborts the task.
fn listen(connection: &Connection) -> tokio::task::AbortHandle {
    let (peer, signals) = (connection.peer().clone(), Arc::clone(&connection.signals));
    let task = tokio::spawn(async move {
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        // A server that refuses still has the time-to-live of its lists.
        let Ok(mut subscription) = peer.listen(filter).await else { return };
        while let Ok(Some(_)) = subscription.next().await {
            signals.set_stale();
        }
        // Changes after the end of the subscription would be missed.
        signals.set_stale();
    });
    task.abort_handle()
}

/// Decides whether a failure says that the server is of the other era.
async fn refusal(error: ClientInitializeError, child: Option<&Child>, signals: &Signals, era: Era) -> Refusal {
    let method = era.method();
    match error {
        ClientInitializeError::JsonRpcError(error) => {
            let is_new = matches!(
                error.code,
                ErrorCode::UNSUPPORTED_PROTOCOL_VERSION
                    | ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY
                    | ErrorCode::HEADER_MISMATCH
            );
            let fault = Fault::refused(method, &error, signals);
            if is_new && era == Era::New { Refusal::Final(fault) } else { Refusal::OtherEra(fault) }
        }
        ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
            let has_handshake = server_supported.iter().any(ProtocolVersion::has_initialize);
            let versions: Vec<_> = server_supported.iter().map(|version| signals.quoted(version.as_str())).collect();
            let fault = Fault::Versions { versions: versions.join(", ") };
            if has_handshake { Refusal::OtherEra(fault) } else { Refusal::Final(fault) }
        }
        ClientInitializeError::ExpectedInitResult(Some(got)) => Refusal::OtherEra(Fault::answer(method, &got, signals)),
        #[cfg(feature = "http")]
        ClientInitializeError::TransportError { error, .. } if child.is_none() => {
            match crate::http::fault(&error, signals) {
                fault @ (Fault::Unauthorized { .. }
                | Fault::Status { status: 429 | 500..=599 }
                | Fault::TooLong { .. }) => Refusal::Final(fault),
                fault => Refusal::OtherEra(fault),
            }
        }
        ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::TransportError { .. } => {
            Refusal::Final(closed(child, signals).await)
        }
        error => Refusal::OtherEra(Fault::Answer { method, got: signals.quoted(&error.to_string()) }),
    }
}

/// The fault of a connection that has ended before the server had answered.
async fn closed(child: Option<&Child>, signals: &Signals) -> Fault {
    if let Ok(crate::connection::signals::End::TooLong { limit }) = timeout(DYING, signals.ended()).await {
        return Fault::TooLong { limit };
    }
    let Some(child) = child else { return Fault::Closed };
    match timeout(DYING, child.exited()).await {
        Ok(exit) => Fault::Exited { exit },
        Err(_) => Fault::Closed,
    }
}
