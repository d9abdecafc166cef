//! The trait of what heads and records are read from.

use std::io;

use thiserror::Error;

use super::{Cursor, Head};

/// A recording that heads and records are read from, such as a file that may still grow.
///
/// Calls may block the thread, for example to read a file.
pub trait Source: Send + Sync + 'static {
    /// Returns at most `limit` heads of the records after a cursor, in order; `None` is the beginning. A reader that
    /// passes the cursor of the last head that it received misses no record, and receives none twice.
    ///
    /// If the recording of the cursor is gone, the batch begins with the first record of the new recording, and
    /// [`has_restarted`](Batch::has_restarted) is `true`. A source that no longer has all records after the cursor
    /// returns a [gap](super::Fact::Gap) in their place.
    ///
    /// # Errors
    ///
    /// Returns an error if the source cannot be read, or never had a record at the cursor.
    fn heads(&self, after: Option<Cursor>, limit: usize) -> Result<Batch, SourceError>;

    /// Returns the record at a cursor as JSON text. A line that is not a record is returned as a JSON string.
    ///
    /// # Errors
    ///
    /// Returns an error if the source cannot be read, or has no record at the cursor, or no longer has it.
    fn record(&self, at: Cursor) -> Result<String, SourceError>;
}

/// Heads that follow a cursor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The heads, in the order of the recording.
    pub heads: Vec<Head>,
    /// `true` if the recording of the cursor is gone: the heads before this batch belong to it.
    pub has_restarted: bool,
    /// `true` if no further record was there when the batch was read.
    pub is_end: bool,
    /// The number of bytes of a last line that is not complete: it is being written, or its writer crashed.
    pub incomplete: u64,
}

/// A source could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Reading failed.
    #[error("could not read the recording: {0}")]
    Io(#[from] io::Error),
    /// The recording has no record at the cursor, or is another recording than the cursor's.
    #[error("the recording has no record at the cursor `{0}`")]
    NoRecord(Cursor),
    /// The source keeps only the newest records, and the record is no longer among them.
    #[error("the record at the cursor `{0}` is no longer kept: newer records have taken its place")]
    Gone(Cursor),
}
