//! The emitter's end of a sink or stream: an observer that makes records of events and queues them.

use std::sync::Arc;

use futures_core::future::BoxFuture;

use super::admission::Admission;
use super::queue::Queue;
use super::{DetailFn, Overflow};
use crate::panic::logged;
use crate::registry::listener::Call;
use crate::{AnyEvent, BoxError, Creator, EventMeta, EventRecord, SinkRecord};

/// The input of a queue. It is dropped with its listener, and then closes the sink or ends the stream.
pub(super) struct QueueInput {
    queue: Arc<Queue<SinkRecord>>,
    overflow: Overflow,
    detail: DetailFn,
}

impl QueueInput {
    pub(super) const fn new(queue: Arc<Queue<SinkRecord>>, overflow: Overflow, detail: DetailFn) -> Self {
        Self { queue, overflow, detail }
    }

    /// Creates the [`Call`] for an observer that queues each event.
    pub(super) fn into_call(self) -> Call {
        match self.overflow {
            Overflow::Block => self.into_waiting_call(),
            Overflow::DropOldest | Overflow::DropNewest => Call::Observe(Arc::new(move |event, meta| {
                self.queue.push(self.record(event, meta));
                Ok(())
            })),
        }
    }

    /// Creates the [`Call`] for an observer that waits if the queue is full. In that rare case the record is created
    /// twice, but the emit has to wait anyway.
    fn into_waiting_call(self) -> Call {
        let now = Arc::new(self);
        let later = Arc::clone(&now);
        let room = Arc::clone(&now);
        Call::TryObserve {
            has_room: Arc::new(move || room.queue.has_room()),
            now: Arc::new(move |event, meta| now.queue.try_push(now.record(event, meta))),
            later: Arc::new(move |event, meta| Some(later.push_and_wait(event, meta))),
        }
    }

    /// Queues an event now. The returned future waits for room.
    fn push_and_wait(&self, event: &dyn AnyEvent, meta: &EventMeta<'_>) -> BoxFuture<'static, Result<(), BoxError>> {
        let mut ticket = self.queue.push(self.record(event, meta));
        if self.queue.is_read_here() {
            // The sink emits to itself: only this thread could make room, so the emit would wait forever.
            ticket.take().into_iter().for_each(|ticket| self.lose(ticket, meta));
        }
        let admission = ticket.map(|ticket| Admission::new(&self.queue, ticket));
        Box::pin(async move {
            if let Some(admission) = admission {
                admission.await;
            }
            Ok(())
        })
    }
}

impl QueueInput {
    fn record(&self, event: &dyn AnyEvent, meta: &EventMeta<'_>) -> SinkRecord {
        let detail = (self.detail)(meta.creator().map_or("", Creator::kind), meta.emitted_name());
        SinkRecord::Event(Box::new(EventRecord::new(meta, event, detail)))
    }

    #[cold]
    fn lose(&self, ticket: u64, meta: &EventMeta<'_>) {
        self.queue.withdraw(ticket);
        logged(|| tracing::warn!(path = meta.path(), "a full sink emitted to itself: the event is lost"));
    }
}

impl Drop for QueueInput {
    fn drop(&mut self) {
        self.queue.close();
    }
}
