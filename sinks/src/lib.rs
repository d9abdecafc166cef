//! Sinks for the events of emitree: JSONL files, channels, memory.
//!
//! ```
//! use std::time::Duration;
//!
//! use emitree_emitter::{Emitter, Overflow};
//! # #[cfg(feature = "jsonl")]
//! use emitree_sinks::{JsonlFile, ReadError, read_jsonl};
//!
//! # #[cfg(not(feature = "jsonl"))]
//! # fn main() {}
//! # #[cfg(feature = "jsonl")]
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("events.jsonl");
//! let app = Emitter::new();
//! let recording = app.pipe_to(JsonlFile::options().overflow(Overflow::DropOldest).open(&path)?)?;
//! app.emit_now("ready", &mut "set, go")?;
//! recording.close_blocking(Duration::from_secs(5)).complete()?;
//!
//! let paths: Vec<_> = read_jsonl(&path)?
//!     .map(|record| Ok(record?.as_event().map(|event| event.path.to_string())))
//!     .collect::<Result<_, ReadError>>()?;
//! assert_eq!(paths, [Some("ready".to_owned())]);
//! # Ok(())
//! # }
//! ```
//!
//! # Concepts
//!
//! - A **sink** receives records of events on a thread of its own. [`Sink`](emitree_emitter::Sink) is the trait, and
//!   [`Emitter::pipe_to`](emitree_emitter::Emitter::pipe_to) attaches a sink to an emitter.
//! - Each sink is **bounded**. When its queue is full, its [`Overflow`](emitree_emitter::Overflow) decides whether the
//!   emit waits, or the oldest or the newest event is lost. Lost events are counted, and the sink receives a
//!   [`Gap`](emitree_emitter::Gap) in their place.
//! - The [`SinkHandle`](emitree_emitter::SinkHandle) **flushes** and **closes** the sink, and reports how many events
//!   were delivered, lost or pending. Close each sink before your program ends, or its last events may be lost.
//!
//! | feature | sink | writes records to |
//! |---|---|---|
//! | `jsonl` (default) | [`JsonlFile`], [`Jsonl`] | a file or any `io::Write`, one JSON record per line; [`read_jsonl`] reads them |
//! | `memory` (default) | [`Memory`] | a vector, for tests |
//! | `channel` | [`Channel`] | a bounded tokio channel |
//!
//! The feature `runs` reads records back as runs: [`runs`].

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
#![cfg_attr(
    not(all(feature = "jsonl", feature = "memory", feature = "channel", feature = "runs")),
    allow(rustdoc::broken_intra_doc_links, reason = "this page names the sinks of all features")
)]

#[cfg(feature = "channel")]
mod channel;
#[cfg(feature = "jsonl")]
mod jsonl;
#[cfg(feature = "memory")]
mod memory;
#[cfg(feature = "runs")]
pub mod runs;

#[cfg(feature = "channel")]
pub use self::channel::Channel;
#[cfg(feature = "jsonl")]
pub use self::jsonl::{FlushPolicy, Jsonl, JsonlError, JsonlFile, JsonlOptions, ReadError, Records, Tail, read_jsonl};
#[cfg(feature = "memory")]
pub use self::memory::Memory;
