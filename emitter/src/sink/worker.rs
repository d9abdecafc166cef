//! The thread that owns a sink. It takes batches from the queue and writes them.
//!
//! 1. After the thread has started, it alone calls the sink. It does not hold the queue's lock during a call.
//! 2. After a call that fails or panics, the next call is still made. Only the first failure since the last successful
//!    write is logged.
//! 3. The thread ends when the queue is closed and drained. However it ends, it reports the end to the queue
//!    ([`EndGuard`]).
//! 4. The sink is dropped before the end is reported, so that its files are closed when `close` returns.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use super::backlog::Entry;
use super::queue::Queue;
use super::tally::{Flush, Tally};
use super::{Progress, Sink};
use crate::event::record::Gap;
use crate::panic::{caught, caught_or, discard, logged};
use crate::{BoxError, SinkRecord};

/// Starts the thread of a sink.
pub(super) fn start<S: Sink>(sink: S, queue: Arc<Queue<SinkRecord>>, tally: Arc<Tally>) -> io::Result<()> {
    let interval = sink.flush_interval();
    let worker = Worker { sink, tally, interval, unflushed: None, position: 0, unconfirmed: 0, failing: false };
    thread::Builder::new().name("emitree-sink".to_owned()).spawn(move || worker.run(queue)).map(drop)
}

struct Worker<S> {
    sink: S,
    tally: Arc<Tally>,
    interval: Option<Duration>,
    /// The time of the first write since the last flush. Set only if there is an interval.
    unflushed: Option<Instant>,
    /// The number of offers that were taken and written, or whose loss was reported.
    position: u64,
    /// Events accepted since the last flush that succeeded.
    unconfirmed: u64,
    /// `true` from a failure until the next successful write, so that a series of failures is logged once.
    failing: bool,
}

impl<S: Sink> Worker<S> {
    fn run(mut self, queue: Arc<Queue<SinkRecord>>) {
        queue.read_here();
        let end_guard = EndGuard(queue);
        let mut batch = VecDeque::new();
        loop {
            let after_batch = end_guard.0.wait(&mut batch, self.flush_due());
            let flushes = self.write_all(&batch, &after_batch.flushes, &end_guard.0);
            end_guard.0.give_back(&mut batch);
            // The remaining requests came after the last entry of the batch.
            self.flush_for(flushes, &end_guard.0);
            if self.is_flush_due() {
                self.flush();
            }
            if after_batch.last {
                return self.close();
            }
        }
    }

    /// Writes a batch, and flushes between the entries where a flush was requested. Returns the requests that came after
    /// the last entry.
    fn write_all<'f>(
        &mut self,
        batch: &VecDeque<Entry<SinkRecord>>,
        mut flushes: &'f [Arc<Flush>],
        queue: &Queue<SinkRecord>,
    ) -> &'f [Arc<Flush>] {
        if !batch.is_empty() && self.interval.is_some() {
            self.unflushed.get_or_insert_with(Instant::now);
        }
        for entry in batch {
            let end = self.position + entry.span();
            // A request whose position lies inside a loss comes before the gap, so that no later event is counted.
            let (due, later) = flushes.split_at(flushes.partition_point(|flush| flush.position < end));
            self.flush_for(due, queue);
            flushes = later;
            match entry {
                Entry::Item(record) => self.write(record),
                Entry::Lost(lost) => self.write_gap(*lost),
            }
            self.position = end;
        }
        flushes
    }

    /// Flushes the sink once for all of these requests.
    fn flush_for(&mut self, requests: &[Arc<Flush>], queue: &Queue<SinkRecord>) {
        if requests.is_empty() {
            return;
        }
        self.flush();
        let counts = self.tally.read();
        requests.iter().for_each(|request| request.finish(counts.clone()));
        queue.wake_waiters();
    }

    fn write(&mut self, record: &SinkRecord) {
        // Progress is read after each write, so that buffered events are not reported as delivered.
        let written = call_catching(|| self.sink.write(record));
        self.unconfirmed += u64::from(written.is_ok());
        let progress = self.progress();
        match written {
            Ok(()) => {
                self.failing = false;
                self.tally.accept(progress);
            }
            Err(error) => {
                self.record_error(error);
                self.tally.refuse(progress);
            }
        }
    }

    fn write_gap(&mut self, lost: u64) {
        let written = call_catching(|| self.sink.write(&SinkRecord::Gap(Gap::of(lost))));
        self.record_failure(written);
        let progress = self.progress();
        self.tally.progressed(progress);
    }

    fn flush(&mut self) {
        self.unflushed = None;
        let flushed = call_catching(|| self.sink.flush());
        self.confirm(flushed);
    }

    fn close(mut self) {
        let closed = call_catching(|| self.sink.close());
        self.confirm(closed);
        let Self { sink, tally, .. } = self;
        // After the close, events that are still buffered are lost with the sink.
        tally.fail_buffered();
        // Drop the sink here, before the guard reports the end (invariant 4).
        let dropped = call_catching(|| {
            drop(sink);
            Ok(())
        });
        if let Err(error) = dropped {
            tally.set_error(message_of(error));
        }
    }

    fn confirm(&mut self, flushed: Result<(), BoxError>) {
        match flushed {
            Ok(()) => self.unconfirmed = 0,
            Err(error) => self.record_error(error),
        }
        let progress = self.progress();
        self.tally.progressed(progress);
    }

    /// Reads the progress of the sink. If the sink returns `None`, all events accepted since the last successful flush
    /// count as buffered.
    fn progress(&mut self) -> Progress {
        let mut progress = None;
        let asked = call_catching(|| {
            progress = self.sink.progress();
            Ok(())
        });
        self.record_failure(asked);
        progress.unwrap_or_else(|| Progress::default().with_buffered(self.unconfirmed))
    }

    fn record_failure(&mut self, outcome: Result<(), BoxError>) {
        if let Err(error) = outcome {
            self.record_error(error);
        }
    }

    /// Keeps an error for the report, and logs the first of a series.
    fn record_error(&mut self, error: BoxError) {
        let text = message_of(error);
        if !self.failing {
            logged(|| tracing::warn!(error = text, "a sink failed; it stays in use"));
        }
        self.failing = true;
        self.tally.set_error(text);
    }

    fn flush_due(&self) -> Option<Instant> {
        self.unflushed?.checked_add(self.interval?)
    }

    fn is_flush_due(&self) -> bool {
        self.flush_due().is_some_and(|due| due <= Instant::now())
    }
}

/// Reports to the queue that its reader is gone, even if the thread unwinds (invariant 3).
struct EndGuard(Arc<Queue<SinkRecord>>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Calls the sink, and turns a panic into an error (invariant 2).
fn call_catching(call: impl FnOnce() -> Result<(), BoxError>) -> Result<(), BoxError> {
    caught_or(call, |panic| Err(format!("the sink panicked: {panic}").into()))
}

/// Returns the message of an error. The error is a user's value, and may panic when it is displayed or dropped.
fn message_of(error: BoxError) -> String {
    let text = caught(|| with_causes(&error))
        .unwrap_or_else(|panic| format!("an error that panicked when it was displayed: {panic}"));
    discard("a sink's error", error);
    text
}

/// Returns the message of an error and its causes.
fn with_causes(error: &BoxError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
