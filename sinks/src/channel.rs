//! Records into a bounded tokio channel.

use emitree_emitter::{BoxError, Overflow, Progress, Sink, SinkRecord};
use tokio::sync::mpsc::{self, Receiver, Sender};

/// Sends every record into a bounded tokio channel.
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
/// The channel ends when the sink is closed, after the last record. If the receiver is dropped, each further record
/// counts as failed.
///
/// # When it is full
///
/// While nobody receives, up to `capacity` records wait in the channel and as many again in the sink's queue. Then the
/// emit waits, unless [`with_overflow`](Self::with_overflow) says what is to be lost. Losses are counted by the sink's handle,
/// and a gap is received where they happened.
///
/// A `close` of the sink waits for the receiver, and reports as pending what does not fit into the channel by then.
#[derive(Debug)]
pub struct Channel {
    sender: Sender<SinkRecord>,
    capacity: usize,
    overflow: Overflow,
}

impl Channel {
    /// A channel that holds so many records, at least 1, and its receiver.
    #[must_use]
    pub fn new(capacity: usize) -> (Self, Receiver<SinkRecord>) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        (Self::from(sender), receiver)
    }

    /// Says what happens when the channel and the queue are full.
    #[must_use]
    pub const fn with_overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }
}

/// A channel that somebody else made; the sink's queue gets the same capacity.
impl From<Sender<SinkRecord>> for Channel {
    fn from(sender: Sender<SinkRecord>) -> Self {
        let capacity = sender.max_capacity();
        Self { sender, capacity, overflow: Overflow::Block }
    }
}

impl Sink for Channel {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        // The sink's thread belongs to no runtime, where this would panic.
        self.sender.blocking_send(record.clone()).map_err(|_| "the receiver of the channel is gone".into())
    }

    /// There is no buffer: what is accepted is delivered.
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
