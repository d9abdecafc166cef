//! A sink that keeps records in memory, for tests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emitree_emitter::{BoxError, Overflow, Progress, Sink, SinkRecord};

/// A sink that keeps every record in memory; clones share their records.
///
/// Pipe events to one clone, and read the records from another after a `flush` or `close` of the handle:
///
/// ```
/// use emitree_emitter::{Emitter, Overflow};
/// use emitree_sinks::Memory;
///
/// let emitter = Emitter::new();
/// let memory = Memory::new().with_overflow(Overflow::DropNewest);
/// let handle = emitter.pipe_to(memory.clone())?;
/// emitter.emit_now("ready", &mut 1)?;
/// handle.flush_blocking().complete()?;
/// assert_eq!(memory.paths(), ["ready"]);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # When the queue is full
///
/// The memory itself grows with every record and is never full. The sink's queue holds 1024 records unless
/// [`with_capacity`](Self::with_capacity) is called. When the queue is full, [`with_overflow`](Self::with_overflow)
/// decides whether the emit waits or an event is lost. The handle counts the lost events, and a gap is kept in their
/// place.
#[derive(Clone, Debug)]
pub struct Memory {
    records: Arc<Mutex<Vec<SinkRecord>>>,
    capacity: usize,
    overflow: Overflow,
}

impl Memory {
    /// Creates a sink without records.
    #[must_use]
    pub fn new() -> Self {
        Self { records: Arc::default(), capacity: 1024, overflow: Overflow::Block }
    }

    /// Sets the maximum number of records in the queue. The default is 1024, and 0 counts as 1.
    #[must_use]
    pub const fn with_capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// Sets what happens when the queue is full. The default is [`Overflow::Block`].
    #[must_use]
    pub const fn with_overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// Returns all records, including gaps.
    #[must_use]
    pub fn records(&self) -> Vec<SinkRecord> {
        self.lock().clone()
    }

    /// Returns the paths of all events.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        self.lock().iter().filter_map(SinkRecord::as_event).map(|event| event.path.to_string()).collect()
    }

    /// Returns the number of records, including gaps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns `true` if there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Removes all records and returns them.
    #[must_use]
    pub fn take(&self) -> Vec<SinkRecord> {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SinkRecord>> {
        // Poisoning is ignored: a panic under the lock cannot leave an incomplete record in the vector.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Sink for Memory {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        self.lock().push(record.clone());
        Ok(())
    }

    /// Reports no buffered events, because each accepted record is already in memory.
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
