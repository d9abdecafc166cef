//! Errors while a recording is opened or written.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// An error while opening or writing a recording.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JsonlError {
    /// The file could not be opened for appending, or the directory of a new file could not be synced.
    #[error("could not open `{path}`")]
    Open {
        /// The file.
        path: PathBuf,
        /// The underlying I/O error.
        source: io::Error,
    },
    /// Another recorder, in this or another process, has the file open.
    #[error("`{path}` is open in another recorder; close that recorder first, or record to another file")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file could not be locked, for example because the file system has no locks.
    #[error(
        "could not lock `{path}`; record to a file system with locks, or open the file and use `Jsonl::new`, which takes no lock"
    )]
    Lock {
        /// The file.
        path: PathBuf,
        /// The underlying I/O error.
        source: io::Error,
    },
    /// The last line could not be read, completed or moved to `<path>.torn`.
    #[error("could not repair the end of `{path}`")]
    Mend {
        /// The file.
        path: PathBuf,
        /// The underlying I/O error.
        source: io::Error,
    },
    /// The file could not be written.
    #[error("could not write to `{path}`; {unwritten} records are buffered")]
    Write {
        /// The file.
        path: PathBuf,
        /// The number of records that are still buffered.
        unwritten: usize,
        /// The underlying I/O error.
        source: io::Error,
    },
    /// The file was written, but not synced. Events since the last sync may not be on disk, and never count as synced.
    #[error("could not sync `{path}`; events since the last sync may not be on disk")]
    Sync {
        /// The file.
        path: PathBuf,
        /// The underlying I/O error.
        source: io::Error,
    },
    /// The file was removed or renamed while it was open.
    #[error("`{path}` was removed or renamed during the recording; open it again to continue")]
    Removed {
        /// The path at which the file was opened.
        path: PathBuf,
    },
    /// Another file is now at the path of the file that was opened.
    #[error("`{path}` was replaced by another file during the recording; open it again to continue")]
    Replaced {
        /// The path at which the file was opened.
        path: PathBuf,
    },
    /// The recorder was closed.
    #[error("the recorder of `{path}` is closed; open the file again to continue")]
    Closed {
        /// The file.
        path: PathBuf,
    },
}
