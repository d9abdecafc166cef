//! A sink that appends records to a JSONL file.
//!
//! 1. An event is buffered until its line is written and a later check has found the file at its path. After that, the
//!    event counts as delivered, and as unsynced until the next sync.
//! 2. With `FlushPolicy::EachRecord`, the result of `write` shows whether an event was written, so no event is counted
//!    as buffered.
//! 3. After a failed sync, the state of the disk is unknown: events that this sync would have covered never count as
//!    synced.

use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::time::Duration;

use emitree_emitter::{BoxError, Overflow, Progress, Sink, SinkRecord};

use super::locked_file::{LockedFile, PathState};
use super::{Jsonl, JsonlError, Tail, tail};

/// A sink that appends each record to a file as a line of JSON; a gap is written as `{"gap":{"lost":n}}`.
///
/// [`open`](Self::open) uses the default options. [`options`](Self::options) lets you change them:
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
/// Opening a recording that was cut off by a crash repairs its end. A torn last line is appended to `<path>.torn` and
/// removed from the recording; a whole record that lacks only its newline gets the newline. [`tail`](Self::tail)
/// returns the repair that was made.
///
/// If the file cannot be written, the buffer is kept and written later. Once the buffer holds 64 KiB, each further
/// record counts as failed until a write succeeds. With [`FlushPolicy::EachRecord`], a record that cannot be written
/// immediately counts as failed, even if it is written later.
///
/// Dropping a `JsonlFile` without `close` loses the buffer. A sink that is attached to an emitter is closed through its
/// handle, when the emitter is closed or dropped, or when the emitter's run ends. The root emitter is never dropped: a
/// program that ends without closing the handle loses its last records.
///
/// # One recorder, many readers
///
/// The file is locked while it is open. Opening it a second time, in this or another process, fails with
/// [`JsonlError::InUse`] and changes nothing. The lock is released when the recorder is closed or dropped, and when its
/// process ends, even by a crash.
///
/// Other programs may read the file meanwhile, for example with [`read_jsonl`](super::read_jsonl). The file contains
/// all flushed records, and the last line may be [`Torn`](super::ReadError::Torn) while the recorder writes it.
///
/// On Unix the lock is advisory: the recorder does not notice a program that writes into the file or truncates it
/// without taking the lock. On NFS, the server and the mount options determine whether a second recorder can open the
/// file. Devices and pipes are not locked. On Windows, other programs can read but not change the file until the
/// recorder is dropped.
///
/// # A file that is removed, renamed or replaced
///
/// Each time the recorder writes its buffer, it checks that its path still leads to the file that it opened (by device
/// and inode). If not, all buffered events and all later events count as failed. This write and each later write, flush
/// and close return [`JsonlError::Removed`] or [`JsonlError::Replaced`]. Open a new recorder to continue; the old
/// recorder never writes to the new file. A log rotation that renames the file is such a case: close the recorder
/// before the rotation, and open the file again after it. Some events that count as failed may be in the renamed file.
///
/// On Windows, the file cannot be removed or renamed while it is open. On systems other than Unix and Windows, the
/// recorder notices a removed file, but not a replaced file.
///
/// # Counts in the report
///
/// | in the [`Report`](emitree_emitter::Report) | the event is |
/// |---|---|
/// | `buffered` | in this process: a crash of the program loses it |
/// | `delivered` | passed to the operating system: a power failure may lose it, but a crash of the program does not |
/// | `synced` | on disk, if [`sync`](JsonlOptions::sync) is on; counted in `delivered`, too |
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
/// # When the queue is full
///
/// The queue holds 1024 records unless [`capacity`](JsonlOptions::capacity) is called. When the queue is full,
/// [`overflow`](JsonlOptions::overflow) decides whether the emit waits or an event is lost. The sink's handle counts
/// the lost events, and a gap is written in their place.
#[derive(Debug)]
pub struct JsonlFile {
    lines: Jsonl<LockedFile>,
    path: PathBuf,
    flush: FlushPolicy,
    sync: bool,
    tail: Tail,
    end: Option<EndCause>,
    /// The number of events that were accepted, but then lost with the file.
    failed: u64,
    /// The number of events delivered since the last sync.
    unsynced: u64,
    synced: u64,
}

/// The time at which a [`JsonlFile`] writes its buffer to the file. A flush or close of the sink's handle always writes
/// the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlushPolicy {
    /// After each record: a crash of the program loses only records that the sink has not written yet.
    EachRecord,
    /// When no further record waits, or when 64 KiB are buffered: many records of a busy program are one write, and a
    /// crash of the program loses only records of its last moment.
    WhenIdle,
    /// When the oldest record in the buffer has this age, or when 64 KiB are buffered.
    Interval(Duration),
    /// When the sink is closed, or when 64 KiB are buffered.
    OnClose,
}

/// Options for opening a [`JsonlFile`].
#[derive(Clone, Debug)]
#[must_use = "options open nothing until `open` is called"]
pub struct JsonlOptions {
    flush: Option<FlushPolicy>,
    sync: bool,
    capacity: usize,
    overflow: Overflow,
}

/// The reason why a recorder accepts no more records.
#[derive(Clone, Copy, Debug)]
enum EndCause {
    Closed,
    Removed,
    Replaced,
}

impl JsonlFile {
    /// Opens or creates a file with the default options.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be opened or locked, if another recorder has it open, or if its end cannot
    /// be repaired.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, JsonlError> {
        Self::options().open(path)
    }

    /// Returns the default options: the file is written [when idle](FlushPolicy::WhenIdle) and not synced, the queue has
    /// room for 1024 records, and an emit waits when the queue is full.
    pub fn options() -> JsonlOptions {
        JsonlOptions::default()
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the repair that was made to the end of the recording when it was opened.
    #[must_use]
    pub const fn tail(&self) -> &Tail {
        &self.tail
    }

    /// Writes the buffer, and confirms its events if the file is still at its path (1).
    fn write_out(&mut self) -> Result<(), JsonlError> {
        self.check_open()?;
        let drained = self.lines.drain();
        self.end = match self.lines.get_ref().path_state() {
            PathState::InPlace => None,
            PathState::Removed => Some(EndCause::Removed),
            PathState::Replaced => Some(EndCause::Replaced),
        };
        // The lines may be in a file that is no longer at the path: all unconfirmed events count as failed, even events
        // that were written.
        if self.end.is_some() {
            self.failed += self.lines.give_up();
            return self.check_open();
        }
        self.unsynced += self.lines.confirm();
        drained.map_err(|source| self.write_error(source))
    }

    fn write_out_and_sync(&mut self) -> Result<(), JsonlError> {
        self.write_out()?;
        if !self.sync {
            return Ok(());
        }
        // Reset the count before the sync, so that these events never count as synced if the sync fails (3).
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
            Some(EndCause::Closed) => Err(JsonlError::Closed { path: path() }),
            Some(EndCause::Removed) => Err(JsonlError::Removed { path: path() }),
            Some(EndCause::Replaced) => Err(JsonlError::Replaced { path: path() }),
        }
    }

    fn write_error(&self, source: io::Error) -> JsonlError {
        JsonlError::Write { path: self.path.clone(), unwritten: self.lines.unwritten(), source }
    }
}

impl JsonlOptions {
    /// Sets when the buffer is written to the file. The default is [`FlushPolicy::WhenIdle`], or every 250 ms with
    /// [`sync`](Self::sync), because a sync takes milliseconds.
    pub const fn flush(mut self, policy: FlushPolicy) -> Self {
        self.flush = Some(policy);
        self
    }

    /// Sets whether each flush waits until its data is on disk (`fdatasync`). The default is `false`. With `true`,
    /// opening a new file on Unix also waits until its directory entry is on disk.
    pub const fn sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }

    /// Sets the maximum number of records in the queue. The default is 1024, and 0 counts as 1.
    pub const fn capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// Sets what happens when the queue is full. The default is [`Overflow::Block`].
    pub const fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// Opens or creates a file for appending, and repairs its end.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be opened or locked, if another recorder has it open, if its end cannot be
    /// repaired, or if the directory of a new file cannot be synced.
    pub fn open(self, path: impl AsRef<Path>) -> Result<JsonlFile, JsonlError> {
        let path = path.as_ref().to_owned();
        // Lock the file first, because the next steps may change it.
        let mut file = LockedFile::open(&path)?;
        if self.sync {
            file.sync_name().map_err(|source| JsonlError::Open { path: path.clone(), source })?;
        }
        let repaired = tail::repair(file.file_mut(), &path);
        let tail = repaired.map_err(|source| JsonlError::Mend { path: path.clone(), source })?;
        let lines = Jsonl::new(file).with_capacity(self.capacity).with_overflow(self.overflow);
        let Self { flush, sync, .. } = self;
        let by_default = if sync { FlushPolicy::Interval(Duration::from_millis(250)) } else { FlushPolicy::WhenIdle };
        let flush = flush.unwrap_or(by_default);
        Ok(JsonlFile { lines, path, flush, sync, tail, end: None, failed: 0, unsynced: 0, synced: 0 })
    }
}

impl Default for JsonlOptions {
    fn default() -> Self {
        Self { flush: None, sync: false, capacity: 1024, overflow: Overflow::Block }
    }
}

impl Sink for JsonlFile {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        self.check_open()?;
        // Drain the buffer before adding a record, so that it does not grow without bound while the file cannot be
        // written.
        if self.lines.is_full() {
            self.write_out()?;
        }
        // With `EachRecord`, this call's result shows whether the event was written, so the event is not counted as
        // buffered (2).
        let at_once = self.flush == FlushPolicy::EachRecord;
        self.lines.add(record, !at_once).map_err(|source| self.write_error(source))?;
        if at_once {
            self.write_out_and_sync()?;
            self.synced += u64::from(self.sync && record.as_event().is_some());
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        Ok(self.write_out_and_sync()?)
    }

    /// Writes the buffer and releases the lock. If the buffer cannot be written or synced, the recorder stays open, and
    /// the lock is released when the recorder is dropped.
    fn close(&mut self) -> Result<(), BoxError> {
        self.write_out_and_sync()?;
        self.end = Some(EndCause::Closed);
        Ok(self.lines.get_ref().unlock()?)
    }

    fn progress(&self) -> Option<Progress> {
        let progress = Progress::default().with_buffered(self.lines.unconfirmed());
        Some(progress.with_synced(self.synced).with_failed(self.failed))
    }

    fn flush_interval(&self) -> Option<Duration> {
        match self.flush {
            // The sink's thread flushes once it has written all records that waited.
            FlushPolicy::WhenIdle => Some(Duration::ZERO),
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
