//! A JSONL file that is appended to.
//!
//! 1. An event is buffered until its line has been written and the file was then found in place; then it is unsynced, or
//!    delivered for good if nobody asked for syncs.
//! 2. With `FlushPolicy::EachRecord` the result of `write` says what became of an event, so none is counted here.
//! 3. After a sync that failed nobody knows what the disk has: what was unsynced then is never counted as synced.

use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::time::Duration;

use emitree_emitter::{BoxError, Overflow, Progress, Sink, SinkRecord};

use super::exclusive::{Exclusive, Whereabouts};
use super::{Jsonl, JsonlError, Tail, tail};

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
/// tells.
///
/// If the file cannot be written, what is buffered is kept and written as soon as it can; once 64 KiB are, each further
/// record counts as failed. With [`FlushPolicy::EachRecord`] so does the record that could not be passed on at once.
///
/// Dropping it without `close`, which an attached sink always gets, loses what is buffered.
///
/// # One recorder, many readers
///
/// The file is locked while it is open. Opening it a second time, in this process or another one, is
/// [`JsonlError::InUse`] and changes nothing. The lock is released when the recorder is closed or dropped, and when its
/// process ends, also by a crash.
///
/// Anybody may read the file meanwhile, with [`read_jsonl`](super::read_jsonl) for example: it has what has been flushed,
/// and its last line may be [`Torn`](super::ReadError::Torn) while it is being written.
///
/// On Unix the lock is advisory: a program that writes into the file or truncates it without asking for the lock is
/// not noticed. On NFS, whether a second opener is refused is up to the server and the mount options. Devices and pipes are
/// not locked. On Windows the file is opened such that others can read it only.
///
/// # A file that is removed, renamed or replaced
///
/// Each time the buffer is written, the recorder checks that its path still leads to the file that it opened (by device
/// and inode). If not, the events written since the last check count as failed, not as delivered, and so do all later ones:
/// each write, each flush and the close is [`JsonlError::Removed`] or [`JsonlError::Replaced`]. It stays so until a new
/// recorder is opened; nothing is written to the new file before. A log rotation that renames the file is such a case:
/// close the recorder before and open the file after it. Some events that count as failed may stand in the renamed file.
///
/// Windows does not let anybody remove or rename the file while it is open. Elsewhere than on Unix and Windows a removed file
/// is noticed, a replaced one is not.
///
/// # What its report says
///
/// | in the [`Report`](emitree_emitter::Report) | the event is |
/// |---|---|
/// | `buffered` | in this process: a crash of the program loses it |
/// | `delivered` | with the operating system: a crash of the program does not lose it, a power failure may |
/// | `synced` | on disk, which only [`sync`](JsonlOptions::sync) waits for; counted in `delivered` too |
///
/// ```
/// use std::time::Duration;
///
/// use emitree_emitter::Emitter;
/// use emitree_sinks::{FlushPolicy, JsonlFile};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("events.jsonl");
/// let app = Emitter::new();
/// let file = JsonlFile::options().flush(FlushPolicy::OnClose).sync(true).open(&path)?;
/// let recording = app.pipe_to(file)?;
/// app.emit_now("ready", &mut 1)?;
/// let report = recording.flush_blocking();
/// assert_eq!((report.buffered, report.delivered, report.synced), (0, 1, 1));
/// # recording.close_blocking(Duration::MAX).complete()?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # When it is full
///
/// Up to 1024 records wait in the queue, unless [`capacity`](JsonlOptions::capacity) says otherwise; the emit then
/// waits, unless [`overflow`](JsonlOptions::overflow) says what is to be lost. Losses are counted by the sink's handle
/// and stand as gaps among the lines.
#[derive(Debug)]
pub struct JsonlFile {
    lines: Jsonl<Exclusive>,
    path: PathBuf,
    flush: FlushPolicy,
    sync: bool,
    tail: Tail,
    end: Option<End>,
    /// Events accepted and lost with the file.
    failed: u64,
    /// Events delivered since the last sync.
    unsynced: u64,
    synced: u64,
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

/// Why a recorder takes no more records.
#[derive(Clone, Copy, Debug)]
enum End {
    Closed,
    Removed,
    Replaced,
}

impl JsonlFile {
    /// Opens a file with the default options, and makes it if there is none.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, another recorder has it open, or a torn last line cannot be set aside.
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

    /// Writes what is buffered, and confirms that it has arrived in the file that the path leads to (invariant 1).
    fn pass_on(&mut self) -> Result<(), JsonlError> {
        self.check_open()?;
        let drained = self.lines.drain();
        self.end = match self.lines.get_ref().whereabouts() {
            Whereabouts::InPlace => None,
            Whereabouts::Removed => Some(End::Removed),
            Whereabouts::Replaced => Some(End::Replaced),
        };
        if self.end.is_some() {
            self.failed += self.lines.give_up();
            return self.check_open();
        }
        self.unsynced += self.lines.confirm();
        drained.map_err(|source| self.write_error(source))
    }

    fn pass_on_and_sync(&mut self) -> Result<(), JsonlError> {
        self.pass_on()?;
        if !self.sync {
            return Ok(());
        }
        // Taken before the result is known (invariant 3).
        let unsynced = mem::take(&mut self.unsynced);
        let synced = self.lines.get_ref().sync();
        synced.map_err(|source| JsonlError::Sync { path: self.path.clone(), source })?;
        self.synced += unsynced;
        Ok(())
    }

    fn check_open(&self) -> Result<(), JsonlError> {
        let path = || self.path.clone();
        match self.end {
            None => Ok(()),
            Some(End::Closed) => Err(JsonlError::Closed { path: path() }),
            Some(End::Removed) => Err(JsonlError::Removed { path: path() }),
            Some(End::Replaced) => Err(JsonlError::Replaced { path: path() }),
        }
    }

    fn write_error(&self, source: io::Error) -> JsonlError {
        JsonlError::Write { path: self.path.clone(), unwritten: self.lines.unwritten(), source }
    }
}

impl JsonlOptions {
    /// Says when what is buffered is passed on to the operating system; every 250 ms unless set.
    pub const fn flush(mut self, policy: FlushPolicy) -> Self {
        self.flush = policy;
        self
    }

    /// Makes each flush wait until the disk has what was written (`fdatasync`), and the opening until it has the name of a
    /// new file (on Unix); off unless set.
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
    /// If the file cannot be opened, another recorder has it open, or a torn last line cannot be set aside.
    pub fn open(self, path: impl AsRef<Path>) -> Result<JsonlFile, JsonlError> {
        let path = path.as_ref().to_owned();
        let mut file = Exclusive::open(&path)?;
        if self.sync {
            file.sync_name().map_err(|source| JsonlError::Open { path: path.clone(), source })?;
        }
        let mended = tail::mend(file.file_mut(), &path);
        let tail = mended.map_err(|source| JsonlError::Mend { path: path.clone(), source })?;
        let lines = Jsonl::new(file).with_capacity(self.capacity).with_overflow(self.overflow);
        let Self { flush, sync, .. } = self;
        Ok(JsonlFile { lines, path, flush, sync, tail, end: None, failed: 0, unsynced: 0, synced: 0 })
    }
}

impl Default for JsonlOptions {
    fn default() -> Self {
        Self { flush: FlushPolicy::default(), sync: false, capacity: 1024, overflow: Overflow::Block }
    }
}

impl Sink for JsonlFile {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        self.check_open()?;
        if self.lines.is_full() {
            self.pass_on()?;
        }
        let at_once = self.flush == FlushPolicy::EachRecord;
        self.lines.add(record, !at_once).map_err(|source| self.write_error(source))?;
        if at_once {
            self.pass_on_and_sync()?;
            self.synced += u64::from(self.sync && record.as_event().is_some());
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        Ok(self.pass_on_and_sync()?)
    }

    /// A close that fails leaves the recorder open, so that it can be tried again; the lock is then released by the drop.
    fn close(&mut self) -> Result<(), BoxError> {
        self.pass_on_and_sync()?;
        self.end = Some(End::Closed);
        Ok(self.lines.get_ref().unlock()?)
    }

    fn progress(&self) -> Option<Progress> {
        let progress = Progress::default().with_buffered(self.lines.unconfirmed());
        Some(progress.with_synced(self.synced).with_failed(self.failed))
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
