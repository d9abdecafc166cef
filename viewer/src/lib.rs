//! A page in the browser that shows the runs of a program or a recording, and follows them.
//!
//! ```text
//! cargo install --path viewer
//! emitree-view run.jsonl                       prints the address of the page
//! emitree-view run.jsonl --export page.html    writes one file that opens without a server
//! ```
//!
//! A program can show its own runs, without a file:
//!
//! ```
//! use emitree_emitter::Emitter;
//! use emitree_viewer::Viewer;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let viewer = Viewer::bind("127.0.0.1:0").await?;
//! println!("{}", viewer.url());
//! Emitter::root().pipe_to(viewer.sink())?;
//! # Ok(())
//! # }
//! ```
//!
//! The page shows the newest 64 MB of records, which a [`Ring`] keeps in memory. The page of a file is
//! `Viewer::bind(address).source(RecordingFile::new(path))`.
//!
//! # Who can read the page
//!
//! A recording may contain secrets, so the server sends records only to who knows a random token.
//!
//! - The server listens on loopback, unless [`allow_remote`](ViewerBuilder::allow_remote) is called.
//! - [`Viewer::url`] has the token in its fragment, which no browser sends. The page keeps the token for its tab, removes
//!   it from the address, and sends it as a header. There is no cookie, which other servers of the host would receive,
//!   and no redirect.
//! - A request whose `Host` is neither an IP address nor `localhost` is refused: another site could have resolved its
//!   own name to this address (DNS rebinding).
//! - A connection is closed if the head of a request takes longer than 10 s. Of the connections without a valid request,
//!   at most 64 are open: for one more, the oldest is closed.
//! - All requests are `GET`. The page loads nothing from elsewhere, and its content security policy forbids it. Text of
//!   a recording is never read as HTML.

#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::missing_errors_doc,
        clippy::missing_panics_doc
    )
)]

mod connections;
mod error;
mod export;
mod guard;
mod page;
mod ring;
mod server;
mod viewer;

pub use self::error::{ExportError, ViewerError};
pub use self::export::{Exported, export};
pub use self::ring::Ring;
pub use self::viewer::{Viewer, ViewerBuilder};
