//! The handle of an attached sink. It flushes and closes the sink, and reports the delivered and lost events.

use std::convert::Infallible;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use event_listener::{EventListener, Listener};

use super::queue::{Queue, QueueCounts};
use super::tally::{Flush, Tally, TallyCounts};
use crate::{SinkRecord, Subscription};

/// A handle to an attached sink, returned by [`Emitter::pipe_to`](crate::Emitter::pipe_to). It is cheap to clone.
///
/// Dropping the handle leaves the sink attached. The sink is then closed when its emitter is closed or dropped, or when
/// the emitter's run ends, but a process that exits does not wait for the sink. Call [`close`](Self::close) before
/// `main` returns if the recording must be complete.
#[derive(Clone, Debug)]
pub struct SinkHandle {
    control: SinkControl,
    subscription: Subscription,
}

impl SinkHandle {
    pub(super) const fn new(control: SinkControl, subscription: Subscription) -> Self {
        Self { control, subscription }
    }

    /// Waits until all events emitted before this call have been written and the sink has been flushed. Returns the
    /// sink's report of exactly these events: events that are emitted later, by other tasks for example, are not counted,
    /// so the report of a flush has no pending event.
    ///
    /// If the sink ends before the flush, the report counts all events, as the report of [`close`](Self::close) does.
    ///
    /// On the sink's own thread, this method does not wait. The sink is flushed later, after it has written all events
    /// that are queued now. The report then counts these events as pending.
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, the flush takes place even if the future is dropped.
    pub async fn flush(&self) -> Report {
        let flush = self.control.queue.request_flush();
        self.control.wait_until(|queue| flush.counts().is_some() || queue.has_ended()).await;
        self.control.report_of_flush(&flush)
    }

    /// Flushes the sink as [`flush`](Self::flush) does, for code that cannot await.
    ///
    /// Blocks the thread until the sink has been flushed.
    pub fn flush_blocking(&self) -> Report {
        let flush = self.control.queue.request_flush();
        let has_flushed = |queue: &Queue<SinkRecord>| flush.counts().is_some() || queue.has_ended();
        while !self.control.is_done(has_flushed) {
            let progress = self.control.queue.progress();
            if !has_flushed(&self.control.queue) {
                progress.wait();
            }
        }
        self.control.report_of_flush(&flush)
    }

    /// Removes the sink from its emitter, waits until the sink has written all earlier events and has been closed, and
    /// returns its report.
    ///
    /// After the deadline, `close` stops waiting. Its report counts the remaining events as pending or buffered. If the
    /// sink has not failed, the error of the report is that the sink was not closed in time. The sink's thread
    /// continues until it is done, and a second `close` waits for it again. A temporary thread measures the deadline,
    /// because there may be no runtime.
    ///
    /// On the sink's own thread, this method does not wait.
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, the sink is closed even if the future is dropped.
    pub async fn close(&self, deadline: Duration) -> Report {
        self.unpipe();
        // Without a wait, no alarm thread is needed.
        if self.control.is_done(Queue::has_ended) || deadline.is_zero() {
            return self.report_of_close(deadline);
        }
        match Alarm::set(&self.control.queue, deadline) {
            Ok(alarm) => self.control.wait_until(|queue| queue.has_ended() || alarm.has_rung()).await,
            Err(error) => {
                return self
                    .report()
                    .or_error(|| format!("the thread that measures the deadline could not be started: {error}"));
            }
        }
        self.report_of_close(deadline)
    }

    /// Closes the sink as [`close`](Self::close) does, for code that cannot await.
    ///
    /// Blocks the thread until the sink is closed or the deadline has passed.
    pub fn close_blocking(&self, deadline: Duration) -> Report {
        self.unpipe();
        let until = Instant::now().checked_add(deadline);
        while !self.control.is_done(Queue::has_ended) {
            let progress = self.control.queue.progress();
            if !self.control.queue.has_ended() && !woken_before(until, progress) {
                break;
            }
        }
        self.report_of_close(deadline)
    }

    /// Returns the report of a close. A sink that is still being closed may fail later, so its report is not complete.
    fn report_of_close(&self, deadline: Duration) -> Report {
        // `has_ended` is read before the report, so that the report of a sink that has ended is final.
        let has_ended = self.control.queue.has_ended();
        let report = self.report();
        match has_ended {
            true => report,
            false if self.control.queue.is_read_here() => {
                report.or_error(|| "the sink cannot wait for itself: it closes after this call returns".to_owned())
            }
            false => report.or_error(|| format!("the sink was not closed within {deadline:?}")),
        }
    }

    /// Removes the sink from its emitter without waiting. The sink writes all earlier events and is closed, and its
    /// thread ends. A second call does nothing.
    pub fn unpipe(&self) {
        self.subscription.off();
        // Close the queue here: the drop of the listener would close it, but an emit under way may still hold the
        // listener.
        self.control.queue.close();
    }

    /// Returns the number of events that were lost because the queue was full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.control.queue.counts().lost
    }

    /// Returns the numbers of events delivered, buffered, lost, failed and pending up to now.
    pub fn report(&self) -> Report {
        self.control.report()
    }
}

fn woken_before(deadline: Option<Instant>, progress: EventListener) -> bool {
    match deadline {
        Some(deadline) => progress.wait_deadline(deadline).is_some(),
        None => {
            progress.wait();
            true
        }
    }
}

/// The queue and the counts of a sink.
#[derive(Clone, Debug)]
pub(super) struct SinkControl {
    queue: Arc<Queue<SinkRecord>>,
    tally: Arc<Tally>,
}

impl SinkControl {
    pub(super) const fn new(queue: Arc<Queue<SinkRecord>>, tally: Arc<Tally>) -> Self {
        Self { queue, tally }
    }

    /// Returns `true` if the wait is over, or if the caller is the sink itself, which would wait forever.
    fn is_done(&self, done: impl Fn(&Queue<SinkRecord>) -> bool) -> bool {
        done(&self.queue) || self.queue.is_read_here()
    }

    async fn wait_until(&self, done: impl Fn(&Queue<SinkRecord>) -> bool) {
        loop {
            // Listen before the check, so that a change in between is noticed.
            let progress = self.queue.progress();
            if self.is_done(&done) {
                return;
            }
            progress.await;
        }
    }

    fn report(&self) -> Report {
        // Read the tally first: all events in the tally are then in `offered`, too, and `pending` is not negative.
        let tally = self.tally.read();
        let QueueCounts { offered, lost } = self.queue.counts();
        Report::new(tally, offered, lost)
    }

    /// Returns the report of the events that were offered before a flush was requested.
    fn report_of_flush(&self, flush: &Flush) -> Report {
        // Without counts, the sink has ended before the flush, or the caller is the sink itself.
        flush.counts().map_or_else(
            || self.report(),
            |tally| {
                // Each event before the flush was written or lost.
                let lost = flush.position.saturating_sub(tally.accepted + tally.refused);
                Report::new(tally.clone(), flush.position, lost)
            },
        )
    }
}

/// Wakes the waiters of a queue after a delay, on a thread that ends when the alarm is dropped.
struct Alarm {
    rang: Arc<AtomicBool>,
    _disarm: mpsc::Sender<Infallible>,
}

impl Alarm {
    fn set(queue: &Arc<Queue<SinkRecord>>, after: Duration) -> io::Result<Self> {
        let (disarm, disarmed) = mpsc::channel();
        let rang = Arc::new(AtomicBool::new(false));
        let queue = Arc::clone(queue);
        let ring = Arc::clone(&rang);
        let watch = move || {
            // Dropping the sender disconnects the channel, which ends the wait without an alarm.
            if disarmed.recv_timeout(after) == Err(mpsc::RecvTimeoutError::Timeout) {
                ring.store(true, Ordering::Release);
                queue.wake_waiters();
            }
        };
        thread::Builder::new().name("emitree-alarm".to_owned()).spawn(watch)?;
        Ok(Self { rang, _disarm: disarm })
    }

    fn has_rung(&self) -> bool {
        self.rang.load(Ordering::Acquire)
    }
}

/// The numbers of events that a sink has delivered, has lost, or still has to deliver.
///
/// Each event that reaches the queue of the sink before the queue is closed, or before the request in the report of a
/// [`flush`](SinkHandle::flush), is counted once: `delivered + buffered +
/// lost + failed + pending` is the number of these events. A pending event later counts as delivered, buffered, lost or
/// failed. After [`close`](SinkHandle::close) has returned in time, no event is pending or buffered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a report shows whether everything was delivered"]
#[non_exhaustive]
pub struct Report {
    /// Events that the sink has passed on. An event written to a file has been handed to the operating system, and
    /// survives a crash of this process.
    pub delivered: u64,
    /// Delivered events that are on disk and survive a power failure, as reported by the sink. A sink that does not
    /// wait for a disk reports 0.
    pub synced: u64,
    /// Events that the sink accepted and has not passed on, according to [`Sink::progress`](crate::Sink::progress). A
    /// crash of this process may lose these events.
    pub buffered: u64,
    /// Events that were lost because the queue was full.
    pub lost: u64,
    /// Events that the sink refused with an error or a panic, or accepted but could not pass on.
    pub failed: u64,
    /// Events that wait for the sink, or are being written.
    pub pending: u64,
    /// The last error of the sink with its causes. If there is none and `close` returns before the sink is closed, this
    /// field states the reason.
    pub error: Option<String>,
}

impl Report {
    fn new(tally: TallyCounts, offered: u64, lost: u64) -> Self {
        let TallyCounts { accepted, refused, progress, error } = tally;
        let pending = offered.saturating_sub(lost + accepted + refused);
        // A sink may report more events than it accepted: the counts are capped.
        let failed = progress.failed.min(accepted);
        let buffered = progress.buffered.min(accepted - failed);
        let delivered = accepted - failed - buffered;
        let synced = progress.synced.min(delivered);
        Self { delivered, synced, buffered, lost, failed: refused + failed, pending, error }
    }

    /// Returns `true` if every event was delivered and the sink never failed.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        let is_delivered = self.lost == 0 && self.failed == 0 && self.pending == 0 && self.buffered == 0;
        is_delivered && self.error.is_none()
    }

    /// Returns the number of events delivered, if the report is complete.
    ///
    /// # Errors
    ///
    /// Returns an error if an event was not delivered or the sink failed.
    pub fn complete(self) -> Result<u64, Incomplete> {
        if self.is_complete() { Ok(self.delivered) } else { Err(Incomplete(self)) }
    }

    fn or_error(mut self, error: impl FnOnce() -> String) -> Self {
        self.error.get_or_insert_with(error);
        self
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { delivered, synced, buffered, lost, failed, pending, error } = self;
        write!(f, "{delivered} delivered")?;
        if *synced > 0 {
            write!(f, " ({synced} synced)")?;
        }
        if *buffered > 0 {
            write!(f, ", {buffered} buffered")?;
        }
        write!(f, ", {lost} lost, {failed} failed, {pending} pending")?;
        error.iter().try_for_each(|error| write!(f, " (last error: {error})"))
    }
}

/// The error returned by [`Report::complete`]: an event was not delivered, or the sink failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incomplete(Report);

impl Incomplete {
    /// Returns the report.
    pub const fn report(&self) -> &Report {
        &self.0
    }
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the delivery of a sink is incomplete: {}", self.0)
    }
}

impl Error for Incomplete {}
