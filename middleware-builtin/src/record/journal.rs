//! A journal: the runs below a run, as data.
//!
//! In a file it is JSON lines: one that says what was recorded and how many runs follow, and then one for each run.

use std::borrow::Cow;
use std::io::{self, BufRead, Write};
use std::sync::Arc;

use emitree_runtime::{ErrorReport, Result as RunResult, Status};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const VERSION: u32 = 1;

/// What was done below a run: a tree of runs, with what each got and gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Journal {
    /// What sort of thing was recorded.
    pub kind: String,
    /// What it is called.
    pub name: String,
    /// How the recorded run ended; none if it has not.
    pub status: Option<Status>,
    /// The runs below it, in the order in which they began.
    #[serde(skip)]
    pub entries: Vec<Entry>,
}

/// A run below the one that was recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Entry {
    /// Its place in the order in which runs began, from 1.
    pub id: u64,
    /// The run in which it was started; none if that is the recorded one.
    pub parent: Option<u64>,
    /// How many attempts of the recorded run were over when it began.
    pub round: u32,
    /// What sort of thing ran.
    pub kind: Cow<'static, str>,
    /// What it is called.
    pub name: Cow<'static, str>,
    /// The namespace of its events. Those with the same share it.
    pub path: Arc<str>,
    /// What it got, as its `start` left it.
    pub input: Value,
    /// What its work and its layers came to, once for each attempt. Empty if that was dropped.
    pub answers: Vec<Answer>,
    /// How it ended; none if it has not.
    pub status: Option<Status>,
    /// What it failed with, if it did.
    pub error: Option<Box<ErrorReport>>,
    /// Its place in the order in which runs ended, from 1.
    pub ended: Option<u64>,
}

/// What the work and the layers of a run came to, in one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// An output.
    Output(Value),
    /// An error.
    Error(Box<ErrorReport>),
}

impl Answer {
    pub(super) fn of(result: RunResult<Value>) -> Self {
        match result {
            Ok(output) => Self::Output(output),
            Err(error) => Self::Error(Box::new(error.report())),
        }
    }
}

/// Why something is no journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// It cannot be read.
    #[error("line {line} of the journal cannot be read: {source}")]
    Io {
        /// Which line, from 1.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// A line is none of a journal: torn off, or of something else.
    #[error("line {line} of the journal is {what}: {source}")]
    Line {
        /// Which line, from 1.
        line: u64,
        /// What it is.
        what: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// There are less runs than it says, or more.
    #[error("line {line} of the journal is its last, with run {found} of {expected}: write it again, whole")]
    Incomplete {
        /// Which line, from 1.
        line: u64,
        /// How many runs there are.
        found: u64,
        /// How many there should be.
        expected: u64,
    },
    /// It was written by a later version.
    #[error("a journal of version {0} cannot be read by this version, which reads {VERSION}")]
    Version(u32),
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct JournalHead<J> {
    version: u32,
    runs: u64,
    #[serde(flatten)]
    journal: J,
}

impl Journal {
    pub(super) const fn new(kind: String, name: String) -> Self {
        Self { kind, name, status: None, entries: Vec::new() }
    }

    /// Writes it as JSON lines.
    ///
    /// # Errors
    ///
    /// That of the writer.
    pub fn write_to(&self, mut writer: impl Write) -> io::Result<()> {
        let head = JournalHead { version: VERSION, runs: self.entries.len() as u64, journal: self };
        write_line(&mut writer, &head)?;
        self.entries.iter().try_for_each(|entry| write_line(&mut writer, entry))?;
        writer.flush()
    }

    /// Reads it from JSON lines.
    ///
    /// # Errors
    ///
    /// If a line is torn, or there are more or less than there should be: says which.
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
    /// The one that was read last, from 1.
    line: u64,
}

impl<R: BufRead> JournalLines<R> {
    fn next<T: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<T>, JournalError> {
        let (mut text, line) = (Vec::new(), self.line + 1);
        self.reader.read_until(b'\n', &mut text).map_err(|source| JournalError::Io { line, source })?;
        if text.is_empty() {
            return Ok(None);
        }
        self.line = line;
        let what = if text.ends_with(b"\n") { "none of a journal" } else { "torn" };
        serde_json::from_slice(&text).map(Some).map_err(|source| JournalError::Line { line, what, source })
    }
}
