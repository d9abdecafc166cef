//! The failures of a server: which of them pass, and the errors with a cause and a remedy.

use std::io;
use std::time::Duration;

use emitree_emitter::BoxError;
use emitree_middleware::store::StoreError;
use tokio_postgres::error::SqlState;

/// The use of the store that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Connect,
    Listen,
    Read,
    Write,
    Take,
}

/// A failure of one try.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server did not answer for this time.
    Silent(Duration),
    /// The server, or the connection to it, reported an error.
    Reported(tokio_postgres::Error),
    /// The server is a standby.
    Standby,
    /// The server cannot be used, for a reason that includes a remedy.
    Unusable(String),
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Reported(error)
    }
}

impl Failure {
    /// Returns `true` if the same statement may succeed later: the connection was lost, the server restarts or is full,
    /// or another transaction was in the way.
    pub(super) fn passes(&self) -> bool {
        match self {
            Self::Silent(_) | Self::Standby => true,
            Self::Unusable(_) => false,
            Self::Reported(error) => match error.code() {
                Some(code) => code_passes(code),
                None => error.is_closed() || is_lost(error),
            },
        }
    }

    /// Returns `true` if the statement has certainly changed nothing.
    pub(super) fn is_rolled_back(&self) -> bool {
        let code = if let Self::Reported(error) = self { error.code() } else { None };
        let refused = [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::TOO_MANY_CONNECTIONS,
            SqlState::READ_ONLY_SQL_TRANSACTION,
        ];
        code.is_some_and(|code| refused.contains(code))
    }

    /// Returns `true` if the connection is of no use any more: the server does not answer, or has become a standby.
    pub(super) fn needs_another_connection(&self) -> bool {
        match self {
            Self::Reported(error) => error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION),
            Self::Silent(_) | Self::Standby => true,
            Self::Unusable(_) => false,
        }
    }

    /// Returns `true` if a server that is about to start, or is full, refuses new connections.
    pub(super) fn refuses_for_now(&self) -> bool {
        let code = if let Self::Reported(error) = self { error.code() } else { None };
        matches!(code, Some(code) if [SqlState::CANNOT_CONNECT_NOW, SqlState::TOO_MANY_CONNECTIONS].contains(code))
    }

    fn remedy(&self) -> &'static str {
        let error = match self {
            Self::Reported(error) => error,
            Self::Silent(_) => return ": check the network, or raise the deadline",
            Self::Standby => return ": name the primary server, or add `target_session_attrs=read-write` to the URL",
            Self::Unusable(_) => return "",
        };
        let remedies: &[(&[SqlState], &str)] = &[
            (
                &[SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION],
                ": correct the user or the password",
            ),
            (&[SqlState::INVALID_CATALOG_NAME], ": create the database, or name another"),
            (&[SqlState::TOO_MANY_CONNECTIONS], ": raise `max_connections`, or connect through pgbouncer"),
            (&[SqlState::INSUFFICIENT_PRIVILEGE], ": give the role the rights that `PostgresStore::schema` lists"),
            (
                &[SqlState::UNDEFINED_FUNCTION, SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME],
                ": its tables or functions were removed; connect again",
            ),
            (&[SqlState::DISK_FULL], ": free space on the server's disk"),
            (&[SqlState::READ_ONLY_SQL_TRANSACTION], ": name a server and a role that may write"),
            (&[SqlState::QUERY_CANCELED], ": raise `statement_timeout` for its role"),
        ];
        let found = remedies.iter().find(|(codes, _)| error.code().is_some_and(|code| codes.contains(code)));
        match found {
            Some((_, remedy)) => remedy,
            None if is_refused(error) => ": start the server, or correct the host and the port",
            None => "",
        }
    }

    /// Returns the error of a store. `tried` has the number of tries and their time, if there were several.
    pub(super) fn into_error(self, server: &str, doing: Doing, tried: Option<(u32, Duration)>) -> StoreError {
        let verb = match doing {
            Doing::Connect => "connected to",
            Doing::Listen => "listened to",
            Doing::Read => "read",
            Doing::Write | Doing::Take => "written",
        };
        let remedy = self.remedy();
        let message = match tried {
            Some((tries, time)) => {
                format!("`{server}` could not be {verb} for {time:.0?}, in {tries} tries{remedy}")
            }
            None => format!("`{server}` cannot be {verb}{remedy}"),
        };
        StoreError::failed(message, self.into_cause())
    }

    fn into_cause(self) -> BoxError {
        match self {
            Self::Silent(time) => format!("the server did not answer for {time:?}").into(),
            Self::Standby => "the server is a standby, which accepts no changes".into(),
            Self::Unusable(problem) => problem.into(),
            // The error of tokio-postgres names only the kind, and its source has the text.
            Self::Reported(error) => match error.to_string() {
                kind if error.code().is_some() => error.into_source().unwrap_or_else(|| kind.into()),
                kind => match error.into_source() {
                    Some(source) => format!("{kind}: {source}").into(),
                    None => kind.into(),
                },
            },
        }
    }
}

/// Errors that pass: of the connection (class 08), of transactions that were in each other's way, of a server that
/// restarts or is full, and of a primary that has become a standby.
fn code_passes(code: &SqlState) -> bool {
    let passing = [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::TOO_MANY_CONNECTIONS,
        SqlState::READ_ONLY_SQL_TRANSACTION,
    ];
    passing.contains(code) || code.code().starts_with("08")
}

fn io_error(error: &tokio_postgres::Error) -> Option<&io::Error> {
    std::error::Error::source(error)?.downcast_ref()
}

/// Returns `true` if the connection was lost, or was not made. A certificate that is refused is invalid data.
fn is_lost(error: &tokio_postgres::Error) -> bool {
    let kind = io_error(error).map(io::Error::kind);
    kind.is_some_and(|kind| !matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput))
}

fn is_refused(error: &tokio_postgres::Error) -> bool {
    io_error(error).is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
