//! Lines into any [`io::Write`].
//!
//! 1. The buffer holds whole lines, but for the head of the first that has been written already.
//! 2. What has been written leaves the buffer at once, so after an error the next attempt goes on where it stopped: a
//!    line is neither torn nor written twice.
//! 3. The buffer holds fewer than `ROOM` bytes and one record.
//! 4. `lines` describes the lines of the buffer, from the one whose head has been written. An event is counted in
//!    `buffered` until its whole line has been written, then in `written` until the caller confirms that it arrived.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::mem;

use emitree_emitter::{BoxError, Overflow, Sink, SinkRecord};

/// How many bytes are collected before they are written.
const ROOM: usize = 64 * 1024;

/// Writes each record as a line of JSON into a writer, buffered; a gap stands as `{"gap":{"lost":n}}`.
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
/// A flush of the sink flushes the writer; until then the events of the report count as buffered. If the writer fails,
/// what is buffered is kept and written later; once the buffer is full, each further record counts as failed.
///
/// Dropping it without `close` loses what is buffered.
///
/// # When it is full
///
/// Up to 1024 records wait in the queue, unless [`with_capacity`](Self::with_capacity) says otherwise; the emit then waits,
/// unless [`with_overflow`](Self::with_overflow) says what is to be lost. Losses are counted by the sink's handle and stand as
/// gaps among the lines.
#[derive(Debug)]
pub struct Jsonl<W> {
    writer: W,
    buffer: Vec<u8>,
    lines: VecDeque<Line>,
    /// How many bytes of the first line have been written.
    head: usize,
    buffered: u64,
    written: u64,
    capacity: usize,
    overflow: Overflow,
}

/// A line that has not been written whole.
#[derive(Clone, Copy, Debug)]
struct Line {
    bytes: usize,
    /// Whether it is an event whose fate is told by `progress`.
    is_counted: bool,
}

impl<W> Jsonl<W> {
    /// Lines into this writer, which needs no buffer of its own.
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

    /// Lets so many records wait in the queue, at least 1.
    #[must_use]
    pub const fn with_capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// Says what happens when that many wait.
    #[must_use]
    pub const fn with_overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// The writer.
    pub const fn get_ref(&self) -> &W {
        &self.writer
    }

    /// The writer, without what is still buffered.
    pub fn into_inner(self) -> W {
        self.writer
    }

    /// How many lines have not been written whole.
    pub(super) fn unwritten(&self) -> usize {
        self.lines.len()
    }

    /// How many counted events are in the buffer, or written and not confirmed.
    pub(super) const fn unconfirmed(&self) -> u64 {
        self.buffered + self.written
    }

    /// What has been written has arrived; returns how many counted events that was.
    pub(super) const fn confirm(&mut self) -> u64 {
        mem::replace(&mut self.written, 0)
    }

    /// Gives up everything that is not confirmed; returns how many counted events that was.
    pub(super) fn give_up(&mut self) -> u64 {
        self.buffer = Vec::new();
        self.lines.clear();
        self.head = 0;
        mem::take(&mut self.buffered) + mem::take(&mut self.written)
    }

    /// Whether the buffer is to be drained before a record is added (invariant 3).
    pub(super) const fn is_full(&self) -> bool {
        self.buffer.len() >= ROOM
    }

    /// Adds a record to the buffer. If it is not counted, the caller says by itself what became of it.
    pub(super) fn add(&mut self, record: &SinkRecord, is_counted: bool) -> io::Result<()> {
        let before = self.buffer.len();
        if let Err(error) = serde_json::to_writer(&mut self.buffer, record) {
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

    /// Removes what has been written from the buffer (invariants 2 and 4).
    fn remove(&mut self, written: usize) {
        self.buffer.drain(..written);
        self.head += written;
        while let Some(line) = self.lines.front().copied().filter(|line| line.bytes <= self.head) {
            self.lines.pop_front();
            self.head -= line.bytes;
            self.buffered -= u64::from(line.is_counted);
            self.written += u64::from(line.is_counted);
        }
    }
}

/// JSON that was passed on as it was may be laid out in lines; inside of its strings there are none.
fn put_on_one_line(mut json: &mut [u8]) {
    while let Some(at) = memchr::memchr2(b'\n', b'\r', json) {
        json[at] = b' ';
        json = &mut json[at + 1..];
    }
}

impl<W: Write> Jsonl<W> {
    /// Passes everything on to the writer.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        let mut written = 0;
        let drained = write_from(&mut self.writer, &self.buffer, &mut written);
        self.remove(written);
        drained
    }
}

/// Writes all bytes, as `write_all` does, and counts those that were.
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
