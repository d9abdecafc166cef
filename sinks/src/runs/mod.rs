//! Runs, read from records: the heads of events, the fold of heads to runs, and sources of heads.
//!
//! A [`Head`] has the facts of one record that lists, trees and time axes need, without the payload. [`Runs`] folds
//! heads to runs. A [`Source`] returns the heads that follow a [`Cursor`], and the whole record at a cursor;
//! [`RecordingFile`] is the source of a JSONL file, which may grow meanwhile.
//!
//! ```
//! use std::time::Duration;
//!
//! use emitree_emitter::Emitter;
//! use emitree_sinks::JsonlFile;
//! use emitree_sinks::runs::{RecordingFile, Source};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("events.jsonl");
//! let app = Emitter::new();
//! let recording = app.pipe_to(JsonlFile::open(&path)?)?;
//! app.emit_now("ready", &mut "set, go")?;
//! recording.close_blocking(Duration::from_secs(5)).complete()?;
//!
//! let file = RecordingFile::new(&path);
//! let batch = file.heads(None, 100)?;
//! assert_eq!((&*batch.heads[0].path, batch.is_end), ("ready", true));
//! assert!(file.record(batch.heads[0].cursor)?.contains("set, go"));
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

mod cursor;
mod fact;
mod file;
mod fold;
mod head;
mod source;

pub use self::cursor::{Cursor, CursorError};
pub use self::fact::{ErrorDetails, Fact};
pub use self::file::RecordingFile;
pub use self::fold::{Run, Runs};
pub use self::head::Head;
pub use self::source::{Batch, Source, SourceError};
