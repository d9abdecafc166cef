//! Delivery modes: in order, sync listeners first, or without awaiting listeners. The mode may change during an emit.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

const IN_ORDER: u8 = 0;
const SYNC_FIRST: u8 = 1;
const CUT: u8 = 2;

/// The mode in which the events of one source are delivered: in order, sync listeners first, or without awaiting
/// listeners.
///
/// It is passed to [`Emitter::emit_begin`](crate::Emitter::emit_begin) and shared with other code. That code may change
/// the mode during the emit, but only to a later mode in this list. A runtime changes the mode to end a run quickly,
/// for example when the run's future is dropped.
#[derive(Debug, Default)]
pub struct Delivery {
    mode: AtomicU8,
    skipped: AtomicUsize,
}

impl Delivery {
    /// Creates a delivery that calls or awaits all listeners in order.
    #[must_use]
    pub const fn new() -> Self {
        Self { mode: AtomicU8::new(IN_ORDER), skipped: AtomicUsize::new(0) }
    }

    /// Calls sync listeners first, from the next event on. Async listeners follow in their order.
    pub fn sync_first(&self) {
        // The modes are ordered. `fetch_max` keeps the later mode, so a delivery never returns to an earlier mode.
        self.mode.fetch_max(SYNC_FIRST, Ordering::AcqRel);
    }

    /// Stops awaiting listeners, from now on.
    ///
    /// If an emit is awaiting a listener, the listener's future is dropped when the emit is next polled. Listeners that
    /// would have to be awaited are skipped, and the skips are counted. Sync listeners still receive the event.
    pub fn cut(&self) {
        self.mode.fetch_max(CUT, Ordering::AcqRel);
    }

    /// Returns `true` if listeners are no longer awaited.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.mode.load(Ordering::Acquire) == CUT
    }

    /// Returns how many times [`cut`](Self::cut) has caused a listener to be skipped, or its future to be dropped.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.skipped.load(Ordering::Acquire)
    }

    pub(crate) fn is_in_order(&self) -> bool {
        self.mode.load(Ordering::Acquire) == IN_ORDER
    }

    /// Returns `true` if async listeners are to be skipped, and counts the skip.
    pub(crate) fn skips(&self) -> bool {
        let is_cut = self.is_cut();
        if is_cut {
            self.skipped.fetch_add(1, Ordering::AcqRel);
        }
        is_cut
    }
}
