//! A sink that tests can stall, and the records that it has received.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use emitree_emitter::{BoxError, Overflow, Sink, SinkRecord};

/// The records and calls that a sink has received, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    pub(crate) fn add(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    /// Returns a line such as `0 1 -3 flush`: payloads as JSON, gaps as negative numbers.
    pub(crate) fn line(&self) -> String {
        self.0.lock().unwrap().join(" ")
    }
}

pub(crate) fn show(record: &SinkRecord) -> String {
    match record {
        SinkRecord::Event(event) => event.payload.get().to_owned(),
        SinkRecord::Gap(gap) => format!("-{}", gap.lost),
        other => format!("{other:?}"),
    }
}

/// A sink that waits for its [`Gate`] in each write.
pub(crate) struct Gated {
    pub(crate) capacity: usize,
    pub(crate) overflow: Overflow,
    seen: Seen,
    entered: Sender<()>,
    go: Receiver<()>,
}

/// Lets writes of a [`Gated`] sink through, one by one. Dropping the gate lets all writes through.
pub(crate) struct Gate {
    entered: Receiver<()>,
    go: Sender<()>,
}

impl Gated {
    pub(crate) fn new(capacity: usize, overflow: Overflow) -> (Self, Gate, Seen) {
        let ((entered, has_entered), (go, may_go)) = (mpsc::channel(), mpsc::channel());
        let seen = Seen::default();
        let sink = Self { capacity, overflow, seen: seen.clone(), entered, go: may_go };
        (sink, Gate { entered: has_entered, go }, seen)
    }
}

impl Gate {
    /// Waits until the sink is stalled in a write.
    pub(crate) fn entered(&self) {
        self.entered.recv().unwrap();
    }

    /// Lets one write through.
    pub(crate) fn step(&self) {
        self.go.send(()).unwrap();
    }
}

impl Sink for Gated {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        let _ = self.entered.send(());
        let _ = self.go.recv();
        self.seen.add(show(record));
        Ok(())
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn overflow(&self) -> Overflow {
        self.overflow
    }
}

/// A sink that calls a function for each record, and notes `flush` and `close`.
pub(crate) struct Calls<F> {
    pub(crate) write: F,
    pub(crate) seen: Seen,
    pub(crate) overflow: Overflow,
}

impl<F: FnMut(&str) -> Result<(), BoxError> + Send + 'static> Sink for Calls<F> {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        let text = show(record);
        (self.write)(&text)?;
        self.seen.add(text);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        self.seen.add("flush");
        Ok(())
    }

    fn close(&mut self) -> Result<(), BoxError> {
        self.seen.add("close");
        Ok(())
    }

    fn overflow(&self) -> Overflow {
        self.overflow
    }
}

/// Polls a future once; returns `true` if it is done.
pub(crate) async fn is_done_after_a_poll<F: Future + ?Sized>(future: Pin<&mut F>) -> bool {
    after_a_poll(future).await.is_some()
}

/// Polls a future once; returns its output if it is done.
pub(crate) async fn after_a_poll<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
