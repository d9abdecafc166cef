//! Where events go (E13): the contract of a sink, and what stands between it and the emitter.
//!
//! ```text
//! emit ── input.rs ──> queue.rs [ backlog.rs ] ──> worker.rs ──> Sink::write     a thread per sink
//!                                              └─> stream.rs ──> poll_next       whoever polls
//! ```
//!
//! [`handle.rs`](SinkHandle) asks the worker to flush and to close, and reports what was delivered.

mod admission;
mod attach;
mod backlog;
mod handle;
mod input;
mod queue;
mod stream;
mod worker;

use std::io;
use std::time::Duration;

use thiserror::Error;

pub use self::handle::{Incomplete, Report, SinkHandle};
pub use self::stream::EventStream;
use crate::{BoxError, ListenError, SinkRecord};

/// What takes records of events: a file, a channel, a socket.
///
/// One is attached with [`Emitter::pipe_to`](crate::Emitter::pipe_to), which gives a [`SinkHandle`]. From then on it
/// belongs to a thread of its own, so it may block, and needs no lock:
///
/// 1. [`write`](Self::write) is called with one record after the other, in the order in which the events were emitted.
///    Where some were lost, it is called with a [`SinkRecord::Gap`] that counts them.
/// 2. [`flush`](Self::flush) is called when somebody asks for it, after everything that was emitted before, and when
///    [`flush_interval`](Self::flush_interval) has passed since the first record that was not flushed.
/// 3. [`close`](Self::close) is called once, at the end: when the sink is closed or unpiped, or when its emitter is
///    closed or dropped, after everything that was accepted. Then the sink is dropped and its thread ends.
///
/// An error or a panic of one call is logged and counted; the sink is called again for the next record.
///
/// A sink that holds the emitter it is piped to keeps it alive: it then ends by `close` or `unpipe` only. It may emit on
/// that emitter and attach other sinks. If it awaits an emit on its own thread while it is full, nobody else can make room:
/// that event is lost and counted. Do not wait for an emit on another thread, or for another sink that waits for this
/// one: such a circle is not noticed, and lasts until one of the sinks is closed.
///
/// # When it is full
///
/// Up to [`capacity`](Self::capacity) records wait for the sink, besides those that its thread has taken to write them:
/// at most as many, and as many that were written last, which are dropped when it goes to sleep. What happens to an
/// event beyond that is said by [`overflow`](Self::overflow). Whatever is lost is counted, and the sink is told where.
///
/// ```
/// use emitree_emitter::{BoxError, Overflow, SinkRecord, Sink};
///
/// /// Prints a line for each event; falls behind rather than hold anybody up.
/// struct Lines;
///
/// impl Sink for Lines {
///     fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
///         match record {
///             SinkRecord::Event(event) => println!("{} {}", event.path, event.payload),
///             SinkRecord::Gap(gap) => println!("… {} lost", gap.lost),
///             _ => {}
///         }
///         Ok(())
///     }
///
///     fn overflow(&self) -> Overflow {
///         Overflow::DropOldest
///     }
/// }
/// ```
pub trait Sink: Send + 'static {
    /// Writes one record; it may be buffered. A sink that keeps records clones them.
    ///
    /// # Errors
    ///
    /// If the record was not written. It then counts as failed, and is not given to the sink again.
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError>;

    /// Passes on what is buffered. Does nothing unless implemented.
    ///
    /// # Errors
    ///
    /// If not everything could be passed on.
    fn flush(&mut self) -> Result<(), BoxError> {
        Ok(())
    }

    /// Ends the sink. Flushes unless implemented.
    ///
    /// # Errors
    ///
    /// If not everything could be passed on.
    fn close(&mut self) -> Result<(), BoxError> {
        self.flush()
    }

    /// Returns how far the accepted events have got: those for which [`write`](Self::write) returned `Ok`. Called after
    /// each write, flush and close.
    ///
    /// Unless implemented, an event counts as buffered until a flush or the close succeeds, and as failed if the close does
    /// not. A sink that knows better returns `Some`: [`Progress::default()`] if it has no buffer.
    fn progress(&self) -> Option<Progress> {
        None
    }

    /// How long a written record may wait for a flush; for ever unless implemented. Asked once.
    fn flush_interval(&self) -> Option<Duration> {
        None
    }

    /// How many records may wait for the sink, at least 1; 1024 unless implemented. Asked once.
    fn capacity(&self) -> usize {
        1024
    }

    /// What happens when that many wait; [`Overflow::Block`] unless implemented. Asked once.
    fn overflow(&self) -> Overflow {
        Overflow::Block
    }
}

impl<S: Sink + ?Sized> Sink for Box<S> {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        (**self).write(record)
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        (**self).flush()
    }

    fn close(&mut self) -> Result<(), BoxError> {
        (**self).close()
    }

    fn progress(&self) -> Option<Progress> {
        (**self).progress()
    }

    fn flush_interval(&self) -> Option<Duration> {
        (**self).flush_interval()
    }

    fn capacity(&self) -> usize {
        (**self).capacity()
    }

    fn overflow(&self) -> Overflow {
        (**self).overflow()
    }
}

/// How far a sink has got with the events that it accepted; [`Gap`](crate::Gap)s are not counted.
///
/// Returned by [`Sink::progress`], and made of the parts that the sink knows:
///
/// ```
/// use emitree_emitter::Progress;
///
/// let progress = Progress::default().with_buffered(3).with_synced(7);
/// assert_eq!((progress.buffered, progress.synced, progress.failed), (3, 7, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Events in the sink's own buffer at this moment. After `close` they count as failed.
    pub buffered: u64,
    /// Events that are on disk, or as safe as the sink's destination makes them, in total.
    pub synced: u64,
    /// Events that the sink accepted and then could not pass on, in total.
    pub failed: u64,
}

impl Progress {
    /// Sets the number of events in the sink's own buffer.
    #[must_use]
    pub const fn with_buffered(mut self, buffered: u64) -> Self {
        self.buffered = buffered;
        self
    }

    /// Sets the number of events that are on disk, in total.
    #[must_use]
    pub const fn with_synced(mut self, synced: u64) -> Self {
        self.synced = synced;
        self
    }

    /// Sets the number of events that the sink accepted and then could not pass on, in total.
    #[must_use]
    pub const fn with_failed(mut self, failed: u64) -> Self {
        self.failed = failed;
        self
    }
}

/// What happens to an event when as many records wait for the sink as may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overflow {
    /// The emit waits until there is room. Nothing is lost, unless the emit is dropped while it waits: then its event
    /// is. [`emit_now`](crate::Emitter::emit_now) cannot wait: while there is no room it is an error.
    #[default]
    Block,
    /// The event that has waited longest is lost.
    DropOldest,
    /// The event itself is lost.
    DropNewest,
}

/// A sink that was not attached; it has been dropped.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The matcher, or the registration, was refused.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The thread of the sink could not be started.
    #[error("the thread of a sink could not be started")]
    Thread(#[source] io::Error),
}
