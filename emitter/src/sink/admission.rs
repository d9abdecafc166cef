//! The wait for room in a full queue with the policy [`Overflow::Block`](super::Overflow::Block).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use event_listener::EventListener;

use super::queue::Queue;

/// Waits until an offered item has been taken, or until the queue is closed. Dropping the future before then withdraws
/// the offer, and the item is lost.
#[derive(Debug)]
pub(super) struct Admission<T> {
    queue: Arc<Queue<T>>,
    ticket: u64,
    listener: Option<EventListener>,
    done: bool,
}

impl<T> Admission<T> {
    pub(super) fn new(queue: &Arc<Queue<T>>, ticket: u64) -> Self {
        Self { queue: Arc::clone(queue), ticket, listener: None, done: false }
    }
}

impl<T> Future for Admission<T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(listener) = &mut self.listener {
                ready!(Pin::new(listener).poll(cx));
                self.listener = None;
            }
            // Listen before the check, so that a change in between is noticed.
            let listener = self.queue.room();
            if self.queue.is_admitted(self.ticket) {
                self.done = true;
                return Poll::Ready(());
            }
            self.listener = Some(listener);
        }
    }
}

impl<T> Drop for Admission<T> {
    fn drop(&mut self) {
        if !self.done {
            self.queue.withdraw(self.ticket);
        }
    }
}
