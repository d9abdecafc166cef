//! Events as a [`Stream`]: a sink that is read by polling (E13).

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::backlog::Entry;
use super::queue::Queue;
use crate::event::record::Gap;
use crate::{SinkRecord, Subscription};

/// A stream of event records, returned by [`Emitter::stream`](crate::Emitter::stream).
///
/// The stream receives events from its creation on, even while it is not polled. When its buffer is full, each new
/// event replaces the oldest event. The next record is then a [`SinkRecord::Gap`] that counts the lost events. An emit
/// never waits for the stream.
///
/// The stream ends after all earlier events when its emitter is closed or dropped, or when the emitter's run ends.
/// Dropping the stream removes its listener.
#[must_use = "dropping a stream stops it from listening"]
pub struct EventStream {
    queue: Arc<Queue<SinkRecord>>,
    subscription: Subscription,
}

impl EventStream {
    pub(super) const fn new(queue: Arc<Queue<SinkRecord>>, subscription: Subscription) -> Self {
        Self { queue, subscription }
    }

    /// Waits for the next record, as `StreamExt::next` does. Returns `None` at the end of the stream.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no record.
    pub async fn recv(&mut self) -> Option<SinkRecord> {
        poll_fn(|cx| self.poll_record(cx)).await
    }

    /// Returns the number of events that were lost because the stream was read too slowly.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.queue.counts().lost
    }

    fn poll_record(&self, cx: &Context<'_>) -> Poll<Option<SinkRecord>> {
        self.queue.poll_pop(cx).map(|entry| entry.map(to_record))
    }
}

fn to_record(entry: Entry<SinkRecord>) -> SinkRecord {
    match entry {
        Entry::Item(record) => record,
        Entry::Lost(lost) => SinkRecord::Gap(Gap::of(lost)),
    }
}

impl Stream for EventStream {
    type Item = SinkRecord;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<SinkRecord>> {
        self.poll_record(cx)
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        // Drop the unread events here: an emit under way may still hold the listener, and with it the queue.
        self.subscription.off();
        self.queue.abandon();
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").field("lost", &self.lost()).finish_non_exhaustive()
    }
}
