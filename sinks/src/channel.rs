//! A sink that sends records into a bounded tokio channel.

use emitree_emitter::{BoxError, Overflow, Progress, Sink, SinkRecord};
use tokio::sync::mpsc::{self, Receiver, Sender};

/// A sink that sends every record into a bounded tokio channel.
///
/// ```
/// use emitree_emitter::Emitter;
/// use emitree_sinks::Channel;
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let emitter = Emitter::new();
/// let (channel, mut records) = Channel::new(64);
/// emitter.pipe_to(channel)?;
/// emitter.emit("ready", &mut 1).await?;
/// let record = records.recv().await.ok_or("the channel is open")?;
/// assert_eq!(record.as_event().map(|event| &*event.path), Some("ready"));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// When the sink is closed, the channel closes after the last record, unless the channel has other senders. If you drop
/// the receiver, each further record counts as failed.
///
/// # When the channel is full
///
/// Up to `capacity` records wait in the channel, and up to `capacity` records wait in the sink's queue. The sink's
/// thread may hold further records that it has taken from the queue. When the queue is full too,
/// [`with_overflow`](Self::with_overflow) decides whether the emit waits or an event is lost. The sink's handle counts
/// the lost events, and the receiver gets a gap in their place.
///
/// Closing the sink waits until all records are in the channel, but at most until the deadline. Records that do not fit
/// into the channel before the deadline count as pending in the report.
#[derive(Debug)]
pub struct Channel {
    sender: Sender<SinkRecord>,
    capacity: usize,
    overflow: Overflow,
}

impl Channel {
    /// Creates a channel for up to `capacity` records, and returns the sink and the receiver. A capacity of 0 counts as
    /// 1.
    #[must_use]
    pub fn new(capacity: usize) -> (Self, Receiver<SinkRecord>) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        (Self::from(sender), receiver)
    }

    /// Sets what happens when the channel and the queue are full. The default is [`Overflow::Block`].
    #[must_use]
    pub const fn with_overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }
}

/// Turns the sender of an existing channel into a sink. The sink's queue gets the capacity of the channel.
impl From<Sender<SinkRecord>> for Channel {
    fn from(sender: Sender<SinkRecord>) -> Self {
        let capacity = sender.max_capacity();
        Self { sender, capacity, overflow: Overflow::Block }
    }
}

impl Sink for Channel {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        // The sink's own thread is outside any runtime, so it may call `blocking_send`, which panics inside a
        // runtime.
        self.sender
            .blocking_send(record.clone())
            .map_err(|_| "the receiver of the channel was closed or dropped".into())
    }

    /// Reports no buffered events, because each accepted record is already in the channel.
    fn progress(&self) -> Option<Progress> {
        Some(Progress::default())
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn overflow(&self) -> Overflow {
        self.overflow
    }
}
