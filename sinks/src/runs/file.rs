//! A JSONL file as a source.
//!
//! 1. A cursor is the offset of a line, so it stays valid while lines are appended, and after a restart of the reader.
//! 2. The beginning of the file identifies the recording: each event has an id of its own, so a file that was emptied
//!    and written anew has another beginning, even if it has grown past the old length meanwhile.
//! 3. A last line without a line feed is not read, because it may still be written.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use emitree_emitter::SinkRecord;

use super::{Batch, Cursor, Head, Source, SourceError};
use crate::jsonl::quote;

/// The number of bytes that identify a recording (2). The id of the first event is among them.
const IDENTIFYING: u64 = 256;

/// A recording that a [`JsonlFile`](crate::JsonlFile) has written, or is writing.
///
/// The file need not exist yet. It is opened for each call, so it may be removed and created again. If it shrinks below
/// the records that were read, or begins with another record, the recording begins anew.
#[derive(Clone, Debug)]
pub struct RecordingFile {
    path: PathBuf,
}

impl RecordingFile {
    /// Makes the source of a file, without opening it.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file, if there is one.
    fn open(&self) -> io::Result<Option<Lines>> {
        match File::open(&self.path) {
            Ok(file) => Lines::new(file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Source for RecordingFile {
    fn heads(&self, after: Option<Cursor>, limit: usize) -> Result<Batch, SourceError> {
        let Some(mut lines) = self.open()? else {
            return Ok(Batch { has_restarted: after.is_some(), is_end: true, ..Batch::default() });
        };
        let mut batch = Batch::default();
        match after {
            Some(after) if !lines.skip_to(after)? => batch.has_restarted = true,
            Some(after) if lines.next()?.is_none() => return Err(SourceError::NoRecord(after)),
            _ => {}
        }
        while batch.heads.len() < limit {
            match lines.next()? {
                Some(cursor) => batch.heads.extend(lines.head(cursor)),
                None => {
                    batch.is_end = true;
                    batch.incomplete = lines.line.len() as u64;
                    break;
                }
            }
        }
        Ok(batch)
    }

    fn record(&self, at: Cursor) -> Result<String, SourceError> {
        let no_record = || SourceError::NoRecord(at);
        let mut lines = self.open()?.ok_or_else(no_record)?;
        if !lines.skip_to(at)? {
            return Err(no_record());
        }
        lines.next()?.ok_or_else(no_record)?;
        Ok(lines.json())
    }
}

/// The lines of an open file.
struct Lines {
    reader: BufReader<File>,
    /// The place of the next line.
    next: Cursor,
    /// The current line. If there is no further whole line, the beginning of the next line.
    line: Vec<u8>,
}

impl Lines {
    fn new(file: File) -> io::Result<Self> {
        let mut reader = BufReader::new(file);
        let mut beginning = Vec::new();
        // Until the first line is whole, the beginning may be too short to identify the recording. No cursor has it
        // then, because no line is returned.
        Read::by_ref(&mut reader).take(IDENTIFYING).read_until(b'\n', &mut beginning)?;
        reader.rewind()?;
        let mut hasher = DefaultHasher::new();
        beginning.hash(&mut hasher);
        let next = Cursor { recording: hasher.finish(), position: 0, number: 1 };
        Ok(Self { reader, next, line: Vec::new() })
    }

    /// Goes to the line of a cursor. Returns `false` if this is another recording, or a shorter one.
    fn skip_to(&mut self, at: Cursor) -> Result<bool, SourceError> {
        let length = self.reader.get_ref().metadata()?.len();
        if self.next.recording != at.recording || length <= at.position {
            return Ok(false);
        }
        // A line begins at the beginning of the file, and after each line feed.
        if at.position > 0 {
            self.reader.seek(SeekFrom::Start(at.position - 1))?;
            let mut before = [0];
            self.reader.read_exact(&mut before)?;
            if before != *b"\n" {
                return Err(SourceError::NoRecord(at));
            }
        }
        self.next = at;
        Ok(true)
    }

    /// Reads the next whole line, and returns its place.
    fn next(&mut self) -> io::Result<Option<Cursor>> {
        self.line.clear();
        let length = self.reader.read_until(b'\n', &mut self.line)? as u64;
        if !self.line.ends_with(b"\n") {
            return Ok(None);
        }
        let at = self.next;
        self.next = Cursor { position: at.position + length, number: at.number + 1, ..at };
        Ok(Some(at))
    }

    /// Returns the head of the current line, or `None` if the line is blank.
    fn head(&self, cursor: Cursor) -> Option<Head> {
        let text = std::str::from_utf8(&self.line);
        if text.is_ok_and(|text| text.trim().is_empty()) {
            return None;
        }
        let record = match text {
            Ok(text) => SinkRecord::from_json(text).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        Some(match record {
            Ok(record) => Head::of(&record, cursor),
            Err(fault) => {
                let reason = format!("line {} is not a record: {fault}: `{}`", cursor.number, quote(&self.line));
                Head::malformed(reason, cursor, self.line.len())
            }
        })
    }

    /// Returns the current line, or a JSON string that contains it if it is not JSON.
    fn json(&self) -> String {
        let text = String::from_utf8_lossy(&self.line);
        match serde_json::from_str::<&serde_json::value::RawValue>(&text) {
            Ok(_) => text.into_owned(),
            Err(_) => serde_json::Value::from(text.trim_end()).to_string(),
        }
    }
}
