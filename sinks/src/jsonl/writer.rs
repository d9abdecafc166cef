//! Lines into any [`io::Write`].
//!
//! 1. The buffer holds whole lines, but for the head of the first that has been written already.
//! 2. What has been written leaves the buffer at once, so after an error the next attempt goes on where it stopped: a
//!    line is neither torn nor written twice.
//! 3. The buffer holds fewer than `ROOM` bytes and one record.

use std::io::{self, Write};

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
/// A flush of the sink flushes the writer. If the writer fails, what is buffered is kept and written later; once the
/// buffer is full, each further record counts as failed.
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
    capacity: usize,
    overflow: Overflow,
}

impl<W> Jsonl<W> {
    /// Lines into this writer, which needs no buffer of its own.
    pub const fn new(writer: W) -> Self {
        Self { writer, buffer: Vec::new(), capacity: 1024, overflow: Overflow::Block }
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
        self.buffer.iter().filter(|byte| **byte == b'\n').count()
    }

    fn add(&mut self, record: &SinkRecord) -> Result<(), serde_json::Error> {
        let before = self.buffer.len();
        let added = record.write_json(&mut self.buffer);
        match added {
            Ok(()) => {
                put_on_one_line(&mut self.buffer[before..]);
                self.buffer.push(b'\n');
            }
            Err(_) => self.buffer.truncate(before),
        }
        added
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
    /// Writes a record, making room first if there is none.
    pub(super) fn write_record(&mut self, record: &SinkRecord) -> io::Result<()> {
        if self.buffer.len() >= ROOM {
            self.drain()?;
        }
        self.add(record).map_err(io::Error::from)
    }

    /// Passes everything on to the writer, and has it pass it on.
    pub(super) fn flush_writer(&mut self) -> io::Result<()> {
        self.drain()?;
        self.writer.flush()
    }

    fn drain(&mut self) -> io::Result<()> {
        let mut written = 0;
        let drained = write_from(&mut self.writer, &self.buffer, &mut written);
        self.buffer.drain(..written);
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
        Ok(self.write_record(record)?)
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        Ok(self.flush_writer()?)
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn overflow(&self) -> Overflow {
        self.overflow
    }
}
