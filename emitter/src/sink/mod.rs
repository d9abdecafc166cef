//! Sinks: the trait, and the queue between an emitter and a sink (E13).
//!
//! ```text
//! emit ── input.rs ──> queue.rs [ backlog.rs ] ──> worker.rs ──> Sink::write     a thread per sink
//!                                              └─> stream.rs ──> poll_next       the task that polls
//! ```
//!
//! `attach.rs` connects these parts and registers the input as an observer. `admission.rs` implements the wait for
//! room. [`handle.rs`](SinkHandle) makes the worker flush and close, and reports how many events were delivered, from
//! the counts in `tally.rs`.

mod admission;
mod attach;
mod backlog;
mod handle;
mod input;
mod queue;
mod stream;
mod tally;
mod worker;

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::handle::{Incomplete, Report, SinkHandle};
pub use self::stream::EventStream;
use crate::{BoxError, ListenError, SinkRecord};

/// A destination of event records, such as a file, a channel or a socket.
///
/// [`Emitter::pipe_to`](crate::Emitter::pipe_to) attaches a sink and returns a [`SinkHandle`]. The sink then belongs to
/// its own thread, so it may block and needs no lock:
///
/// 1. [`write`](Self::write) is called with one record after the other, in the order in which the events reached the
///    sink. Where events were lost, it is called with a [`SinkRecord::Gap`] that counts them.
/// 2. [`flush`](Self::flush) is called on request, after the records of all events that were emitted before the
///    request, and before the records of later events. It is also called when [`flush_interval`](Self::flush_interval) has passed since the first record that
///    was not flushed.
/// 3. [`close`](Self::close) is called once, at the end, after all accepted records are written. The end comes when
///    the sink is closed or unpiped, when its emitter is closed or dropped, or when the emitter's run ends. Then the
///    sink is dropped and its thread ends.
///
/// If a call returns an error or panics, the sink is called again for the next record. Only the first failure since the
/// last successful write of an event is logged.
///
/// A sink keeps its emitter alive if it holds a handle to the emitter: dropping the other handles does not end the
/// sink. A sink may emit on its emitter and attach other sinks. If it awaits an emit on its own thread while its queue
/// is full, no other thread can make room: the event is lost and counted. Do not wait in a sink for an emit on another
/// thread, or for another sink that waits for this sink. Such a cycle is not detected, and lasts until one of the sinks
/// is closed.
///
/// # When the queue is full
///
/// Up to [`capacity`](Self::capacity) records wait for the sink, and [`overflow`](Self::overflow) decides what happens
/// to further events. Lost events are counted, and the sink receives a gap in their place. In addition, the sink's
/// thread keeps up to `capacity` records that it is about to write, and fewer than `2 * capacity` written records. With
/// [`Overflow::Block`], each emit that waits for room adds a record to these numbers. The thread drops the written
/// records before it goes to sleep.
///
/// ```
/// use emitree_emitter::{BoxError, Overflow, SinkRecord, Sink};
///
/// /// Prints a line for each event. Loses old events instead of slowing down the emits.
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
    /// Writes one record. The sink may buffer it. A sink that keeps records must clone them.
    ///
    /// # Errors
    ///
    /// Returns an error if the record was not written. The record is not passed to the sink again. If it is an event,
    /// the event counts as failed.
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError>;

    /// Passes on buffered records. By default, does nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if some records could not be passed on.
    fn flush(&mut self) -> Result<(), BoxError> {
        Ok(())
    }

    /// Ends the sink. By default, flushes it.
    ///
    /// # Errors
    ///
    /// Returns an error if some records could not be passed on.
    fn close(&mut self) -> Result<(), BoxError> {
        self.flush()
    }

    /// Returns the progress of the events for which [`write`](Self::write) returned `Ok`. This method is called after
    /// each write, flush and close.
    ///
    /// By default, returns `None`: an event then counts as buffered until a flush or the close succeeds, and as failed
    /// if the close fails. A sink that counts its events itself returns `Some`, for example [`Progress::default()`] if
    /// it has no buffer.
    fn progress(&self) -> Option<Progress> {
        None
    }

    /// Returns how long a written record may wait for a flush. By default, it may wait forever. This method is called
    /// once.
    fn flush_interval(&self) -> Option<Duration> {
        None
    }

    /// Returns how many records may wait for the sink. Zero counts as 1. The default is 1024. This method is called
    /// once.
    fn capacity(&self) -> usize {
        1024
    }

    /// Returns the overflow policy for a full queue. The default is [`Overflow::Block`]. This method is called once.
    fn overflow(&self) -> Overflow {
        Overflow::Block
    }

    /// Returns the function that decides how much of each event the sink receives. By default, whole payloads. This
    /// method is called once. A sink that wraps another asks for what the other asks for.
    ///
    /// A sink that needs no values saves the emits most of its cost with [`Detail::Heads`]: of what a sink costs a run
    /// with a large input, nearly all is writing values as JSON.
    fn detail(&self) -> DetailFn {
        Box::new(|_, _| Detail::Full)
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

    fn detail(&self) -> DetailFn {
        (**self).detail()
    }
}

/// Decides the detail of an event from the kind of its creator, such as `Tool`, and its name, such as `usage`, or
/// `run.start` for a lifecycle event. The kind is empty if the event has no creator.
///
/// [`Sink::detail`] returns this function. It is called for each event, on the thread that emits: the thread of the
/// sink may be busy with a record. If it panics, the sink does not receive the event, and the failure is logged.
pub type DetailFn = Box<dyn Fn(&str, &str) -> Detail + Send + Sync>;

/// How much of an event a record has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Detail {
    /// The whole payload.
    #[default]
    Full,
    /// The [head](crate::Event::head) of the payload: for lifecycle events the error, or the outcome and the duration, in
    /// the places where the whole payload has them, and no inputs, outputs or other values. The values are not serialized
    /// for such a record, and sinks with other details receive what they ask for. The record says that it is a head.
    Heads,
}

impl Detail {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    pub(crate) const fn is_full(&self) -> bool {
        matches!(self, Self::Full)
    }
}

/// The progress of a sink: the counts of the events that it accepted. [`Gap`](crate::Gap)s are not counted.
///
/// [`Sink::progress`] returns this value. A sink sets the counts that it can determine:
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
    /// Events in the sink's own buffer now. After `close` they count as failed.
    pub buffered: u64,
    /// Events that are on disk, or as safe as the sink's destination makes them, in total.
    pub synced: u64,
    /// Events that the sink accepted and could not pass on, in total.
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

    /// Sets the number of events that the sink accepted and could not pass on, in total.
    #[must_use]
    pub const fn with_failed(mut self, failed: u64) -> Self {
        self.failed = failed;
        self
    }
}

/// The policy for an event that is emitted while the queue of a sink is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overflow {
    /// The emit waits for room. An event is lost only if its emit stops waiting, for example because the emit is
    /// dropped, or if the sink itself awaits the emit on its own thread. [`emit_now`](crate::Emitter::emit_now) cannot
    /// wait and returns an error while there is no room.
    #[default]
    Block,
    /// The event that has waited longest is lost.
    DropOldest,
    /// The new event is lost.
    DropNewest,
}

/// The error returned when a sink cannot be attached. The sink is then dropped.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The emitter belongs to a run that has ended.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The thread of the sink could not be started.
    #[error("the thread of a sink could not be started")]
    Thread(#[source] io::Error),
}
