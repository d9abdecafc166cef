//! Sends spans to a collector, on a thread of its own.
//!
//! The sink's own thread is not used for this: while a collector is slow or asks to wait, the sink goes on to read
//! records, and a program that reads a recording may write to the sink inside of an async runtime.
//!
//! 1. Each span is counted once: `pushed` = waiting + in flight + `delivered` + `failed`.
//! 2. The waiting spans have at most `pending_bytes` bytes. A span above them takes the place of the oldest ones, which
//!    count as failed.
//! 3. No request is made, and nobody is waited for, while the lock is held.

mod client;
mod delivery;
mod retry_after;
mod waiting;

use std::sync::Arc;
use std::thread;

use opentelemetry_proto::tonic::trace::v1::Span as Message;

pub(crate) use self::client::{Target, check};
pub(crate) use self::delivery::Settings;
use self::waiting::{Counts, Waiting};

/// The sending half of a sink.
#[derive(Debug)]
pub(crate) struct Exporter {
    settings: Settings,
    waiting: Arc<Waiting>,
    /// `true` once the thread was started, or could not be.
    has_thread: bool,
}

impl Exporter {
    pub(crate) fn new(settings: Settings) -> Self {
        let waiting = Arc::new(Waiting::new(settings.pending_bytes));
        Self { settings, waiting, has_thread: false }
    }

    /// Adds a span that is sent soon. The first span starts the thread.
    pub(crate) fn push(&mut self, span: Message) {
        if !self.has_thread {
            self.has_thread = true;
            let settings = self.settings.clone();
            let waiting = Arc::clone(&self.waiting);
            let started = thread::Builder::new().name("emitree-otlp".to_owned()).spawn(move || {
                delivery::run(&settings, &waiting);
            });
            if let Err(error) = started {
                self.waiting.end(&format!("the thread that sends spans could not be started: {error}"));
            }
        }
        self.waiting.push(span);
    }

    /// Waits until all spans have been sent or have failed. Returns the last failure since the call before.
    pub(crate) fn flush(&self) -> Result<(), String> {
        self.waiting.flush()
    }

    /// Returns the numbers of spans that wait and that have failed.
    pub(crate) fn counts(&self) -> Counts {
        self.waiting.counts()
    }

    /// Limits the time in which the remaining spans are sent.
    pub(crate) fn close(&self) {
        self.waiting.close();
    }
}

/// Ends the thread. Spans that still wait are not sent.
impl Drop for Exporter {
    fn drop(&mut self) {
        self.waiting.end("the sink was dropped before it was closed");
    }
}
