//! A sink that writes records as lines of JSON into any [`io::Write`].
//!
//! 1. The buffer holds whole lines, except for the part of the first line that is already written.
//! 2. Written bytes leave the buffer immediately. After an error, the next attempt continues where the last attempt
//!    stopped, so a line is neither torn nor written twice.
//! 3. The buffer exceeds `MAX_BUFFERED` bytes by at most one record.
//! 4. `lines` has an entry for each line in the buffer, even for a line that is partly written. An event is counted in
//!    `buffered` until its whole line is written, then in `written` until the caller confirms that it arrived.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::mem;

use emitree_emitter::{BoxError, Overflow, Sink, SinkRecord};

/// The number of bytes that are collected before they are written.
const MAX_BUFFERED: usize = 64 * 1024;

/// A buffered sink that writes each record as a line of JSON into a writer; a gap is written as `{"gap":{"lost":n}}`.
///
/// ```
/// use emitree_emitter::Emitter;
/// use emitree_sinks::Jsonl;
///
/// let stream = std::net::TcpListener::bind("127.0.0.1:0")
///     .and_then(|listener| std::net::TcpStream::connect(listener.local_addr()?))?;
/// let handle = Emitter::new().pipe_to(Jsonl::new(stream))?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// In the report, events count as buffered until the sink is flushed. A flush of the sink also flushes the writer. If
/// the writer fails, the buffer is kept and written later. Once the buffer holds 64 KiB, each further record counts as
/// failed until a write succeeds.
///
/// Dropping a `Jsonl` without `close` loses the buffer.
///
/// # When the queue is full
///
/// The queue holds 1024 records unless [`with_capacity`](Self::with_capacity) is called. When the queue is full,
/// [`with_overflow`](Self::with_overflow) decides whether the emit waits or an event is lost. The sink's handle counts
/// the lost events, and a gap is written in their place.
#[derive(Debug)]
pub struct Jsonl<W> {
    writer: W,
    buffer: Vec<u8>,
    lines: VecDeque<Line>,
    /// The number of bytes of the first line that are already written.
    head: usize,
    buffered: u64,
    written: u64,
    capacity: usize,
    overflow: Overflow,
}

/// A line that is not completely written yet.
#[derive(Clone, Copy, Debug)]
struct Line {
    bytes: usize,
    /// `true` for an event that `buffered` or `written` counts. `false` for gaps and for records that the caller
    /// accounts for.
    is_counted: bool,
}

impl<W> Jsonl<W> {
    /// Creates a sink that writes lines into `writer`, which needs no buffer of its own.
    pub const fn new(writer: W) -> Self {
        Self {
            writer,
            buffer: Vec::new(),
            lines: VecDeque::new(),
            head: 0,
            buffered: 0,
            written: 0,
            capacity: 1024,
            overflow: Overflow::Block,
        }
    }

    /// Sets the maximum number of records in the queue. The default is 1024, and 0 counts as 1.
    #[must_use]
    pub const fn with_capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// Sets what happens when the queue is full. The default is [`Overflow::Block`].
    #[must_use]
    pub const fn with_overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// Returns a reference to the writer.
    pub const fn get_ref(&self) -> &W {
        &self.writer
    }

    /// Returns the writer. Records that are still buffered are lost.
    pub fn into_inner(self) -> W {
        self.writer
    }

    /// Returns the number of lines that are not written completely.
    pub(super) fn unwritten(&self) -> usize {
        self.lines.len()
    }

    /// Returns the number of counted events that are in the buffer, or written and not confirmed.
    pub(super) const fn unconfirmed(&self) -> u64 {
        self.buffered + self.written
    }

    /// Confirms that all written lines arrived; returns the number of their counted events.
    pub(super) const fn confirm(&mut self) -> u64 {
        mem::replace(&mut self.written, 0)
    }

    /// Drops all lines that are not confirmed; returns the number of their counted events.
    pub(super) fn give_up(&mut self) -> u64 {
        self.buffer = Vec::new();
        self.lines.clear();
        self.head = 0;
        mem::take(&mut self.buffered) + mem::take(&mut self.written)
    }

    /// Returns `true` if the buffer must be drained before a record is added (3).
    pub(super) const fn is_full(&self) -> bool {
        self.buffer.len() >= MAX_BUFFERED
    }

    /// Adds a record to the buffer. If the record is not counted, the caller accounts for it.
    pub(super) fn add(&mut self, record: &SinkRecord, is_counted: bool) -> io::Result<()> {
        let before = self.buffer.len();
        if let Err(error) = serde_json::to_writer(&mut self.buffer, record) {
            // Half a record must not stay in the buffer (1).
            self.buffer.truncate(before);
            return Err(error.into());
        }
        put_on_one_line(&mut self.buffer[before..]);
        self.buffer.push(b'\n');
        let is_counted = is_counted && record.as_event().is_some();
        self.lines.push_back(Line { bytes: self.buffer.len() - before, is_counted });
        self.buffered += u64::from(is_counted);
        Ok(())
    }

    /// Removes `written` bytes from the buffer, and counts the lines that are complete now (2, 4).
    fn remove(&mut self, written: usize) {
        self.buffer.drain(..written);
        self.head += written;
        // The event of a complete line moves from `buffered` to `written`. `head` is then the number of written bytes
        // of the next line.
        while let Some(line) = self.lines.front().copied().filter(|line| line.bytes <= self.head) {
            self.lines.pop_front();
            self.head -= line.bytes;
            self.buffered -= u64::from(line.is_counted);
            self.written += u64::from(line.is_counted);
        }
    }
}

/// Replaces line breaks with spaces. JSON may contain line breaks between its tokens, but not inside a string.
fn put_on_one_line(mut json: &mut [u8]) {
    while let Some(at) = memchr::memchr2(b'\n', b'\r', json) {
        json[at] = b' ';
        json = &mut json[at + 1..];
    }
}

impl<W: Write> Jsonl<W> {
    /// Writes the whole buffer.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        let mut written = 0;
        let drained = write_from(&mut self.writer, &self.buffer, &mut written);
        // Even if the write failed, remove the bytes that were written before the error (2).
        self.remove(written);
        drained
    }
}

/// Writes all bytes, as `write_all` does, and counts the bytes that were written before an error.
fn write_from(writer: &mut impl Write, bytes: &[u8], written: &mut usize) -> io::Result<()> {
    while let Some(rest) = bytes.get(*written..).filter(|rest| !rest.is_empty()) {
        match writer.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(some) => *written += some,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl<W: Write + Send + 'static> Sink for Jsonl<W> {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        if self.is_full() {
            self.drain()?;
        }
        Ok(self.add(record, true)?)
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        self.drain()?;
        // Only the writer's flush shows that the lines arrived.
        self.writer.flush()?;
        self.confirm();
        Ok(())
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn overflow(&self) -> Overflow {
        self.overflow
    }
}
