//! Journals: the recorded runs below a run, as data.
//!
//! A journal is written as JSON lines: the first line describes the recorded run and contains the number of runs below
//! it, and each further line is one of these runs.

use std::borrow::Cow;
use std::io::{self, BufRead, Write};
use std::sync::Arc;

use emitree_runtime::{ErrorReport, Result as RunResult, Status};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const VERSION: u32 = 1;

/// The runs below a recorded run, with their inputs and outputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunJournal {
    /// The kind of the recorded run's instance.
    pub kind: String,
    /// The name of the recorded run's instance.
    pub name: String,
    /// The outcome of the recorded run; `None` if it has not ended.
    pub status: Option<Status>,
    /// The runs below the recorded run, in the order in which they began.
    #[serde(skip)]
    pub entries: Vec<Entry>,
}

/// A run below the recorded run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Entry {
    /// The number of the run, counted from 1 in the order in which runs began.
    pub id: u64,
    /// The id of the parent's entry; `None` if the parent is the recorded run.
    pub parent: Option<u64>,
    /// The number of attempts of the recorded run that had ended when this run began.
    pub round: u32,
    /// The kind of the instance.
    pub kind: Cow<'static, str>,
    /// The name of the instance.
    pub name: Cow<'static, str>,
    /// The namespace of the run's events. Entries that are recorded with the same namespace share one string.
    pub path: Arc<str>,
    /// The input, as listeners of `start` left it.
    pub input: Value,
    /// The results of the work and its layers, one for each attempt in which they ended. Empty if they never ended.
    pub answers: Vec<AttemptResult>,
    /// The outcome; `None` if the run has not ended.
    pub status: Option<Status>,
    /// The error that the run ended with, if any.
    pub error: Option<Box<ErrorReport>>,
    /// The rank of the run among the ended runs, counted from 1 in the order in which they ended; `None` if the run has
    /// not ended.
    pub ended: Option<u64>,
}

/// The result of a run's work and layers in one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AttemptResult {
    /// The output.
    Output(Value),
    /// The error.
    Error(Box<ErrorReport>),
}

impl AttemptResult {
    pub(super) fn of(result: RunResult<Value>) -> Self {
        match result {
            Ok(output) => Self::Output(output),
            Err(error) => Self::Error(Box::new(error.report())),
        }
    }
}

/// The reason why a journal could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The reader failed.
    #[error("line {line} of the journal cannot be read: {source}")]
    Io {
        /// The number of the line, from 1.
        line: u64,
        /// The reader's error.
        source: io::Error,
    },
    /// The line is incomplete, or is not a line of a journal.
    #[error("line {line} of the journal is {what}: {source}")]
    Line {
        /// The number of the line, from 1.
        line: u64,
        /// The defect, as it appears in the message.
        what: &'static str,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The number of runs differs from the number in the first line, or the journal has no lines.
    #[error("the journal ends at line {line} with {found} of {expected} runs: it was not written completely")]
    Incomplete {
        /// The number of the last line, from 1; `0` if there are no lines.
        line: u64,
        /// The number of runs that were read.
        found: u64,
        /// The number of runs that the first line states; `1` if there are no lines.
        expected: u64,
    },
    /// The version of the journal's format is not the version that this crate reads.
    #[error("a journal of version {0} cannot be read: this crate reads version {VERSION}")]
    Version(u32),
}

/// The first line of a written journal.
#[derive(Serialize, Deserialize)]
struct JournalHead<J> {
    version: u32,
    runs: u64,
    #[serde(flatten)]
    journal: J,
}

impl RunJournal {
    pub(super) const fn new(kind: String, name: String) -> Self {
        Self { kind, name, status: None, entries: Vec::new() }
    }

    /// Writes the journal as JSON lines.
    ///
    /// # Errors
    ///
    /// Returns an error if the writer fails.
    pub fn write_to(&self, mut writer: impl Write) -> io::Result<()> {
        let head = JournalHead { version: VERSION, runs: self.entries.len() as u64, journal: self };
        write_line(&mut writer, &head)?;
        self.entries.iter().try_for_each(|entry| write_line(&mut writer, entry))?;
        writer.flush()
    }

    /// Reads a journal from JSON lines.
    ///
    /// # Errors
    ///
    /// Returns an error if the reader fails, if a line is incomplete, if a line is not part of a journal, if the number
    /// of runs is wrong, or if the journal has another format version. Every error except [`JournalError::Version`]
    /// contains a line number.
    pub fn read_from(reader: impl BufRead) -> Result<Self, JournalError> {
        let mut lines = JournalLines { reader, line: 0 };
        let Some(head) = lines.next::<JournalHead<Self>>()? else {
            return Err(JournalError::Incomplete { line: 0, found: 0, expected: 1 });
        };
        if head.version != VERSION {
            return Err(JournalError::Version(head.version));
        }
        let mut journal = head.journal;
        while let Some(entry) = lines.next()? {
            journal.entries.push(entry);
        }
        let found = journal.entries.len() as u64;
        if found != head.runs {
            return Err(JournalError::Incomplete { line: lines.line, found, expected: head.runs });
        }
        Ok(journal)
    }
}

fn write_line(writer: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *writer, line)?;
    writer.write_all(b"\n")
}

struct JournalLines<R> {
    reader: R,
    /// The number of the line that was read last, from 1.
    line: u64,
}

impl<R: BufRead> JournalLines<R> {
    fn next<T: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<T>, JournalError> {
        let mut text = Vec::new();
        let line = self.line + 1;
        self.reader.read_until(b'\n', &mut text).map_err(|source| JournalError::Io { line, source })?;
        if text.is_empty() {
            return Ok(None);
        }
        self.line = line;
        // If a line that cannot be parsed has no line feed, its writer stopped before the end of the line.
        let what = if text.ends_with(b"\n") { "not a journal line" } else { "incomplete" };
        serde_json::from_slice(&text).map(Some).map_err(|source| JournalError::Line { line, what, source })
    }
}
