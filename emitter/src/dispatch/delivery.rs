//! How patient an emit is, and how that is changed while it is under way.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

const IN_ORDER: u8 = 0;
const SYNC_FIRST: u8 = 1;
const CUT: u8 = 2;

/// How the events of one source are delivered: in order, the sync listeners first, or without awaiting anybody.
///
/// It is given to [`Emitter::emit_begin`](crate::Emitter::emit_begin), shared with who may lose patience
/// meanwhile, and only ever gets less patient. A runtime ends a run with it whose future is being dropped.
#[derive(Debug, Default)]
pub struct Delivery {
    mode: AtomicU8,
    skipped: AtomicUsize,
}

impl Delivery {
    /// Every listener is called, or awaited, in its order (E5).
    #[must_use]
    pub const fn new() -> Self {
        Self { mode: AtomicU8::new(IN_ORDER), skipped: AtomicUsize::new(0) }
    }

    /// From the next event on, sync listeners receive an event first, in their order; then those that are awaited do, in theirs.
    pub fn sync_first(&self) {
        self.mode.fetch_max(SYNC_FIRST, Ordering::AcqRel);
    }

    /// From now on nobody is awaited: of an event that is under way, what is being awaited is dropped when the emit is
    /// polled again, and those that would have to be awaited are skipped and counted. All others still hear it.
    pub fn cut(&self) {
        self.mode.fetch_max(CUT, Ordering::AcqRel);
    }

    /// Whether nobody is awaited any more.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.mode.load(Ordering::Acquire) == CUT
    }

    /// How many times a listener was skipped, or dropped while it was awaited.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.skipped.load(Ordering::Acquire)
    }

    pub(crate) fn is_in_order(&self) -> bool {
        self.mode.load(Ordering::Acquire) == IN_ORDER
    }

    /// Whether who would have to be awaited is skipped; counts it then.
    pub(crate) fn skips(&self) -> bool {
        let is_cut = self.is_cut();
        if is_cut {
            self.skipped.fetch_add(1, Ordering::AcqRel);
        }
        is_cut
    }
}
