//! The events of a server, which one task emits in their order.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use emitree_emitter::{EmitError, Emitter, Event};
use futures_core::future::BoxFuture;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::events::ServerLog;

/// The most events that wait for slow listeners. Further events are counted, and the next note has their number.
const WAITING: usize = 256;

type Emission = Box<dyn for<'a> FnOnce(&'a Emitter) -> BoxFuture<'a, Result<(), EmitError>> + Send>;

/// Sends events to the task that emits them. The task ends when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Report {
    queue: Sender<Emission>,
    lost: Arc<AtomicU64>,
}

impl Report {
    /// Starts the task of an emitter. It ends by itself, when it has emitted what waits at the drop of the last clone.
    pub(crate) fn start(emitter: Emitter) -> Self {
        let (queue, waiting) = mpsc::channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        tokio::spawn(emit_all(emitter, waiting, Arc::clone(&lost)));
        Self { queue, lost }
    }

    /// Sends an event. A caller that reads messages must not wait for listeners.
    pub(crate) fn send<E: Event>(&self, mut event: E) {
        let emission: Emission = Box::new(move |emitter| Box::pin(async move { emitter.emit_event(&mut event).await }));
        if self.queue.try_send(emission).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn emit_all(emitter: Emitter, mut waiting: Receiver<Emission>, lost: Arc<AtomicU64>) {
    while let Some(emission) = waiting.recv().await {
        emit(emission(&emitter)).await;
        let lost = lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let data = format!("{lost} events were lost, because the listeners are slow").into();
            emit(emitter.emit_event(&mut ServerLog { level: "client".to_owned(), data })).await;
        }
    }
}

async fn emit(emission: impl Future<Output = Result<(), EmitError>>) {
    if let Err(error) = emission.await {
        tracing::warn!("a listener of an MCP server has failed: {error}");
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report").field("lost", &self.lost).finish_non_exhaustive()
    }
}
