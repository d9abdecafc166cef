//! Why a recording was not opened, or not written.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A recording that was not opened, or not written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JsonlError {
    /// The file could not be opened for appending.
    #[error("could not open `{path}`")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// Another recorder, of this process or another one, has the file open.
    #[error("`{path}` is being recorded to already; close that recorder first, or record to another file")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file system has no locks.
    #[error(
        "could not lock `{path}`; record to a file system with locks, or open the file and use `Jsonl::new`, which takes none"
    )]
    Lock {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The last line could not be looked at or set aside.
    #[error("could not mend the end of `{path}`")]
    Mend {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The file could not be written.
    #[error("could not write to `{path}`; {unwritten} records are buffered")]
    Write {
        /// The file.
        path: PathBuf,
        /// How many records wait to be written.
        unwritten: usize,
        /// What the operating system says.
        source: io::Error,
    },
    /// The file was written, but not synced: events since the last sync may not be on disk, and never count as synced.
    #[error("could not sync `{path}`; what was written since the last sync may not be on disk")]
    Sync {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The file was removed or renamed while it was open.
    #[error("`{path}` was removed or renamed while it was recorded to; open it again to go on")]
    Removed {
        /// Where the file was.
        path: PathBuf,
    },
    /// Another file has taken the place of the one that was opened.
    #[error("`{path}` was replaced by another file while it was recorded to; open it again to go on")]
    Replaced {
        /// Where the file was.
        path: PathBuf,
    },
    /// The recorder was closed before.
    #[error("the recorder of `{path}` is closed; open the file again to go on")]
    Closed {
        /// The file.
        path: PathBuf,
    },
}
