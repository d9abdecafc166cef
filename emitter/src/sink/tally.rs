//! The counts of a sink's events, now and at each flush (E13).

use std::mem;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::Progress;

/// The counts of the events that the worker took, behind one lock so that a report always adds up.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<TallyCounts>);

/// The counts of a [`Tally`].
#[derive(Clone, Debug, Default)]
pub(super) struct TallyCounts {
    /// Events for which `write` returned `Ok`.
    pub(super) accepted: u64,
    /// Events for which `write` returned an error or panicked.
    pub(super) refused: u64,
    /// The progress of the accepted events, as reported by the sink.
    pub(super) progress: Progress,
    pub(super) error: Option<String>,
}

impl Tally {
    pub(super) fn read(&self) -> TallyCounts {
        self.0.lock().clone()
    }

    pub(super) fn accept(&self, progress: Progress) {
        let mut counts = self.0.lock();
        counts.accepted += 1;
        counts.progress = progress;
    }

    pub(super) fn refuse(&self, progress: Progress) {
        let mut counts = self.0.lock();
        counts.refused += 1;
        counts.progress = progress;
    }

    pub(super) fn progressed(&self, progress: Progress) {
        self.0.lock().progress = progress;
    }

    /// Counts buffered events as failed: the sink is about to be dropped with its buffer.
    pub(super) fn fail_buffered(&self) {
        let TallyCounts { progress, .. } = &mut *self.0.lock();
        progress.failed = progress.failed.saturating_add(mem::take(&mut progress.buffered));
    }

    pub(super) fn set_error(&self, error: String) {
        // The earlier error is dropped after the lock is released.
        let before = self.0.lock().error.replace(error);
        drop(before);
    }
}

/// A flush that was requested.
#[derive(Debug)]
pub(super) struct Flush {
    /// The number of events offered before the request. The flush takes place after these events and before all others.
    pub(super) position: u64,
    counts: OnceLock<TallyCounts>,
}

impl Flush {
    pub(super) const fn new(position: u64) -> Self {
        Self { position, counts: OnceLock::new() }
    }

    pub(super) fn finish(&self, counts: TallyCounts) {
        // A request is taken from the queue once, so this is the only call.
        let _ = self.counts.set(counts);
    }

    /// Returns the counts at the end of the flush: they count exactly the events offered before the request.
    pub(super) fn counts(&self) -> Option<&TallyCounts> {
        self.counts.get()
    }
}
