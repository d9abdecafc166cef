//! Records kept in memory, for tests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emitree_emitter::{BoxError, Overflow, Progress, Sink, SinkRecord};

/// Keeps every record in memory; clones share what they keep.
///
/// One clone is piped to, another looked at, after a `flush` or `close` of the handle:
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
/// # When it is full
///
/// It does not get full: it grows by every record. It is its queue that is bounded, to 1024 records unless
/// [`with_capacity`](Self::with_capacity) says otherwise; the emit then waits, unless [`with_overflow`](Self::with_overflow) says what is
/// to be lost. Losses are counted by the handle and stand as gaps among the records.
#[derive(Clone, Debug)]
pub struct Memory {
    records: Arc<Mutex<Vec<SinkRecord>>>,
    capacity: usize,
    overflow: Overflow,
}

impl Memory {
    /// An empty memory.
    #[must_use]
    pub fn new() -> Self {
        Self { records: Arc::default(), capacity: 1024, overflow: Overflow::Block }
    }

    /// Lets so many records wait in the queue, at least 1.
    #[must_use]
    pub const fn with_capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// Says what happens when that many wait.
    #[must_use]
    pub const fn with_overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// All records up to now, gaps included.
    #[must_use]
    pub fn records(&self) -> Vec<SinkRecord> {
        self.lock().clone()
    }

    /// The paths of all events up to now.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        self.lock().iter().filter_map(SinkRecord::as_event).map(|event| event.path.to_string()).collect()
    }

    /// How many records there are, gaps included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Tells whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Takes all records out.
    #[must_use]
    pub fn take(&self) -> Vec<SinkRecord> {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SinkRecord>> {
        // Nothing that panics is done under the lock.
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
