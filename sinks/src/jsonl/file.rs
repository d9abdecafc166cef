//! A JSONL file that is appended to.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use emitree_emitter::{BoxError, Overflow, Sink, SinkRecord};
use thiserror::Error;

use super::{Jsonl, Tail, tail};

/// Appends each record to a file, as a line of JSON; a gap stands as `{"gap":{"lost":n}}`.
///
/// [`open`](Self::open) has the defaults, [`options`](Self::options) says otherwise:
///
/// ```
/// use std::time::Duration;
///
/// use emitree_emitter::{Emitter, Overflow};
/// use emitree_sinks::{FlushPolicy, JsonlFile};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("events.jsonl");
/// let file = JsonlFile::options().flush(FlushPolicy::EachRecord).sync(true).open(&path)?;
/// let recording = Emitter::new().pipe_to(file)?;
/// recording.close_blocking(Duration::from_secs(5)).complete()?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// A recording that a crash cut off is mended when it is opened, and nothing is ever glued to it. A torn last line is
/// moved to `<path>.torn`, after what is there; a whole record that lacks only its newline gets one. [`tail`](Self::tail)
/// tells. A file has one writer at a time.
///
/// If the file cannot be written, what is buffered is kept and written as soon as it can; once 64 KiB are, each further
/// record counts as failed. With [`FlushPolicy::EachRecord`] so does the record that could not be passed on at once.
///
/// Dropping it without `close`, which an attached sink always gets, loses what is buffered.
///
/// # When it is full
///
/// Up to 1024 records wait in the queue, unless [`capacity`](JsonlOptions::capacity) says otherwise; the emit then
/// waits, unless [`overflow`](JsonlOptions::overflow) says what is to be lost. Losses are counted by the sink's handle
/// and stand as gaps among the lines.
#[derive(Debug)]
pub struct JsonlFile {
    lines: Jsonl<File>,
    path: PathBuf,
    flush: FlushPolicy,
    sync: bool,
    tail: Tail,
}

/// When a [`JsonlFile`] passes on to the operating system what it has buffered. A flush or close of its handle always
/// does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlushPolicy {
    /// After each record: a crash of the program loses nothing that was written.
    EachRecord,
    /// When the first record in the buffer is so old.
    Interval(Duration),
    /// When the sink is closed, or 64 KiB are buffered.
    OnClose,
}

/// Every 250 ms: a crash of the program loses at most the records of the last quarter of a second.
impl Default for FlushPolicy {
    fn default() -> Self {
        Self::Interval(Duration::from_millis(250))
    }
}

/// How a [`JsonlFile`] is opened.
#[derive(Clone, Debug)]
#[must_use = "options open nothing until `open` is called"]
pub struct JsonlOptions {
    flush: FlushPolicy,
    sync: bool,
    capacity: usize,
    overflow: Overflow,
}

/// A file that was not opened, or not written.
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
}

impl JsonlFile {
    /// Opens a file with the default options, and makes it if there is none.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or a torn last line cannot be set aside.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, JsonlError> {
        Self::options().open(path)
    }

    /// The default options: flushed every 250 ms, not synced, 1024 records wait, then the emit does.
    pub fn options() -> JsonlOptions {
        JsonlOptions::default()
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the recording ended when it was opened.
    #[must_use]
    pub const fn tail(&self) -> &Tail {
        &self.tail
    }

    fn flush_lines(&mut self) -> io::Result<()> {
        self.lines.flush_writer()?;
        if self.sync { self.lines.get_ref().sync_data() } else { Ok(()) }
    }

    fn error(&self, source: io::Error) -> BoxError {
        JsonlError::Write { path: self.path.clone(), unwritten: self.lines.unwritten(), source }.into()
    }
}

impl JsonlOptions {
    /// Says when what is buffered is passed on to the operating system; every 250 ms unless set.
    pub const fn flush(mut self, policy: FlushPolicy) -> Self {
        self.flush = policy;
        self
    }

    /// Whether each flush waits until the disk has it (`fdatasync`); off unless set.
    pub const fn sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }

    /// Lets so many records wait in the queue, at least 1; 1024 unless set.
    pub const fn capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// Says what happens when that many wait; [`Overflow::Block`] unless set.
    pub const fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// Opens a file for appending, makes it if there is none, and mends its end.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or a torn last line cannot be set aside.
    pub fn open(self, path: impl AsRef<Path>) -> Result<JsonlFile, JsonlError> {
        let path = path.as_ref().to_owned();
        let opened = OpenOptions::new().read(true).append(true).create(true).open(&path);
        let mut file = opened.map_err(|source| JsonlError::Open { path: path.clone(), source })?;
        let mended = tail::mend(&mut file, &path);
        let tail = mended.map_err(|source| JsonlError::Mend { path: path.clone(), source })?;
        let lines = Jsonl::new(file).with_capacity(self.capacity).with_overflow(self.overflow);
        Ok(JsonlFile { lines, path, flush: self.flush, sync: self.sync, tail })
    }
}

impl Default for JsonlOptions {
    fn default() -> Self {
        Self { flush: FlushPolicy::default(), sync: false, capacity: 1024, overflow: Overflow::Block }
    }
}

impl Sink for JsonlFile {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        self.lines.write_record(record).map_err(|error| self.error(error))?;
        if self.flush == FlushPolicy::EachRecord { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        self.flush_lines().map_err(|error| self.error(error))
    }

    fn flush_interval(&self) -> Option<Duration> {
        match self.flush {
            FlushPolicy::Interval(interval) => Some(interval),
            FlushPolicy::EachRecord | FlushPolicy::OnClose => None,
        }
    }

    fn capacity(&self) -> usize {
        self.lines.capacity()
    }

    fn overflow(&self) -> Overflow {
        self.lines.overflow()
    }
}
