//! Reads a recording back.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use emitree_emitter::SinkRecord;
use thiserror::Error;

/// The maximum number of characters that an error quotes from a bad line.
const QUOTED: usize = 80;

/// Opens a recording and returns an iterator over its records, in the order of the file.
///
/// # Errors
///
/// Returns an error if the file cannot be opened.
pub fn read_jsonl(path: impl AsRef<Path>) -> Result<Records<BufReader<File>>, ReadError> {
    let path = path.as_ref();
    match File::open(path) {
        Ok(file) => Ok(Records::new(BufReader::new(file))),
        Err(source) => Err(ReadError::Open { path: path.to_owned(), source }),
    }
}

/// An iterator over the records of a recording. It yields an error for each line that is not a record, and continues
/// with the next line.
///
/// ```
/// use emitree_sinks::{ReadError, Records};
///
/// let recording = "{\"gap\":{\"lost\":3}}\nnonsense\n{\"gap\":{\"lo";
/// let mut records = Records::new(recording.as_bytes());
/// assert!(records.next().is_some_and(|record| record.is_ok()));
/// assert!(matches!(records.next(), Some(Err(ReadError::Malformed { line: 2, .. }))));
/// assert!(matches!(records.next(), Some(Err(ReadError::Torn { line: 3, .. }))));
/// assert!(records.next().is_none());
/// ```
///
/// Blank lines are skipped, but they count in line numbers.
#[derive(Debug)]
pub struct Records<R> {
    reader: R,
    buffer: Vec<u8>,
    line: usize,
    ended: bool,
}

/// An error while opening a recording or reading one of its lines.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file could not be opened.
    #[error("could not open `{path}`")]
    Open {
        /// The file.
        path: PathBuf,
        /// The underlying I/O error.
        source: io::Error,
    },
    /// The reader failed; the iterator ends.
    #[error("could not read line {line}")]
    Io {
        /// The line number, counted from 1.
        line: usize,
        /// The error of the reader.
        source: io::Error,
    },
    /// The line is not a record.
    #[error("line {line} is not a record: {fault}: `{text}`")]
    Malformed {
        /// The line number, counted from 1.
        line: usize,
        /// The text of the line, cut after 80 characters.
        text: String,
        /// The reason why the line is not a record.
        fault: String,
    },
    /// The last line has no newline and is not a record: the program crashed while it wrote the line, or is still
    /// writing it.
    #[error("line {line} is incomplete, because its writer crashed or is still writing it: `{text}`")]
    Torn {
        /// The line number, counted from 1.
        line: usize,
        /// The text of the line, cut after 80 characters.
        text: String,
    },
}

impl<R> Records<R> {
    /// Creates an iterator over the records of a reader.
    pub const fn new(reader: R) -> Self {
        Self { reader, buffer: Vec::new(), line: 0, ended: false }
    }

    /// Parses the line in the buffer.
    fn parse(&self) -> Result<SinkRecord, ReadError> {
        let is_whole = self.buffer.ends_with(b"\n");
        let fault = match std::str::from_utf8(&self.buffer) {
            Ok(text) => match SinkRecord::from_json(text) {
                Ok(record) => return Ok(record),
                Err(error) => in_line(&error),
            },
            Err(error) => error.to_string(),
        };
        let line = self.line;
        let text = quote(&self.buffer);
        Err(if is_whole { ReadError::Malformed { line, text, fault } } else { ReadError::Torn { line, text } })
    }
}

impl<R: BufRead> Records<R> {
    /// Reads the next line that is not blank into the buffer; returns `false` at the end.
    fn advance(&mut self) -> io::Result<bool> {
        loop {
            self.buffer.clear();
            self.line += 1;
            if self.reader.read_until(b'\n', &mut self.buffer)? == 0 {
                return Ok(false);
            }
            if !self.buffer.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = Result<SinkRecord, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        match self.advance() {
            Ok(true) => Some(self.parse()),
            Ok(false) => {
                self.ended = true;
                None
            }
            // The position in the file is unknown now: the next read could begin in the middle of a line.
            Err(source) => {
                self.ended = true;
                Some(Err(ReadError::Io { line: self.line, source }))
            }
        }
    }
}

/// Returns the error's message without its line number, which is always 1: each line is parsed by itself.
fn in_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

/// Returns the text of a line, cut after 80 characters.
pub(crate) fn quote(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end();
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
