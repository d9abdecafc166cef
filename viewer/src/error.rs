//! Errors of the server and of the export.

use std::io;
use std::net::SocketAddr;

use emitree_sinks::runs::SourceError;
use thiserror::Error;

/// The page cannot be served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ViewerError {
    /// The address is reachable from other machines.
    #[error(
        "`{0}` is reachable from other machines; bind a loopback address such as 127.0.0.1:0, or allow it by `allow_remote` (`--allow-remote`)"
    )]
    Remote(SocketAddr),
    /// The text is no address, or nothing can be bound to it.
    #[error("could not listen on `{address}`")]
    Listen {
        /// The address.
        address: String,
        /// The underlying I/O error.
        source: io::Error,
    },
    /// The token is too short, or has other characters.
    #[error("a token has at least 16 characters, which are letters, digits, `-` or `_`")]
    Token,
    /// The operating system returned no random bytes for the token.
    #[error("could not make a random token: {0}")]
    Random(String),
}

/// The recording cannot be exported.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The recording cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The page cannot be written.
    #[error("could not write the page")]
    Write(#[from] io::Error),
    /// The recording began anew while it was exported.
    #[error("the recording was replaced while it was exported; export it again")]
    Replaced,
}
