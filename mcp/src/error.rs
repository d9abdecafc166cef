//! Why a server cannot be used.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

/// A failure of an MCP server, or of the connection to it. [`Error::find`](emitree_runtime::Error::find) finds it in the
/// error of a run.
#[derive(Debug, Error)]
#[error("the MCP server `{server}` {fault}")]
#[non_exhaustive]
pub struct McpError {
    /// The name of the server.
    pub server: Arc<str>,
    /// The failure.
    pub fault: Fault,
}

/// The kinds of failures of a server.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The program cannot be started.
    #[error("cannot be started: `{program}`: {source}")]
    Start {
        /// The program.
        program: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The process of the server has ended.
    #[error("{exit}")]
    Exited {
        /// The end of the process.
        exit: Exit,
    },
    /// The server has closed the connection.
    #[error("has closed the connection")]
    Closed,
    /// The connection was closed with [`McpServer::close`](crate::McpServer::close).
    #[error("was closed by this program")]
    Shut,
    /// A message of the server is too long.
    #[error("has sent a message of more than {limit} bytes, so the connection was closed: see `.limits(..)`")]
    TooLong {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The server has not answered in time.
    #[error("has not answered `{method}` within {after:?}{}", garbage.as_ref().map_or_else(String::new, |line| format!("; its last line that is no message is `{line}`")))]
    Silent {
        /// The method of the request.
        method: &'static str,
        /// The time since the request.
        after: Duration,
        /// The last line of the server that is no message.
        garbage: Option<String>,
    },
    /// The server has answered with an error.
    #[error("has refused `{method}` with the error {code}: {message}")]
    Refused {
        /// The method of the request.
        method: &'static str,
        /// The code of the error.
        code: i32,
        /// The message of the error.
        message: String,
    },
    /// The server has answered with a result of another type.
    #[error("has answered `{method}` with `{got}`, which is no result of this method")]
    Answer {
        /// The method of the request.
        method: &'static str,
        /// The beginning of the answer.
        got: String,
    },
    /// The server supports no version of the protocol that this client supports.
    #[error("supports only the versions {versions} of the protocol, and this client 2024-11-05 to 2026-07-28")]
    Versions {
        /// The versions of the server.
        versions: String,
    },
    /// The server has refused the credentials.
    #[error("has refused the request with the status {status}{}", challenge.as_ref().map_or_else(String::new, |text| format!(", and asks for `{text}`")))]
    Unauthorized {
        /// The HTTP status: 401 or 403.
        status: u16,
        /// The challenge of the server, from `www-authenticate`.
        challenge: Option<String>,
    },
    /// The server has answered with an HTTP status that is an error.
    #[error("has answered with the status {status}")]
    Status {
        /// The HTTP status.
        status: u16,
    },
    /// The connection has failed.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// The process of the server has ended too often.
    #[error("has ended {times} times within {within:?}, so it is not started again; at last it {last}")]
    Restarts {
        /// The number of starts.
        times: usize,
        /// The period in which they are counted.
        within: Duration,
        /// The last failure.
        last: String,
    },
    /// The list of tools cannot be used.
    #[error("has no usable list of tools: {0}")]
    Tools(String),
    /// The server has asked a question that cannot be answered.
    #[error("has asked a question that cannot be answered: {0}")]
    Question(String),
    /// The server does not go on with a call that has waited for an answer.
    #[error("does not take the state of the call any more (error {code}: {message}), {}", again(*is_again))]
    State {
        /// The code of the error.
        code: i32,
        /// The message of the error, without the state.
        message: String,
        /// `true` if the call was made once more from its start, and its second state was refused too.
        is_again: bool,
    },
    /// A setting of the server is wrong.
    #[error("has a wrong setting: {0}")]
    Setting(String),
}

const fn again(is_again: bool) -> &'static str {
    match is_again {
        true => "also after the call was made once more from its start",
        false => "and the call was not made again from its start, because the tool is not named in `idempotent([..])`",
    }
}

/// The end of a server's process.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{status}{}", stderr.as_ref().map_or_else(String::new, |line| format!("; its last line on stderr is `{line}`")))]
#[non_exhaustive]
pub struct Exit {
    /// The exit status or the signal, as text.
    pub status: String,
    /// The last line that the process has written to stderr, at most 512 bytes, escaped and without keys.
    pub stderr: Option<String>,
}

impl Fault {
    /// Returns `true` if the same request may succeed later.
    pub(crate) const fn is_temporary(&self) -> bool {
        match self {
            Self::Exited { .. } | Self::Closed | Self::TooLong { .. } | Self::Silent { .. } | Self::Unreachable(_) => {
                true
            }
            Self::Status { status } => matches!(status, 429 | 500..=599),
            Self::Start { .. }
            | Self::Shut
            | Self::Refused { .. }
            | Self::Answer { .. }
            | Self::Versions { .. }
            | Self::Unauthorized { .. }
            | Self::Restarts { .. }
            | Self::Tools(_)
            | Self::Question(_)
            | Self::State { .. }
            | Self::Setting(_) => false,
        }
    }

    pub(crate) fn of(self, server: &Arc<str>) -> McpError {
        McpError { server: Arc::clone(server), fault: self }
    }
}
