//! Events as a [`Stream`]: a sink that is pulled (E13).

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

/// Records of events, as they come.
///
/// Comes from [`Emitter::stream`](crate::Emitter::stream) and hears what is emitted from then on, polled or not. While
/// as many records are unread as it has capacity, each event takes the place of the oldest: the next record read is
/// then a [`SinkRecord::Gap`] that counts what was lost there. It never holds up an emit.
///
/// It ends when its emitter is closed or dropped, after what was emitted before. Dropping it removes its listener.
#[must_use = "dropping a stream stops it from listening"]
pub struct EventStream {
    queue: Arc<Queue<SinkRecord>>,
    subscription: Subscription,
}

impl EventStream {
    pub(super) const fn new(queue: Arc<Queue<SinkRecord>>, subscription: Subscription) -> Self {
        Self { queue, subscription }
    }

    /// Waits for the next record; none at the end. For code that has no `StreamExt::next` at hand.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn recv(&mut self) -> Option<SinkRecord> {
        poll_fn(|cx| self.poll_record(cx)).await
    }

    /// How many events were lost because they were not read fast enough.
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
        self.subscription.off();
        self.queue.abandon();
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").field("lost", &self.lost()).finish_non_exhaustive()
    }
}
